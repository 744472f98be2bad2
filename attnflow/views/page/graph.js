/** The layered graph: tokens from left to right, levels from the bottom up. */

const TOP = 30;
const LABEL = 26; // from the lowest nodes down to the names of the inputs
let G = null; // the current layout

function units() {
  return S.words && PER_WORD ? PER_WORD : PER_TOKEN;
}

function shownColumns() {
  const shown = [];
  for (let j = 0; j < n; j++) if (S.special || !D.special[j]) shown.push(j);
  return shown;
}

function towerOf(j) {
  return D.towers.find((tower) => j >= tower.first && j < tower.first + tower.count);
}

function roomForGraph() {
  const [figure, side] = [byId("figure"), byId("side")];
  const beside = !side.hidden && getComputedStyle(figure).display === "flex";
  return figure.clientWidth - (beside ? side.offsetWidth + 8 : 0);
}

/** The columns of the graph: the chosen output keeps its own, also where special tokens are hidden. */
function graphColumns() {
  const own = D.firstRow + F.outputs[S.output][1];
  const out = [];
  for (let j = 0; j < n; j++) if (S.special || !D.special[j] || j === own) out.push(j);
  return out;
}

/** Positions of all nodes; columns of hidden tokens have none. */
function layout() {
  const shown = graphColumns();
  const gap = D.towers.length > 1 ? 96 : 0;
  const narrow = innerWidth < 560;
  const [left, right] = narrow ? [82, 14] : [104, 84];
  const room = roomForGraph() - left - gap - right;
  const column = Math.max(7, Math.min(104, Math.floor(room / shown.length)));
  const x = new Map();
  let at = left + column / 2;
  shown.forEach((j, c) => {
    if (c && towerOf(j) !== towerOf(shown[c - 1])) at += gap;
    x.set(j, at);
    at += column;
  });
  const levels = S.high - S.low;
  const row = Math.max(22, Math.min(58, Math.floor(540 / Math.max(levels, 1))));
  const bottom = TOP + levels * row;
  const longest = Math.max(...shown.map((j) => letters(clipped(D.tokens[j])).length), 3);
  const slanted = longest * 7.6 + 8 > column;
  const label = slanted ? LABEL + longest * 5.6 : LABEL + 8;
  return {
    shown, x, column, row, bottom, slanted, label, left, end: at - column / 2,
    width: at - column / 2 + right,
    foot: bottom + label + (S.words && PER_WORD ? 16 : 0),
    rise: (h, j) => towerOf(j).rise[h],
    y(h, j) {
      const rise = towerOf(j).rise[h];
      return rise < S.low || rise > S.high ? null : bottom - (rise - S.low) * row;
    },
  };
}

function point(h, j) {
  const x = G.x.get(j);
  const y = G.y(h, j);
  return x === undefined || y === null ? null : [x, y];
}

function ends(e) {
  const from = point(e.h + 1, e.i);
  const to = point(e.h, e.k);
  return from && to ? [from, to] : null;
}

/** The strongest edges of the chosen flow that together carry the wanted share of it. */
function flowShown(pair) {
  if (!pair) return { edges: [], share: 0 };
  if (pair.computed) return computedShown(pair);
  let total = 0;
  for (let e = 0; e < pair.length; e++) total += F.flowValues[pair.start + e];
  const all = total / pair.share;
  const edges = [];
  let sum = 0;
  for (let e = 0; e < pair.length && sum < S.share * all * (1 - 1e-9); e++) {
    const flow = F.flowValues[pair.start + e];
    sum += flow;
    edges.push({ ...edge(F.flowEdges[pair.start + e]), flow: flow / F.unit });
  }
  return { edges, share: all ? Math.min(1, sum / all) : 0 };
}

/** The same for a flow that was computed in the page. */
function computedShown(pair) {
  let sum = 0;
  const edges = [];
  for (const e of pair.edges) {
    if (sum >= S.share * pair.sum * (1 - 1e-9)) break;
    sum += e.flow;
    edges.push(e);
  }
  return { edges, share: pair.sum ? Math.min(1, sum / pair.sum) : 0 };
}

function drawGraph() {
  G = layout();
  const svg = byId("graph");
  svg.replaceChildren();
  const pair = pairOf(S.output, S.sink);
  const run = flowShown(pair);
  drawLevels(svg);
  drawEdges(svg, run);
  drawLevelNames(svg);
  drawNodes(svg, run);
  drawInputs(svg);
  if (pair) drawCut(svg, pair);
  const height = drawBars(svg);
  svg.setAttribute("width", G.width);
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${G.width} ${height}`);
  return { pair, run };
}

function levelName(tower, rise) {
  if (rise === 0) return tower.name === "decoder" ? "outputs so far" : "input";
  const h = tower.rise.indexOf(rise);
  const [kind, layer] = D.levels[h - 1];
  return kind === "decoder" ? `layer ${layer} self` : kind === "cross" ? `layer ${layer} cross` : `layer ${layer}`;
}

/** Calls back with each tower, a level of it that is shown, and the box that its nodes lie in. */
function eachLevel(act) {
  for (const tower of D.towers) {
    const columns = G.shown.filter((j) => towerOf(j) === tower);
    if (!columns.length) continue;
    const [left, right] = [G.x.get(columns[0]) - G.column / 2, G.x.get(columns.at(-1)) + G.column / 2];
    for (let rise = S.low; rise <= Math.min(S.high, tower.rise.at(-1)); rise++) {
      act(tower, rise, left, right, G.bottom - (rise - S.low) * G.row);
    }
  }
}

function drawLevels(svg) {
  const group = draw(svg, "g", { "aria-hidden": "true" });
  eachLevel((tower, rise, x1, x2, y) => draw(group, "line", { class: "rule", x1, x2, y1: y, y2: y }));
}

function drawLevelNames(svg) {
  const group = draw(svg, "g", { "aria-hidden": "true" });
  eachLevel((tower, rise, left, right, y) => {
    if (rise === S.low && tower.name) {
      const top = G.bottom - (Math.min(S.high, tower.rise.at(-1)) - S.low) * G.row;
      draw(group, "text", { class: "tower", x: (left + right) / 2, y: top - 17, "text-anchor": "middle" }, tower.name);
    }
    draw(group, "text", { class: "soft", x: left - 8, y: y + 4, "text-anchor": "end" }, levelName(tower, rise));
    drawGap(group, tower, rise, left, y);
  });
}

/** Layers without attention leave a gap in the numbers; it is marked, as a reader would take it for a mistake. */
function drawGap(group, tower, rise, left, y) {
  const at = tower.rise.indexOf(rise);
  if (rise < 1 || D.levels[at - 1][0] === "cross" || tower.name === "decoder") return;
  const before = rise > 1 ? D.levels[at - 2][1] : -1;
  const missing = D.levels[at - 1][1] - before - 1;
  if (missing < 1 || rise === S.low) return;
  const text = missing === 1 ? `⋮ ${before + 1} has none` : `⋮ ${before + 1}–${before + missing} have none`;
  draw(group, "text", { class: "soft rank", x: left - 8, y: y + G.row / 2 + 3, "text-anchor": "end" }, text);
}

function drawEdges(svg, run) {
  // Gradient edges carry little beside a residual of one: there the widest flow sets the scale, not the widest pipe.
  const small = F.unit === 1;
  const widest = small ? Math.max(...run.edges.map((e) => e.flow), 1e-12) : Math.max(...run.edges.map((e) => e.capacity), 0.05);
  const most = Math.min(11, G.column * 0.45);
  const scale = most / widest;
  const line = (parent, e, cls, width) => {
    const both = ends(e);
    if (!both) return null;
    const [[x1, y1], [x2, y2]] = both;
    return draw(parent, "line", { class: cls, x1, y1, x2, y2, "stroke-width": Math.max(width, 0.4).toFixed(2) });
  };
  const pale = draw(svg, "g", { id: "capacities", "aria-hidden": "true" });
  if (S.capacity) for (const e of capacitiesShown(run)) line(pale, e, "pale", Math.min(e.capacity * scale, 1.6 * most));
  const flows = draw(svg, "g", { id: "flows", "aria-hidden": "true" });
  for (const e of run.edges) line(flows, e, `run ${e.kind}`, e.flow * scale);
  const hits = draw(svg, "g", { id: "hits", "aria-hidden": "true" });
  for (const e of run.edges.slice().reverse()) {
    const hit = line(hits, e, "hit", 9);
    if (hit) hit.addEventListener("pointermove", (event) => showTip(event, edgeText(e)));
  }
}

/** The pipes of the network below the output: those in use, and in a small network all others. */
function capacitiesShown(run) {
  const used = new Set(run.edges.map((e) => (e.h * n + e.i) * n + e.k));
  const top = D.tops[F.outputs[S.output][0]];
  const row = D.firstRow + F.outputs[S.output][1];
  const out = run.edges.slice();
  if (!F.whole) return out;
  for (let id = 0; id < F.edgeIndex.length; id++) {
    if (used.has(F.edgeIndex[id])) continue;
    const e = edge(id);
    if (e.h < top && (e.h < top - 1 || e.i === row)) out.push(e);
  }
  return out;
}

function edgeText(e) {
  const [tower, layer] = D.levels[e.h];
  const place = tower === "self" ? "" : ` ${tower}`;
  const lines = [
    `layer ${layer}${place}: ${D.tokens[e.i]} → ${D.tokens[e.k]}`,
    `flow ${fixed(e.flow)} of capacity ${fixed(e.capacity)}`,
  ];
  const own = F.residual[e.h * n + e.i];
  if (e.kind === "residual" && own > 0) {
    lines.push(`capacity: ${fixed(own)} residual + ${fixed(Math.max(0, e.capacity - own))} attention`);
  }
  return lines.join("\n");
}

function drawNodes(svg, run) {
  const busy = new Set();
  for (const e of run.edges) busy.add(`${e.h + 1},${e.i}`).add(`${e.h},${e.k}`);
  const radius = Math.max(2.5, Math.min(7, G.column / 4, G.row / 5));
  const dots = draw(svg, "g", { "aria-hidden": "true" });
  const grid = draw(svg, "g", { role: "grid", "aria-label": "Outputs: rows are layers, columns positions", id: "grid" });
  for (let h = D.levels.length; h >= 0; h--) {
    const layer = D.tops.indexOf(h);
    const cells = layer < 0 ? null : draw(grid, "g", { role: "row", "aria-label": `layer ${D.layers[layer]}` });
    for (const j of G.shown) {
      const at = point(h, j);
      // A level that only hands a tower on is drawn once.
      if (!at || (h && G.rise(h, j) === G.rise(h - 1, j))) continue;
      const t = layer < 0 ? undefined : F.outputAt.get(`${layer},${j - D.firstRow}`);
      drawNode(t === undefined ? dots : cells, at, radius, t, busy.has(`${h},${j}`), h === 0 && j === S.sink);
    }
  }
}

function drawNode(parent, [x, y], radius, t, busy, isSink) {
  const chosen = t === S.output;
  const cls = `node${busy ? " on" : ""}${chosen ? " chosen" : ""}${t === undefined && !busy ? " off" : ""}`;
  const node = draw(parent, "g", { class: cls });
  draw(node, "circle", { cx: x, cy: y, r: t === undefined && !busy ? radius / 2 : radius });
  if (chosen) draw(node, "circle", { class: "ring", cx: x, cy: y, r: radius + 3.5 });
  if (isSink) draw(node, "rect", { class: "ring", x: x - radius - 3, y: y - radius - 3, width: 2 * radius + 6, height: 2 * radius + 6 });
  if (t === undefined) return;
  const [layer, row] = F.outputs[t];
  node.setAttribute("role", "gridcell");
  node.setAttribute("tabindex", chosen ? 0 : -1);
  node.setAttribute("aria-selected", chosen);
  node.setAttribute("aria-label", `output ${D.queries[row]}, position ${row}, layer ${D.layers[layer]}`);
  node.dataset.output = t;
  node.addEventListener("click", () => chooseOutput(t, true));
  node.addEventListener("pointermove", (event) => showTip(event, `output ${D.queries[row]} at layer ${D.layers[layer]}${D.predicts ? `\nwhich predicts ${D.predicts[row]}` : ""}`));
}

function drawInputs(svg) {
  const list = draw(svg, "g", { role: "listbox", "aria-label": "Inputs", "aria-orientation": "horizontal", id: "inputs" });
  const y = G.bottom + LABEL;
  for (const [c, j] of shownColumns().entries()) {
    const x = G.x.get(j);
    const chosen = j === S.sink;
    const item = draw(list, "g", { role: "option", tabindex: chosen ? 0 : -1, "aria-selected": chosen, "aria-label": `input ${D.tokens[j]}, position ${j}` });
    item.dataset.column = j;
    const cls = `token${D.special[j] ? " special" : ""}`;
    const turn = G.slanted ? { transform: `rotate(-50 ${x + 3} ${y})`, "text-anchor": "end", x: x + 3 } : { "text-anchor": "middle", x };
    if (!G.slanted) draw(item, "rect", { x: x - G.column / 2 + 2, y: y - 14, width: G.column - 4, height: 20, rx: 4 });
    // Where columns are narrower than a line of text, every second or third name has to do, and the chosen one.
    if (chosen || c % Math.ceil(13 / G.column) === 0) draw(item, "text", { class: cls, y, ...turn }, clipped(D.tokens[j]));
    else draw(item, "rect", { class: "blank", x: x - G.column / 2, y: y - 14, width: G.column, height: 20 });
    item.addEventListener("click", () => chooseInput(j, true));
    linkHover(item, [j], D.tokens[j]);
  }
  if (S.words && PER_WORD) drawBrackets(list);
}

function drawBrackets(parent) {
  const y = G.bottom + G.label + 2;
  for (const members of PER_WORD.members) {
    const shown = members.filter((j) => G.x.has(j));
    if (shown.length < 2) continue;
    const [x1, x2] = [G.x.get(shown[0]) - G.column * 0.4, G.x.get(shown.at(-1)) + G.column * 0.4];
    draw(parent, "path", { class: "bracket", d: `M${x1} ${y - 4}V${y}H${x2}V${y - 4}` });
  }
}

/** A dashed line through the edges that the minimum cut severs, layer by layer, with its value at the end. */
function drawCut(svg, pair) {
  const group = draw(svg, "g", { id: "cut", "aria-hidden": "true" });
  const steps = new Map();
  for (const cut of pair.cuts[S.cut]) {
    const e = pair.computed ? cut : edge(cut);
    const both = ends(e);
    if (!both) continue;
    const [[x1, y1], [x2, y2]] = both;
    if (!steps.has(e.h)) steps.set(e.h, []);
    steps.get(e.h).push([(x1 + x2) / 2, (y1 + y2) / 2]);
  }
  let end = null;
  for (const marks of steps.values()) {
    const last = drawCutLine(group, marks, pair.cuts[S.cut].length <= 60);
    if (!end || last[0] > end[0]) end = last;
  }
  if (!end) return;
  const inside = end[0] + 78 > G.width;
  const place = inside ? { x: G.width - 4, y: end[1] - 9, "text-anchor": "end" } : { x: end[0] + 5, y: end[1] + 4 };
  draw(group, "text", { class: "cut-text", ...place }, `cut ${fixed(pair.value)}`);
}

function drawCutLine(group, marks, ticks) {
  marks.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const [first, last] = [marks[0], marks.at(-1)];
  const path = `M${first[0] - 12} ${first[1]}L${marks.map((p) => p.join(" ")).join("L")}L${last[0] + 12} ${last[1]}`;
  draw(group, "path", { class: "cut-halo", d: path });
  draw(group, "path", { class: "cut-line", d: path });
  if (ticks) for (const [x, y] of marks) draw(group, "line", { class: "cut-tick", x1: x, x2: x, y1: y - 5, y2: y + 5 });
  return [last[0] + 12, last[1]];
}
