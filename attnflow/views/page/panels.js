/** What stands beside and below the graph: bars, curves, text, picture, table. */

const BAR = 44;
const LABELS = { blankout: "blank-out" };
const COLOURS = ["var(--first)", "var(--second)", "var(--third)", "var(--fourth)"];

/** The flow has the colour of the graph, methods that score the inputs as such have one, the others one each. */
function colourOf(name) {
  const at = F.methods.findIndex((m) => m.name === name);
  if (at === F.flow) return "var(--flow)";
  if (at < 0 || F.methods[at].fixed) return "var(--other)";
  return COLOURS[F.methods.slice(0, at).filter((m, i) => i !== F.flow && !m.fixed).length % COLOURS.length];
}

const labelOf = (name) => LABELS[name] || name;

function unitsShown(u) {
  const shown = [];
  u.names.forEach((_, g) => {
    if (S.special || !u.special[g]) shown.push(g);
  });
  return shown;
}

/** One row of bars per method, each scaled to its own highest score, under the tokens of the graph. */
function drawBars(svg) {
  const u = units();
  const shown = unitsShown(u);
  const group = draw(svg, "g", { id: "bars", "aria-hidden": "true" });
  let y = G.foot + 20;
  F.methods.forEach((method, m) => {
    drawBarRow(group, u, shown, method, m, y);
    y += BAR + 18;
  });
  return y;
}

function drawBarRow(group, u, shown, method, m, y) {
  const scores = scoresOf(S.output, m, u);
  const base = method.signed ? y + BAR / 2 : y + BAR;
  draw(group, "line", { class: "rule", x1: G.left, x2: G.end, y1: base, y2: base });
  draw(group, "text", { x: G.left - 8, y: y + BAR / 2 + 2, "text-anchor": "end" }, labelOf(method.name));
  if (!scores) {
    draw(group, "text", { class: "soft", x: G.left + 6, y: y + BAR / 2 + 2 }, "no score for this output");
    return;
  }
  const top = highest(scores, shown);
  draw(group, "text", { class: "soft rank", x: G.left - 8, y: y + BAR / 2 + 15, "text-anchor": "end" }, `highest ${fixed(top, top < 10 ? 3 : 1)}`);
  const ranks = ranksOf(scores, shown);
  for (const g of shown) drawBar(group, u, g, method, scores[g], scores[g] / top, ranks, base, method.signed ? BAR / 2 : BAR);
}

function drawBar(group, u, g, method, score, part, ranks, base, most) {
  const columns = u.members[g].filter((j) => G.x.has(j));
  if (!columns.length || Number.isNaN(score)) return;
  const [left, right] = [G.x.get(columns[0]), G.x.get(columns.at(-1))];
  const width = Math.min(34, G.column * 0.62) + right - left;
  const height = Math.max(Math.min(1, Math.abs(part)) * most, 0.6);
  const x = (left + right - width) / 2;
  const chosen = columns.includes(S.sink);
  const bar = draw(group, "rect", { class: "level", x, width, y: score < 0 ? base : base - height, height, fill: score < 0 ? "var(--residual)" : colourOf(method.name) });
  bar.dataset.columns = ` ${columns.join(" ")} `;
  if (chosen) draw(group, "rect", { x: x - 2, width: width + 4, y: base + (score < 0 ? -3 : 1), height: 2, fill: "var(--ink)" });
  const rank = ranks.get(g);
  if (G.column >= 24 || rank <= 3) {
    const top = score < 0 ? base - 2 : base - height - 2;
    draw(group, "text", { class: "rank", x: (left + right) / 2, y: top, "text-anchor": "middle" }, rank);
  }
  // A low bar is hard to hit: the whole height answers.
  const area = draw(group, "rect", { class: "bar", x: left - G.column / 2, width: right - left + G.column, y: base - most, height: method.signed ? 2 * most : most });
  area.addEventListener("click", () => chooseInput(columns[0], true));
  linkHover(area, columns, `${u.names[g]}\n${labelOf(method.name)} ${fixed(score)}, rank ${rank}`);
}

/** Correlation with gradients and blank-out: the layers are those of the graph, on the same heights. */
function drawCurves() {
  if (!F.curves.length) return;
  const svg = byId("curves");
  svg.replaceChildren();
  const [left, width] = [16, 190];
  const x = (value) => left + ((value + 1) / 2) * width;
  const y = (layer) => G.y(D.tops[D.layers.indexOf(layer)], D.firstRow);
  for (const value of [-1, -0.5, 0, 0.5, 1]) {
    draw(svg, "line", { class: "rule", x1: x(value), x2: x(value), y1: TOP, y2: G.bottom });
    draw(svg, "text", { class: "soft rank", x: x(value), y: G.bottom + 14, "text-anchor": "middle" }, String(value).replace("-", "−"));
  }
  const current = y(D.layers[F.outputs[S.output][0]]);
  if (current !== null) draw(svg, "line", { class: "cut-tick", x1: left, x2: left + width, y1: current, y2: current, "stroke-opacity": 0.3 });
  draw(svg, "text", { class: "tower", x: left, y: TOP - 17 }, "rank correlation by layer");
  F.curves.forEach((curve) => drawCurve(svg, curve, x, y));
  svg.setAttribute("width", left * 2 + width);
  svg.setAttribute("height", G.bottom + 20);
  svg.setAttribute("aria-label", curvesInWords());
  drawCurvesKey();
}

const references = [...new Set(D.fusions[0].curves.map((c) => c[1]))];
const dashOf = (reference) => ["none", "5 3", "2 2", "8 3 2 3"][references.indexOf(reference) % 4];

function drawCurve(svg, [method, reference, , layers, values], x, y) {
  const points = layers.map((layer, l) => [values[l], y(layer), layer]).filter(([v, at]) => v !== null && at !== null);
  const colour = colourOf(method);
  const path = points.map(([v, at]) => `${x(v)} ${at}`).join("L");
  if (path) draw(svg, "path", { d: `M${path}`, fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-dasharray": dashOf(reference) });
  for (const [v, at, layer] of points) {
    const mark = marker(svg, method, x(v), at, colour);
    mark.addEventListener("pointermove", (event) =>
      showTip(event, `${method} and ${labelOf(reference)}\nlayer ${layer}: ${fixed(v, 3)}`));
  }
}

/** A shape for each method, so that the curves can be told apart without colour. */
function marker(svg, method, x, y, colour) {
  const at = F.methods.findIndex((m) => m.name === method) % 3;
  if (at === 0) return draw(svg, "circle", { cx: x, cy: y, r: 3.5, fill: colour });
  if (at === 1) return draw(svg, "rect", { x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4, fill: colour });
  return draw(svg, "path", { d: `M${x} ${y - 4.5}L${x + 4.2} ${y + 3.2}H${x - 4.2}Z`, fill: colour });
}

function drawCurvesKey() {
  const key = byId("curves-key");
  key.replaceChildren();
  for (const [method, reference] of F.curves) {
    const item = make("span");
    const svg = draw(item, "svg", { width: 34, height: 12, style: "display:inline-block;vertical-align:-1px", "aria-hidden": "true" });
    draw(svg, "line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: colourOf(method), "stroke-width": 1.6, "stroke-dasharray": dashOf(reference) });
    marker(svg, method, 17, 6, colourOf(method));
    item.append(` ${method} with ${labelOf(reference)}`);
    key.append(item);
  }
  key.append(make("span", {}, `(${[...new Set(F.curves.map((c) => c[2]))].join("; ")})`));
}

function curvesInWords() {
  return F.curves.map(([method, reference, kind, layers, values]) =>
    `${kind}, of ${method} with ${labelOf(reference)}: ` +
    layers.map((layer, l) => `layer ${layer} ${values[l] === null ? "none" : fixed(values[l], 2)}`).join(", ")).join(". ");
}

function drawText() {
  const u = units();
  const shown = unitsShown(u);
  const box = byId("text");
  box.replaceChildren();
  const scores = scoresOf(S.output, S.method, u);
  const top = scores ? highest(scores, shown) : 1;
  for (const g of shown) {
    const score = scores && !Number.isNaN(scores[g]) ? scores[g] : 0;
    const mark = make("mark", { title: fixed(score) }, u.names[g]);
    mark.style.setProperty("--w", Math.min(1, Math.abs(score) / top).toFixed(3));
    if (score < 0) mark.classList.add("minus");
    if (u.members[g].includes(S.sink)) mark.classList.add("chosen");
    linkHover(mark, u.members[g], null);
    box.append(mark, " ");
  }
}

// Perceptually even, its lightness grows with the score, so it stays readable in grey.
const INFERNO = [[0, 0, 4], [40, 11, 84], [101, 21, 110], [159, 42, 99], [212, 72, 66], [245, 125, 21], [250, 193, 39], [252, 255, 164]];

function heatColour(part) {
  const at = Math.max(0, Math.min(1, part)) * (INFERNO.length - 1);
  const low = Math.min(Math.floor(at), INFERNO.length - 2);
  const mix = INFERNO[low].map((c, i) => Math.round(c + (at - low) * (INFERNO[low + 1][i] - c)));
  return `rgb(${mix.join(",")})`;
}

function drawMaps() {
  if (!D.image) return;
  const maps = byId("maps");
  maps.replaceChildren();
  F.methods.forEach((method, m) => {
    const scores = scoresOf(S.output, m, PER_TOKEN);
    if (scores) drawMap(maps, method, scores);
  });
}

function drawMap(maps, method, scores) {
  const { width, height, grid, patches, data } = D.image;
  const figure = make("figure");
  const size = 224 / Math.max(width, height);
  const [w, h] = [width * size, height * size];
  const svg = draw(figure, "svg", { width: w, height: h, role: "img", "aria-label": `${labelOf(method.name)} on the image` });
  draw(svg, "image", { href: `data:image/png;base64,${data}`, width: w, height: h, preserveAspectRatio: "none" });
  const top = highest(scores, patches);
  const [cw, ch] = [w / grid[1], h / grid[0]];
  patches.forEach((j, p) => {
    const [r, c] = [Math.floor(p / grid[1]), p % grid[1]];
    const part = Math.abs(scores[j]) / top;
    const rect = draw(svg, "rect", { x: c * cw, y: r * ch, width: cw, height: ch, fill: heatColour(part), "fill-opacity": 0.68 });
    if (j === S.sink) rect.classList.add("chosen");
    rect.addEventListener("click", () => chooseInput(j, true));
    linkHover(rect, [j], `patch ${r}, ${c}\n${labelOf(method.name)} ${fixed(scores[j])}`);
  });
  figure.append(make("figcaption", {}, `${labelOf(method.name)} (highest ${fixed(top, 3)})`));
  maps.append(figure);
}

function drawTable() {
  const u = units();
  const shown = unitsShown(u);
  const table = byId("numbers");
  table.replaceChildren(make("caption", { class: "unseen" }, "Scores and ranks of all inputs for the chosen output"));
  const head = table.createTHead().insertRow();
  for (const name of ["", "input", ...F.methods.map((m) => labelOf(m.name))]) head.append(make("th", { scope: "col" }, name));
  const columns = F.methods.map((_, m) => scoresOf(S.output, m, u));
  const ranks = columns.map((scores) => scores && ranksOf(scores, shown));
  const body = table.createTBody();
  for (const g of shown) {
    const row = body.insertRow();
    row.append(make("td", {}, u.members[g][0]));
    row.append(make("th", { scope: "row", class: `token${u.special[g] ? " special" : ""}` }, u.names[g]));
    columns.forEach((scores, m) => row.append(numberCell(scores, ranks[m], g)));
  }
}

function numberCell(scores, ranks, g) {
  if (!scores || Number.isNaN(scores[g])) return make("td", {}, "–");
  const cell = make("td", {}, `${fixed(scores[g])} `);
  cell.append(make("small", { title: "rank" }, `#${ranks.get(g)}`));
  return cell;
}
