"""Screenshots of the demo page for the README and the site.

python docs/screenshots.py              writes docs/images/page-*.png; needs Chromium and the dev extra
python docs/screenshots.py notebooks    runs both notebooks and writes their figures, docs/images/notebook-*.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for tests.browser, which is not installed

from playwright.sync_api import sync_playwright  # noqa: E402

from attnflow import capture, demo, flow  # noqa: E402
from attnflow.scoring.explain import explain  # noqa: E402
from attnflow.scoring.registry import names, with_edges  # noqa: E402
from tests.browser import launch  # noqa: E402

IMAGES = ROOT / "docs" / "images"
EXAMPLES = ROOT / "examples"
LAYER = 2  # the last layer of the demo model is saturated: its graph would say little


def text_page() -> str:
    """The demo sentence, all methods."""
    model, tokenizer = demo.model(), demo.tokenizer()
    return explain(model, tokenizer, demo.SENTENCE, methods=names(shown=True), every_head=True).to_html(layer=LAYER)


def edges_page() -> str:
    """The demo sentence with three kinds of edges; the first is shown."""
    methods = with_edges(names("attention", shown=True), ("alti", "attention", "gradient"))
    results = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=[*methods, "gradient", "blankout"])
    return results[0].to_html(others=results[1:], layer=LAYER)


def towers_page() -> str:
    """An untrained encoder-decoder."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = demo.tokenizer()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 3, "num_heads": 4}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config).eval()
    for weights in model.parameters():
        weights.data *= 3 if weights.ndim == 2 else 1
    words = {"input_ids": demo.SENTENCE, "decoder_input_ids": " ".join(demo.SENTENCE.split()[:3])}
    inputs = {name: tokenizer(text, return_tensors="pt").input_ids for name, text in words.items()}
    return flow(capture(model, tokenizer, inputs=inputs, heads="all"), position="last").to_html()


def shoot(browser: Any, page: Path, name: str, width: int, scheme: str) -> None:
    """One screenshot of a page, down to the end of its bars."""
    view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    view.goto(page.as_uri())
    view.wait_for_selector("html[data-ready]", state="attached")
    bottom = view.locator("#figure").bounding_box()
    view.screenshot(
        path=IMAGES / f"page-{name}.png",
        full_page=True,
        clip={"x": 0, "y": 0, "width": width, "height": bottom["y"] + bottom["height"] + 8},
    )
    view.close()


def main() -> None:
    """Write all screenshots."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        pages = {"demo": text_page, "towers": towers_page, "edges": edges_page}
        demo_page, towers, edges = (Path(folder, f"{name}.html") for name in pages)
        for path, made in zip((demo_page, towers, edges), pages.values(), strict=True):
            path.write_text(made(), encoding="utf-8")
        browser = launch(play)
        for page, name, width, scheme in (
            (demo_page, "light", 1280, "light"),
            (demo_page, "dark", 1280, "dark"),
            (demo_page, "narrow", 400, "light"),
            (towers, "towers", 1160, "light"),
            (edges, "edges", 1160, "light"),
        ):
            shoot(browser, page, name, width, scheme)
        browser.close()


def notebooks() -> None:
    """Run the notebooks and write the figures that they show."""
    import base64

    import nbclient
    import nbformat

    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        outputs = [out for cell in notebook.cells for out in cell.get("outputs", ())]
        figures = [out["data"]["image/png"] for out in outputs if "image/png" in out.get("data", {})]
        for number, figure in enumerate(figures, 1):
            (IMAGES / f"notebook-{path.stem}-{number}.png").write_bytes(base64.b64decode(figure))
        sys.stdout.write(f"{path.stem}: {len(figures)} figures\n")


if __name__ == "__main__":
    notebooks() if sys.argv[1:] == ["notebooks"] else main()
