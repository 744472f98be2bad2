"""Results on two real models, for a record that later versions are held against.

``python -m tests.recorded.cases PATH`` writes the record; it is made anew only where results are meant to change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.real import minilm

SENTENCES = ("the key to the doors", "the author of the books that the men like", "a cat near the old houses")
SHORT = ["the key to the doors", "the men near the table"]
RECORD = Path(__file__).parent / "results.safetensors"


def subjects() -> Iterator[tuple[str, Any, Any]]:
    """(name, model, tokenizer) of the models that are recorded."""
    from attnflow import demo

    yield "verb-number", demo.model(), demo.tokenizer()
    yield "minilm", *minilm()


def results(name: str, model: Any, tokenizer: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Every method on every sentence, and one comparison: arrays by name."""
    from attnflow import blankout, capture, compare, flow, gradient, raw, rollout

    torch.set_num_threads(1)
    out: dict[str, np.ndarray[Any, Any]] = {}
    for i, text in enumerate(SENTENCES):
        attention = capture(model, tokenizer, text)
        found = {
            "raw": raw(attention),
            "rollout": rollout(attention),
            "rollout-row": rollout(attention, position=0, residual=0.2),
            "flow": flow(attention),
            "flow-row": flow(attention, position="cls", normalize=True),
            "words": rollout(attention).words(),
            "stream": rollout(model, tokenizer, text, layer=-1, position=0, stream=True),
            "gradient": gradient(model, tokenizer, text),
            "integrated": gradient(model, tokenizer, text, method="integrated_gradients", steps=8),
            "blankout": blankout(model, tokenizer, text),
            "blankout-delete": blankout(model, tokenizer, text, blank="delete", unit="word"),
        }
        out |= {f"{name}/{i}/{key}": r.scores for key, r in found.items()}
    frame = compare(model, tokenizer, SHORT, references=["gradient", "blankout-delete"]).to_frame()
    for column in ("mean", "std", "ties"):
        out[f"{name}/compare/{column}"] = frame[column].to_numpy(np.float64)
    return out


def main(path: str) -> None:
    """Write the record."""
    from safetensors.numpy import save_file

    arrays = {key: np.ascontiguousarray(a) for one in subjects() for key, a in results(*one).items()}
    save_file(arrays, path)


if __name__ == "__main__":
    main(sys.argv[1])
