"""Size of the page and time to its first draw, beside bertviz's model view of the same attention.

python benchmarks/page.py [--quick]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright
from report import quick, write

sys.path.insert(0, str(Path(__file__).parent.parent))  # for tests.browser, which is not installed

from attnflow import Attention
from attnflow.flowgraph import flow_graph
from attnflow.views.html import flow_page
from tests.browser import launch

LAYERS, HEADS = 12, 12
LENGTHS = (16, 64, 128, 256, 512)
QUICK = (8,)


def weights(n: int) -> np.ndarray:
    """Random attention, 12 layers × 12 heads, float32."""
    scores = np.exp(2 * np.random.default_rng(0).standard_normal((LAYERS, HEADS, n, n), dtype=np.float32))
    return scores / scores.sum(-1, keepdims=True)


def bertviz_size(array: np.ndarray, tokens: list[str]) -> float:
    """Megabytes of bertviz's model view of all heads."""
    import torch
    from bertviz import model_view

    attention = [torch.from_numpy(layer)[None] for layer in array]
    return len(model_view(attention, tokens, html_action="return").data.encode()) / 1e6


def drawn(play: object, document: str) -> float:
    """Seconds from opening the file to the first whole drawing, as the browser measures them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(document, encoding="utf-8")
        browser = launch(play)
        view = browser.new_page(viewport={"width": 1280, "height": 900})
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready]", state="attached")
        at = view.evaluate("performance.getEntriesByName('attnflow-drawn')[0].startTime")
        browser.close()
    return float(at) / 1000


def main() -> None:
    rows = []
    with sync_playwright() as play:
        for n in QUICK if quick() else LENGTHS:
            array, tokens = weights(n), [f"token{i}" for i in range(n)]
            start = time.process_time()
            shown = flow_graph(Attention.of(array, tokens=tokens, heads="all"))
            computed = time.process_time() - start
            text = flow_page(shown)
            seconds = min(drawn(play, text) for _ in range(1 if quick() else 3))
            share = np.mean([pair.share for pair in shown.pairs.values()])
            # Above 128 tokens bertviz's page has hundreds of megabytes: it is left out there.
            theirs = f"{bertviz_size(array, tokens):.1f} MB" if n <= 128 and not quick() else "not made"
            kept = f"{len(shown.outputs)} of {LAYERS * n}"
            ways = f"{len(shown.fusions) + 1} of {HEADS + 3}"
            flows = " + ".join(str(len(p.pairs)) for p in (shown, *shown.fusions[:1]))
            rows.append([n, f"{len(text.encode()) / 1e6:.2f} MB", f"{seconds:.2f} s", f"{computed:.1f} s",
                         ways, kept, flows, f"{share:.0%}", theirs])  # fmt: skip
            print(rows[-1], flush=True)
    head = [
        "tokens",
        "page",
        "first draw",
        "flows computed in (CPU)",
        "ways to fuse heads",
        "outputs",
        "edge flows",
        "flow kept",
        "bertviz model_view",
    ]
    text = (
        f"Random attention of {LAYERS} layers × {HEADS} heads, in a page that can switch between mean, max, "
        "min and single heads where there is room. "
        "*First draw*: from opening the file in headless Chromium to the whole graph, best of three. *Outputs*, "
        "*edge flows* and *flow kept* (the mean share of an edge flow that its stored edges carry): of the mean of the "
        "heads; the second number of edge flows is that of each other way."
    )
    write("page", "Size and speed of the page", head, rows, text, "python benchmarks/page.py")
    if not quick() and float(rows[2][1].split()[0]) > 2:
        sys.exit("the page of 128 tokens is larger than 2 MB")


if __name__ == "__main__":
    main()
