"use strict";

/** The page's numbers, unpacked; nothing here or elsewhere in the page computes a score. */
const D = JSON.parse(document.getElementById("data").textContent);

function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out.buffer;
}

const n = D.size;
const FULL = 65535;
const edgeIndex = new Uint32Array(bytes(D.edges.index));
const edgeCapacity = new Uint16Array(bytes(D.edges.capacity));
const residualPart = new Float32Array(bytes(D.residual));
const flowEdges = new (D.wide ? Uint32Array : Uint16Array)(bytes(D.flowEdges));
const flowValues = new Uint16Array(bytes(D.flowValues));
const tokenScores = new Float32Array(bytes(D.scores));
const wordScores = D.wordScores && new Float32Array(bytes(D.wordScores));

/** One line a column of bars: the tokens, or the words that they make up. */
const PER_TOKEN = { names: D.tokens, special: D.special, members: D.tokens.map((_, j) => [j]), scores: tokenScores };
const PER_WORD = D.words && { ...D.words, scores: wordScores };

const targetAt = new Map(D.targets.map(([layer, row], t) => [`${layer},${row}`, t]));
const pairsOf = D.targets.map(() => new Map());
for (const [t, sink, value, count, share, bound, start, length, near, far] of D.pairs) {
  pairsOf[t].set(sink, { value, count, share, bound, start, length, cuts: [near, far || near], one: !far });
}

/** An edge of the page's table: from node i at height h + 1 to node k at height h. */
function edge(id) {
  const at = edgeIndex[id];
  const h = Math.floor(at / (n * n));
  const i = Math.floor(at / n) % n;
  const k = at % n;
  return { id, h, i, k, capacity: edgeCapacity[id] / FULL, kind: kindOf(h, i, k) };
}

function kindOf(h, i, k) {
  if (i === k) return "residual";
  return D.levels[h][0] === "cross" ? "cross" : "flow";
}

/** Scores of the target by one method, or null where it has none for this target. */
function scoresOf(t, m, units) {
  const width = units.names.length;
  const start = (t * D.methods.length + m) * width;
  const out = units.scores.subarray(start, start + width);
  return out.every(Number.isNaN) ? null : out;
}

/** Ranks from 1, highest score first; equal scores share the better rank. */
function ranksOf(scores, shown) {
  const order = shown.filter((j) => !Number.isNaN(scores[j])).sort((a, b) => scores[b] - scores[a]);
  const ranks = new Map();
  order.forEach((j, r) => ranks.set(j, r && scores[order[r - 1]] === scores[j] ? ranks.get(order[r - 1]) : r + 1));
  return ranks;
}

function highest(scores, shown) {
  let top = 0;
  for (const j of shown) if (Math.abs(scores[j]) > top) top = Math.abs(scores[j]);
  return top || 1;
}

const FLOW = D.methods.findIndex((m) => m.name === "flow");

function bestInput(t) {
  const scores = scoresOf(t, FLOW, PER_TOKEN);
  let best = -1;
  scores.forEach((s, j) => {
    if ((S.special || !D.special[j]) && (best < 0 || s > scores[best])) best = j;
  });
  return Math.max(best, 0);
}

const S = {
  target: 0, sink: 0, special: true, words: false, share: 0.95, cut: 0, capacity: true,
  low: 0, high: Math.max(...D.towers.map((tower) => Math.max(...tower.rise))), method: FLOW, playing: null,
};

const fixed = (x, digits = 4) => x.toFixed(digits);
const percent = (x) => `${Math.round(100 * x)} %`;
const grouped = (x) => String(x).replace(/\B(?=(\d{3})+$)/g, " ");
const byId = (id) => document.getElementById(id);

function make(tag, attributes = {}, text = null) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  if (text !== null) out.textContent = text;
  return out;
}

// The namespace is read from the page, so that no address of any kind stands in it.
const SPACE = byId("graph").namespaceURI;

function draw(parent, tag, attributes = {}, text = null) {
  const out = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  if (text !== null) out.textContent = text;
  parent.appendChild(out);
  return out;
}
