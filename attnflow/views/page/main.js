/** Choices, keys and the words that go with the picture. */

function redraw(focus = null) {
  const { pair, run } = drawGraph();
  drawCurves();
  drawText();
  drawMaps();
  drawTable();
  drawWords(pair, run);
  syncControls(pair);
  if (focus) byId("graph").querySelector(focus)?.focus({ preventScroll: false });
}

function chooseOutput(t, focus = false) {
  S.output = t;
  S.sink = bestInput(t);
  hideTip();
  redraw(focus ? "[role=gridcell][aria-selected=true]" : null);
}

function chooseInput(j, focus = false) {
  S.sink = j;
  hideTip();
  redraw(focus ? "[role=option][aria-selected=true]" : null);
}

function drawWords(pair, run) {
  const [layer, row] = F.outputs[S.output];
  const state = byId("state");
  const said = [KINDS.length > 1 || F.edges !== "attention" ? `${F.edges} edges` : "", fusionsOf(F.edges).length > 1 ? `${F.name.startsWith("head") ? "" : "heads: "}${F.name}` : ""];
  const heads = said.some(Boolean) ? ` (${said.filter(Boolean).join("; ")})` : "";
  const predicts = D.predicts ? [" (which predicts ", name(D.predicts[row]), ")"] : [];
  state.replaceChildren("Output ", name(D.queries[row]), ...predicts, ` at layer ${D.layers[layer]} draws on input `, name(D.tokens[S.sink]), `${heads}: flow `);
  const value = pair ? pair.value : scoresOf(S.output, F.flow, PER_TOKEN)[S.sink];
  state.append(make("strong", { id: "value" }, fixed(value)));
  if (pair?.computed) state.dataset.carried = pair.carried;
  else delete state.dataset.carried;
  if (pair) {
    const cut = pair.cuts[S.cut].length;
    state.append(", ", term("minimum cut"), " ", make("strong", { id: "cut-value" }, fixed(pair.value)));
    state.append(` through ${cut} ${cut === 1 ? "edge" : "edges"}.`);
  } else {
    state.append(". The edges of this pair are not on this page.");
  }
  byId("share-out").textContent = pair ? `shows ${percent(run.share)} of flow, ${grouped(run.edges.length)} of ${grouped(pair.count)} edges` : "";
  byId("badges").replaceChildren(...badges(pair));
}

/** What the words of this page mean; shown on hover and on focus. */
const TERMS = {
  output: "What a layer made of one token: a dot in the graph. Choose the one whose origin you want to see.",
  input: "A token as the model was given it, at the bottom of the graph.",
  flow: "How much of the output can have come from this input, if attention weights are the widths of pipes: the maximum flow between the two.",
  capacity: "The width of a pipe: the attention weight from one token to another, with its share of the residual connection. No more than this can pass.",
  "minimum cut": "The bottleneck: the narrowest set of pipes between output and input. Its width is the flow, so nothing more can pass.",
  saturated: "The bottleneck lies at the very end of the graph. The number is then fixed by that end alone, and layers between say nothing.",
  level: "A row of dots: the inputs at the bottom, then the outputs of each layer. Choose which rows are drawn.",
  residual: "The path by which a token keeps its own state past attention.",
  edges: "What a layer's matrix holds: attention weights, or what the layer really mixes (norm, alti, value zeroing), or what gradients say.",
  heads: "A layer computes several attention matrices side by side. This says how they are brought down to one.",
  "special tokens": "Tokens that the tokenizer added, such as [CLS], </s> or the marks of a chat. They often hold much of the attention and are no words.",
  scale: "The first token often takes most of the attention. Leave it out of the scale to see the others; its bar is then cut off at the top.",
  informative: "Scores can be right as computed and say nothing about this text: where nearly all is on the first token, where they follow the position alone, or where every output has the same ranking.",
};

function term(word) {
  return make("span", { "data-term": word }, word);
}

function explainTerms() {
  for (const element of document.querySelectorAll("[data-term]")) {
    if (!element.closest("label, summary, button")) element.setAttribute("tabindex", 0);
  }
  const say = (event) => {
    const found = event.target.closest?.("[data-term]");
    if (!found) return;
    const box = found.getBoundingClientRect();
    showTip({ clientX: event.clientX || box.left, clientY: event.clientY || box.bottom }, TERMS[found.dataset.term]);
  };
  document.addEventListener("pointerover", say);
  document.addEventListener("focusin", (event) => { if (event.target.matches?.("[data-term]:focus-visible")) say(event); });
  for (const type of ["pointerout", "focusout"]) {
    document.addEventListener(type, (event) => { if (event.target.closest?.("[data-term]")) hideTip(); });
  }
}

function foldControls() {
  byId("fold").addEventListener("click", () => {
    const open = byId("controls").classList.toggle("open");
    byId("fold").setAttribute("aria-expanded", open);
    byId("fold").textContent = open ? "Fewer choices" : "More choices";
  });
}

const name = (text) => make("b", { class: "token" }, text);

function badges(pair) {
  const out = [];
  const add = (text, loud = false, about = "") => out.push(make("span", { class: `badge${loud ? " loud" : ""}`, ...(about ? { "data-term": about, tabindex: 0 } : {}) }, text));
  if (pair?.bound === "input") add("saturated: the flow equals the input's capacity at the first layer, whatever the output", true, "saturated");
  if (pair?.bound === "output") add("saturated: all that the output can draw reaches this input", true, "saturated");
  if (pair?.bound === "between") add("the bottleneck lies between input and output");
  if (pair?.computed && !F.whole) add(`computed here, from the ${F.capacities.gaps ? "strongest " : ""}capacities on this page: the edges carry ${fixed(pair.carried)} of ${fixed(pair.value)}`);
  if (pair && !pair.one) add("the bottleneck is not unique: two cuts have this value");
  if (D.special.some(Boolean)) {
    const shares = F.methods.map((m, i) => `${labelOf(m.name)} ${percent(F.shares[S.output][i])}`);
    add(`special tokens${S.special ? "" : " (hidden)"} hold: ${shares.join(", ")}`);
  }
  return out;
}

function option(select, value, text) {
  select.append(make("option", { value }, text));
}

/** Fill the lists anew: which outputs, inputs and levels there are depends on the choices. */
function syncControls(pair) {
  const [layer, row] = F.outputs[S.output];
  const [layers, positions, inputs] = ["layer", "position", "input"].map(byId);
  for (const select of [layers, positions, inputs]) select.replaceChildren();
  D.layers.forEach((number, l) => {
    if (F.outputs.some(([a]) => a === l)) option(layers, l, number);
  });
  D.queries.forEach((name, p) => {
    if (F.outputAt.has(`${layer},${p}`)) option(positions, p, `${p}  ${name}`);
  });
  for (const j of shownColumns()) option(inputs, j, `${j}  ${D.tokens[j]}`);
  layers.value = layer;
  positions.value = row;
  inputs.value = S.sink;
  byId("cut-label").hidden = !pair || pair.one;
  const same = fusionsOf(F.edges);
  byId("fusion").replaceChildren();
  for (const f of same) option(byId("fusion"), f, D.fusions[f].name);
  byId("fusion").value = S.fusion;
  byId("fusion").disabled = same.length === 1;
  byId("one-fusion").hidden = same.length > 1;
  byId("one-fusion").textContent = F.name === "together" ? "these edges hold all heads" : "the others were not kept";
  byId("edges").value = F.edges;
  byId("method").replaceChildren();
  F.methods.forEach((method, m) => option(byId("method"), m, labelOf(method.name)));
  byId("method").value = S.method;
  byId("informative").querySelector("ul").replaceChildren(...F.informative.map((line) => make("li", {}, line)));
  byId("about").replaceChildren(...F.about.flatMap((line) => [line, make("br")]).slice(0, -1));
}

function fillLevels() {
  const top = Math.max(...D.towers.map((tower) => tower.rise.at(-1)));
  for (const id of ["low", "high"]) {
    for (let rise = 0; rise <= top; rise++) {
      option(byId(id), rise, rise && D.towers.length === 1 ? D.levels[rise - 1][1] : rise ? `level ${rise}` : "input");
    }
  }
  byId("low").value = 0;
  byId("high").value = top;
}

function on(id, type, act) {
  byId(id).addEventListener(type, (event) => {
    act(event.target);
    redraw();
  });
}

function connect() {
  on("layer", "change", (e) => moveTo(Number(e.value), F.outputs[S.output][1]));
  on("position", "change", (e) => moveTo(F.outputs[S.output][0], Number(e.value)));
  on("input", "change", (e) => { S.sink = Number(e.value); });
  on("fusion", "change", (e) => chooseFusion(Number(e.value)));
  on("edges", "change", (e) => chooseEdges(e.value));
  on("share", "input", (e) => { S.share = e.value / 100; });
  on("capacity", "change", (e) => { S.capacity = e.checked; });
  on("cut", "change", (e) => { S.cut = Number(e.value); });
  on("scale-first", "change", (e) => { S.scaleFirst = e.checked; });
  on("words", "change", (e) => { S.words = e.checked; });
  on("method", "change", (e) => { S.method = Number(e.value); });
  on("special", "change", (e) => {
    S.special = e.checked;
    if (!S.special && D.special[S.sink]) S.sink = bestInput(S.output);
  });
  on("low", "change", (e) => { S.low = Math.min(Number(e.value), S.high - 1); e.value = S.low; });
  on("high", "change", (e) => { S.high = Math.max(Number(e.value), S.low + 1); e.value = S.high; });
  byId("play").addEventListener("click", togglePlay);
  byId("save").addEventListener("click", saveSvg);
  byId("save-png").addEventListener("click", savePng);
  byId("theme").addEventListener("click", switchTheme);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", keys);
  document.addEventListener("scroll", hideTip, true);
  byId("graph").addEventListener("pointerleave", hideTip);
  window.addEventListener("resize", () => redraw());
}

/** The kinds of edges that were computed, and where the fusions of one of them stand. */
const KINDS = [...new Set(D.fusions.map((fusion) => fusion.edges))];
const fusionsOf = (edges) => D.fusions.flatMap((fusion, f) => (fusion.edges === edges ? [f] : []));

/** Other edges: with the same heads, where they are there. */
function chooseEdges(edges) {
  const those = fusionsOf(edges);
  chooseFusion(those.find((f) => D.fusions[f].name === F.name) ?? those[0]);
}

/** Other heads: the same output and input, where the page has them for these heads. */
function chooseFusion(index) {
  const [layer, row] = F.outputs[S.output];
  const [sink, method] = [S.sink, F.methods[S.method].name];
  S.fusion = index;
  useFusion(index);
  S.output = 0;
  moveTo(layer, row);
  S.sink = sink;
  S.method = Math.max(0, F.methods.findIndex((m) => m.name === method));
}

/** The output at (layer, position), or the nearest layer at which this position is one. */
function moveTo(layer, row) {
  let best = S.output;
  let least = Infinity;
  F.outputs.forEach(([l, r], t) => {
    const away = Math.abs(l - layer) * 1000 + Math.abs(r - row);
    if (away < least) [best, least] = [t, away];
  });
  S.output = best;
  S.sink = bestInput(best);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("select, input, textarea");
  if (event.key === "l" && !typing) return togglePlay();
  if (event.key === "s" && !typing) return saveSvg();
  if (event.key === "p" && !typing) return savePng();
  const next = { h: fusionsOf(F.edges).length, e: KINDS.length }[event.key];
  if (next > 1 && !typing) {
    const same = fusionsOf(F.edges);
    if (event.key === "h") chooseFusion(same[(same.indexOf(S.fusion) + 1) % same.length]);
    else chooseEdges(KINDS[(KINDS.indexOf(F.edges) + 1) % KINDS.length]);
    return redraw(event.target.closest("#grid") ? "[role=gridcell][aria-selected=true]" : null);
  }
  const inputs = event.target.closest("#inputs");
  if (!inputs && !event.target.closest("#grid")) return;
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
  if (!move) return;
  event.preventDefault();
  if (inputs || event.shiftKey) return moveInput(move[1], Boolean(inputs));
  step(...move);
}

/** From one output to the next in a direction, over positions that are none. */
function step(up, right) {
  let [layer, row] = F.outputs[S.output];
  while (layer >= 0 && layer < D.layers.length && row >= 0 && row < D.queries.length) {
    [layer, row] = [layer + up, row + right];
    const t = F.outputAt.get(`${layer},${row}`);
    if (t !== undefined && G.x.has(row + D.firstRow)) return chooseOutput(t, true);
  }
}

function moveInput(by, focus) {
  const shown = shownColumns();
  const next = shown[shown.indexOf(S.sink) + by];
  if (!by || next === undefined) return;
  S.sink = next;
  redraw(focus ? "[role=option][aria-selected=true]" : "[role=gridcell][aria-selected=true]");
}

/** Let the output climb from the lowest layer to the highest. */
function togglePlay() {
  const button = byId("play");
  if (S.playing) {
    clearInterval(S.playing);
    S.playing = null;
  } else {
    const row = F.outputs[S.output][1];
    const steps = D.layers.map((_, l) => F.outputAt.get(`${l},${row}`)).filter((t) => t !== undefined);
    chooseOutput(steps.shift());
    S.playing = setInterval(() => (steps.length ? chooseOutput(steps.shift()) : togglePlay()), 900);
  }
  button.setAttribute("aria-pressed", Boolean(S.playing));
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 6)}px`;
  tip.style.top = `${event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** Hovering over an input marks it everywhere; it never changes what is chosen. */
function linkHover(element, columns, text) {
  element.dataset.columns = ` ${columns.join(" ")} `;
  const mark = (state) => {
    for (const j of columns) {
      for (const other of document.querySelectorAll(`[data-columns*=" ${j} "]`)) other.classList.toggle("hover", state);
    }
  };
  element.addEventListener("pointerenter", () => mark(true));
  element.addEventListener("pointerleave", () => { mark(false); hideTip(); });
  if (text !== null) element.addEventListener("pointermove", (event) => showTip(event, text));
}

function start() {
  byId("wait").hidden = true;
  byId("app").hidden = false;
  byId("side").hidden = !F.curves.length;
  S.sink = bestInput(0);
  byId("words-label").hidden = !PER_WORD;
  byId("special").closest("label").hidden = !D.special.some(Boolean);
  byId("picture").hidden = !D.image;
  byId("in-text").hidden = Boolean(D.image);
  byId("cross-key").hidden = D.towers.length === 1;
  KINDS.forEach((edges) => option(byId("edges"), edges, edges));
  byId("edges").closest("fieldset").hidden = KINDS.length === 1 && KINDS[0] === "attention";
  byId("edges").disabled = KINDS.length === 1;
  Object.assign(S, D.start || {});
  byId("words").checked = S.words;
  byId("special").checked = S.special;
  if (!S.special && D.special[S.sink]) S.sink = bestInput(0);
  byId("informative").open = F.informative.some((line) => line.includes("careful"));
  fillLevels();
  foldControls();
  connect();
  redraw();
  explainTerms();
  performance.mark("attnflow-drawn");
  document.documentElement.dataset.ready = "yes";
}

start();
