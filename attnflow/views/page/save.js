/** The graph as a file: a drawing that stands alone, or its pixels. */

const KEPT = [
  "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill", "fill-opacity", "paint-order",
  "font-family", "font-size", "font-style", "font-weight",
];
const PIXELS = 2; // of the file for each of the screen: sharp on paper and on dense screens

/** The graph with its colours written into it, and lines that say what it shows. */
function standalone() {
  const live = byId("graph");
  const copy = live.cloneNode(true);
  const all = [...copy.querySelectorAll("*")];
  [...live.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of KEPT) all[i].style.setProperty(name, style.getPropertyValue(name));
  });
  copy.querySelector("#hits").remove();
  const width = Number(live.getAttribute("width"));
  let height = Number(live.getAttribute("height")) + 4;
  const words = `${byId("state").textContent}\n${byId("facts").textContent} · attnflow ${D.version}`;
  const fill = getComputedStyle(byId("facts")).color;
  for (const line of words.split("\n").flatMap((text) => wrapped(text, Math.floor(width / 5.6) - 3))) {
    draw(copy, "text", { x: 8, y: (height += 14), style: `font:10px sans-serif;fill:${fill}` }, line);
  }
  height += 8;
  const paper = getComputedStyle(document.body).backgroundColor;
  copy.prepend(draw(copy, "rect", { width, height, style: `fill:${paper}` }));
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) copy.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= most) lines.push("");
    lines[lines.length - 1] += (lines.at(-1) ? " " : "") + word;
  }
  return lines;
}

function download(blob, name) {
  const link = make("a", { download: name });
  link.href = URL.createObjectURL(blob);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function saveSvg() {
  download(new Blob([standalone().text], { type: "image/svg+xml" }), "attnflow.svg");
}

async function savePng() {
  const { text, width, height } = standalone();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = make("canvas", { width: Math.round(width * PIXELS), height: Math.round(height * PIXELS) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, "attnflow.png"), "image/png");
}

