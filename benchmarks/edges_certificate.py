"""The sum certificate on real models: how far the parts of each layer are from what the model computed.

    python benchmarks/edges.py certificate                                # MiniLM and SmolLM2 from their packages
    python benchmarks/edges.py certificate --model mpnet=FOLDER …         # and others, each a folder with a tokenizer

Every layer is decomposed on a few sentences (edges="norm"); the number is the largest error of a layer, relative to the
length of the vector that the model computed. Models are run in float32. Writes docs/benchmarks/edges.md, where the rows
of models that are not named stay as recorded.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from report import FOLDER, insert, markdown, table_rows
from weights import minilm, smollm2

from attnflow import capture

TEXTS = [
    "a gorgeous , witty , seductive movie that never quite finds its feet",
    "The key to the cabinets that stood behind the door was lost for years.",
    "Paris",
]
OUTPUT = "Der Schlüssel zu den Schränken war verloren."


def measured(model: Any, tokenizer: Any) -> tuple[int, float, float]:
    """(layers, largest certificate, the same of value zeroing)."""
    more = {"text_target": OUTPUT} if model.config.is_encoder_decoder else {}
    worst, count = {"norm": 0.0, "value_zeroing": 0.0}, 0
    for text in TEXTS:
        for kind in worst:
            found = capture(model, tokenizer, text, edges=kind, **more)
            worst[kind] = max(worst[kind], *(found.certificate or {"": float("inf")}).values())
            count = sum(len(block.weights) for block in found.blocks.values())
    return count, worst["norm"], worst["value_zeroing"]


def load(folder: str) -> tuple[Any, Any]:
    """A model with the class that its configuration names."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
    return kind.from_pretrained(folder).float().eval(), transformers.AutoTokenizer.from_pretrained(folder)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER")
    parser.add_argument("--quick", action="store_true", help="MiniLM alone, nothing written")
    given = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, Any] = {"MiniLM": minilm} if given.quick else {"MiniLM": minilm, "SmolLM2": smollm2}
    for pair in given.model:
        name, _, folder = pair.partition("=")
        models[name] = lambda folder=folder: load(folder)
    lines = []
    for name, make in models.items():
        model, tokenizer = make()
        layers, parts, zeroing = measured(model, tokenizer)
        lines.append([name, type(model).__name__, layers, f"{parts:.1e}", f"{zeroing:.1e}"])
        print(*lines[-1], flush=True)
    recorded = {row[0]: row for row in table_rows(FOLDER / "edges.md", "certificate")}
    rows = recorded | {row[0]: row for row in lines}
    text = markdown(["model", "class", "layers", "parts", "layer run again"], list(rows.values()))
    insert(FOLDER / "edges.md", "certificate", f"Largest relative error of a layer on {len(TEXTS)} texts.\n\n{text}")


if __name__ == "__main__":
    main()
