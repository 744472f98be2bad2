"use strict";

/** The page's numbers, unpacked; nothing here computes a score. */
const D = await unzipped(document.getElementById("data").textContent);

async function unzipped(text) {
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const $ = (id) => document.getElementById(id);
const sources = new Map([...document.querySelectorAll(".source")].map((e) => [Number(e.dataset.s), e]));
const units = new Map([...document.querySelectorAll(".unit")].map((e) => [Number(e.dataset.u), e]));
const order = [...units.keys()];
const ROWS = 12;

/** unit: the part of the answer that was chosen; over: the one under the pointer; source: the chosen source or null. */
const S = { method: D.method, unit: 0, over: null, source: null };

const percent = (v) => `${(100 * v).toFixed(1)} %`;
const unitNow = () => (S.over === null ? S.unit : S.over);
const ranked = (u) =>
  D.sources.map((s, i) => i).filter((i) => D.sources[i].kind !== "question")
    .sort((a, b) => D.shares[S.method][u][b] - D.shares[S.method][u][a] || a - b);

function node(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Of thousands of words most stay pale: only those that change are touched. */
const tinted = new Map();
function tint(e, weight, chosen) {
  const now = `${weight.toFixed(2)} ${chosen}`;
  if (tinted.get(e) === now) return;
  tinted.set(e, now);
  e.style.setProperty("--w", weight.toFixed(2));
  e.classList.toggle("chosen", chosen);
}

function draw() {
  const u = unitNow(), shares = D.shares[S.method][u];
  const top = Math.max(...shares, 1e-12);
  for (const [i, e] of sources) tint(e, Math.max(shares[i], 0) / top, i === S.source);
  const fed = S.source === null ? null : D.shares[S.method].map((row) => row[S.source]);
  const most = fed === null ? 1 : Math.max(...order.map((v) => fed[v]), 1e-12);
  for (const [v, e] of units) {
    tint(e, fed === null ? 0 : Math.max(fed[v], 0) / most, v === S.unit && S.unit !== 0);
    e.setAttribute("aria-pressed", v === S.unit);
  }
  $("whole").setAttribute("aria-pressed", S.unit === 0);
  const rest = Object.entries(D.rest[S.method]).map(([name, values]) => `${name} ${percent(values[u])}`);
  const lead = S.source === null ? "" : `${D.sources[S.source].name}: ${percent(shares[S.source])} · `;
  $("state").textContent = lead + rest.join(" · ");
  bars(u);
}

function bars(u) {
  const list = ranked(u), shown = list.slice(0, ROWS);
  if (S.source !== null && !shown.includes(S.source)) shown.push(S.source);
  $("what").textContent = u === 0 ? "Sources of the whole answer" : "Sources of this part";
  const most = Math.max(1e-12, ...D.methods.map((m) => Math.max(...D.shares[m][u])));
  const rows = shown.map((i) => row(i, u, most));
  if (list.length > ROWS) rows.push(node("p", "help", `${list.length - ROWS} more sources have less.`));
  $("bars").replaceChildren(...rows);
}

/** One source: its share by each method, drawn against the greatest of all, and what the answer loses without it. */
function row(i, u, most) {
  const source = D.sources[i], out = node("div", i === S.source ? "row chosen" : "row");
  out.dataset.s = i;
  out.append(node("b", "", source.name), node("span", "quote", source.text));
  for (const m of D.methods) {
    const line = node("div", m === S.method ? "bar main" : "bar other"), bar = node("i");
    bar.style.setProperty("--w", (Math.max(D.shares[m][u][i], 0) / most).toFixed(4));
    line.append(node("span", "", m), bar, node("span", "", percent(D.shares[m][u][i])));
    out.append(line);
  }
  for (const [way, table] of Object.entries(D.checks)) {
    const lost = table[u][i], line = node("div", "check");
    if (lost === null) line.textContent = `without it (${way}): not tried`;
    else {
      const sign = lost >= 0 ? "−" : "+";
      line.append(`without it (${way}): log p ${sign}${Math.abs(lost).toFixed(2)}, `, node("strong", "", likelier(lost)));
    }
    out.append(line);
  }
  return out;
}

/** What a loss of log p means, in words. */
function likelier(lost) {
  const factor = Math.exp(Math.min(Math.abs(lost), 60));
  if (factor < 1.05) return "about as likely";
  return `${factor.toPrecision(2)} × ${lost > 0 ? "less" : "more"} likely`;
}

function chooseSource(i, scroll) {
  S.source = S.source === i && !scroll ? null : i;
  draw();
  if (S.source !== null && scroll) sources.get(i)?.scrollIntoView({ block: "nearest" });
}

function chooseUnit(u) {
  S.unit = u;
  S.over = null;
  draw();
}

function step(by) {
  const at = order.indexOf(S.unit);
  const next = order[Math.min(Math.max(at + by, 0), order.length - 1)];
  chooseUnit(at < 0 ? order[by > 0 ? 0 : order.length - 1] : next);
  units.get(S.unit)?.focus();
}

function stepSource(by) {
  const list = ranked(S.unit), at = list.indexOf(S.source);
  const next = at < 0 ? 0 : Math.min(Math.max(at + by, 0), list.length - 1);
  S.source = null;
  chooseSource(list[next], true);
}

const KEYS = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => stepSource(1), ArrowUp: () => stepSource(-1),
  w: () => chooseUnit(0), Escape: () => { S.source = null; chooseUnit(0); },
  m: () => { S.method = D.methods[(D.methods.indexOf(S.method) + 1) % D.methods.length]; $("method").value = S.method; draw(); },
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input")) return;
  const on = event.target.closest(".unit, .source");
  if ((event.key === "Enter" || event.key === " ") && on) {
    event.preventDefault();
    if (on.dataset.u) chooseUnit(Number(on.dataset.u));
    else chooseSource(Number(on.dataset.s));
  } else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
});

addEventListener("click", (event) => {
  const unit = event.target.closest(".unit"), source = event.target.closest(".source, .row");
  if (unit) chooseUnit(Number(unit.dataset.u));
  else if (source) chooseSource(Number(source.dataset.s), source.matches(".row"));
});

for (const [u, e] of units) {
  e.addEventListener("pointerenter", () => { S.over = u; draw(); });
  e.addEventListener("pointerleave", () => { S.over = null; draw(); });
}

for (const m of D.methods) $("method").append(new Option(m, m));
$("method").value = S.method;
$("method").addEventListener("change", (event) => { S.method = event.target.value; draw(); });
$("whole").addEventListener("click", () => chooseUnit(0));
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});
draw();
