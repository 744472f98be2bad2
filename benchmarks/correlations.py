"""The comparison of the paper on one's own machine: layer-wise correlations, and what each part of them costs.

    python benchmarks/correlations.py --data sentences.txt            # 2,000 sentences
    python benchmarks/correlations.py --data sentences.txt --quick    # 60
    python benchmarks/correlations.py --data reviews.tsv --text-column sentence --model my/classifier

Without ``--model``, all-MiniLM-L6-v2 (6 layers); without ``--data``, sentences made by a small grammar. The records
are in ``--out``, by default a temporary folder, and a run that was stopped goes on with ``--out … --resume``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from report import markdown, write

from attnflow import compare

METHODS = ("raw", "rollout", "flow")
STEPS, COUNT = 16, 2000
REFERENCES = {
    "gradient": {},
    "input×gradient": {"method": "input_x_gradient"},
    "integrated gradients": {"method": "integrated_gradients", "steps": STEPS, "baseline": "mask"},
    "blank-out": {"method": "blankout"},
}


def grammar(count: int) -> list[str]:
    """Sentences with a subject, attractors and a verb, no two the same."""
    subjects = ("key", "author", "picture", "report", "teacher", "bridge", "farmer", "letter", "song", "machine")
    seconds = ("cabinets", "books", "walls", "people", "children", "rivers", "cities", "friends", "doors", "windows")
    places = ("on the table", "near the old door", "in the small town", "behind the tall house", "by the road")
    ends = ("is new", "was lost", "has been found", "seems strange", "looks good", "was sold", "is still missing")
    made = itertools.product(places, subjects, seconds, ends)
    every = [f"the {s} to the {o} {p} {e}" for p, s, o, e in made]
    step = max(1, len(every) // count)
    return every[::step][:count]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 sentences, nothing written")
    parser.add_argument("--count", type=int, default=COUNT, help="another number leaves the page as it is")
    parser.add_argument("--data", help="a file or a dataset's name")
    parser.add_argument("--text-column")
    parser.add_argument("--max-length", type=int, default=32, help="cut sentences to this many tokens")
    parser.add_argument("--model", help="a hub name or folder; all-MiniLM-L6-v2 by default")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    if given.model is None:
        from weights import minilm

        model, tokenizer = minilm()
        name = "all-MiniLM-L6-v2"
    else:
        from attnflow.models.loading import load

        model, tokenizer = load(given.model)
        name = given.model
    count = 3 if given.quick else given.count
    out = given.out or Path(tempfile.mkdtemp()) / "correlations"
    result = compare(
        model, tokenizer, given.data or grammar(count), methods=METHODS, references=REFERENCES, limit=count,
        text_column=given.text_column, correlation=("spearman", "kendall"), max_length=given.max_length, out=out,
        resume=given.resume, show_progress=True,
    )  # fmt: skip
    total = sum(result.costs.values())
    parts = sorted(result.costs.items(), key=lambda item: -item[1])
    shares = [[part, f"{s:.1f}", f"{1e3 * s / result.examples:.1f}", f"{100 * s / total:.0f} %"] for part, s in parts]
    costs = markdown(["part", "seconds", "ms per sentence", "share"], shares)
    verdict = "is not" if parts[0][0] != "flow" else "is"
    head, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.to_markdown().splitlines()]
    text = (
        f"{name}, {result.examples} sentences ({'made by a grammar' if given.data is None else given.data}), "
        f"{len(result.failed)} failed, cut to {given.max_length} tokens, {given.threads} threads. Mean ± standard "
        f"deviation over sentences; integrated gradients of {STEPS} steps from [MASK].\n\n"
        f"What it cost, {total:.0f} s in all; flow {verdict} the largest part:\n\n{costs}\n\n"
        f"Spearman, with special tokens:\n\n{result.to_markdown(special=True)}\n\n"
        f"Kendall's τ-b, without special tokens:\n\n{result.to_markdown('kendall')}\n\n"
        "Spearman, without special tokens:"
    )
    if given.count != COUNT or given.data is not None or given.model is not None:
        print(f"{text}\n\n{markdown(head, lines[1:])}\n\nThe page is of {COUNT} sentences on MiniLM, and stays.")
    else:
        write("correlations", "Layer-wise correlations", head, lines[1:], text, "python benchmarks/correlations.py")
    print(f"records: {out}")


if __name__ == "__main__":
    main()
