"""Is blank-out cheaper than taking one token away at a time? Both in one run, on the same sentences.

python benchmarks/blankout.py            # MiniLM, 32 tokens, as in docs/benchmarks/blankout.md
python benchmarks/blankout.py --quick    # fewer rounds
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from report import write
from weights import minilm

from attnflow import blankout


def one_by_one(model: torch.nn.Module, ids: torch.Tensor, blank: int | str) -> np.ndarray:
    """The loop that a user would write: n + 1 forward passes of one text."""

    def vector(row: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(row)
        return model(input_ids=row, attention_mask=mask).last_hidden_state[0, 0]

    scores = []
    with torch.no_grad():
        before = vector(ids)
        for i in range(ids.shape[1]):
            if blank == "delete":
                changed = torch.cat([ids[:, :i], ids[:, i + 1 :]], 1)
            else:
                changed = ids.clone()
                changed[0, i] = blank
            after = vector(changed) if blank != "delete" or i else None
            scores.append(1 - torch.cosine_similarity(before, after, dim=0).item() if after is not None else np.nan)
    return np.array(scores)


def seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """The least time of each, because other load only adds time; they take turns, so that all see the same load."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [min(own) for own in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="32 tokens, one round, nothing written")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = minilm()
    text = "the key to the cabinets that the author of the book left on the table near the door is " * 4
    rows, worst = [], 0.0
    for tokens in (32,) if arguments.quick else (16, 32, 64):
        encoded = tokenizer(text, truncation=True, max_length=tokens, return_tensors="pt")
        ids = encoded["input_ids"]
        assert ids.shape[1] == tokens
        for blank, name in ((tokenizer.mask_token_id, "mask"), ("delete", "delete")):
            rounds = 1 if arguments.quick else 9
            ours = blankout(model, tokenizer, encoded, blank=blank).scores[0]
            alone = one_by_one(model, ids, blank)
            off = float(np.nanmax(np.abs(ours - alone)))
            calls = (
                lambda e=encoded, b=blank: blankout(model, tokenizer, e, blank=b),
                lambda i=ids, b=blank: one_by_one(model, i, b),
            )
            fast, slow = seconds(calls, rounds)
            if tokens == 32:
                worst = max(worst, fast / slow)
            rows.append([tokens, name, f"{fast * 1e3:.0f}", f"{slow * 1e3:.0f}", f"{fast / slow:.2f}", f"{off:.1e}"])
    write(
        "blankout",
        "Blank-out, many variants in a forward pass against one at a time",
        ["tokens", "blank", "attnflow, ms", "one at a time, ms", "ratio", "largest difference"],
        rows,
        f"all-MiniLM-L6-v2, {arguments.threads} threads, least of some rounds of each. The target is a ratio of at "
        f"most 0.50 at 32 tokens; the larger of the two there is {worst:.2f}.",
        "python benchmarks/blankout.py",
    )


if __name__ == "__main__":
    main()
