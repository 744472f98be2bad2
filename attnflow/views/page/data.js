"use strict";

/** The page's numbers, unpacked. No score is computed here or elsewhere in the page, only edges of flows (flow.js). */
const D = await unzipped(bytes(document.getElementById("data").textContent));

async function unzipped(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function bytes(text) {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out.buffer;
}

const n = D.size;
const floats = (parts) => parts.map((text) => new Float32Array(bytes(text)));
const fixedScores = D.fixed.map(floats);

/** One column of bars per token, or per word that the tokens make up; part: where their scores stand. */
const PER_TOKEN = { names: D.tokens, special: D.special, members: D.tokens.map((_, j) => [j]), part: 0 };
const PER_WORD = D.words && { ...D.words, part: 1 };

/** What depends on the edges, and on how the heads are brought down to one matrix; F is the one that is shown. */
let F = null;
const unpacked = new Map();

function useFusion(index) {
  if (!unpacked.has(index)) unpacked.set(index, unpackFusion(D.fusions[index]));
  F = unpacked.get(index);
}

function unpackFusion(f) {
  const pairsOf = f.outputs.map(() => new Map());
  for (const [t, sink, value, count, share, bound, start, length, near, far] of f.pairs) {
    pairsOf[t].set(sink, { value, count, share, bound, start, length, cuts: [near, far || near], one: !far });
  }
  const own = f.scores.map(floats);
  return {
    ...f, pairsOf,
    edgeIndex: new Uint32Array(bytes(f.edgeIndex)),
    edgeCapacity: new (f.unit === 1 ? Float32Array : Uint16Array)(bytes(f.edgeCapacity)),
    residual: new Float32Array(bytes(f.residual)),
    flowEdges: new (f.wide ? Uint32Array : Uint16Array)(bytes(f.flowEdges)),
    flowValues: new (f.unit === 1 ? Float32Array : Uint16Array)(bytes(f.flowValues)),
    outputAt: new Map(f.outputs.map(([layer, row], t) => [`${layer},${row}`, t])),
    methods: f.methods.map((m) => ({ ...m, scores: (m.fixed ? fixedScores : own)[m.at] })),
  };
}

useFusion(0);

/** An edge of the page's table: from node i at height h + 1 to node k at height h. */
function edge(id) {
  const at = F.edgeIndex[id];
  const h = Math.floor(at / (n * n));
  const i = Math.floor(at / n) % n;
  const k = at % n;
  return { id, h, i, k, capacity: F.edgeCapacity[id] / F.unit, kind: kindOf(h, i, k) };
}

function kindOf(h, i, k) {
  if (i === k) return "residual";
  return D.levels[h][0] === "cross" ? "cross" : "flow";
}

/** Scores of the output by one method, or null where it has none for this output. */
function scoresOf(t, m, units) {
  const { scores, fixed } = F.methods[m];
  const width = units.names.length;
  const start = fixed ? 0 : t * width;
  const out = (scores[units.part] || scores[0]).subarray(start, start + width);
  return out.every(Number.isNaN) ? null : out;
}

/** Ranks from 1, highest score first; equal scores share the better rank. */
function ranksOf(scores, shown) {
  const order = shown.filter((j) => !Number.isNaN(scores[j])).sort((a, b) => scores[b] - scores[a]);
  const ranks = new Map();
  order.forEach((j, r) => ranks.set(j, r && scores[order[r - 1]] === scores[j] ? ranks.get(order[r - 1]) : r + 1));
  return ranks;
}

/** The highest score among those shown, by which bars and tints are scaled; the first token may be left out. */
function highest(scores, shown) {
  let top = 0;
  for (const j of shown) if ((S.scaleFirst || j > 0) && Math.abs(scores[j]) > top) top = Math.abs(scores[j]);
  return top || 1;
}

function bestInput(t) {
  const scores = scoresOf(t, F.flow, PER_TOKEN);
  let best = -1;
  scores.forEach((s, j) => {
    if ((S.special || !D.special[j]) && (best < 0 || s > scores[best])) best = j;
  });
  return Math.max(best, 0);
}

const S = {
  output: 0, sink: 0, special: true, scaleFirst: true, words: false, share: 0.95, cut: 0, capacity: true,
  low: 0, high: Math.max(...D.towers.map((tower) => Math.max(...tower.rise))), method: F.flow, playing: null, fusion: 0,
};

/** Edges whose rows do not sum to one are in units of the output, so that their numbers may be small. */
const tiny = (x) => F.unit === 1 && x !== 0 && Math.abs(x) < 0.1;
const fixed = (x, digits = 4) => (tiny(x) ? x.toExponential(digits - 1) : x.toFixed(digits));
const letters = (text) => Array.from(new Intl.Segmenter().segment(text), (part) => part.segment);
const clipped = (text, most = 14) => (letters(text).length > most ? `${letters(text).slice(0, most - 1).join("")}…` : text);
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
