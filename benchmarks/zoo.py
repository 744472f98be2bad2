"""Capture from every model type of transformers: one row each in docs/zoo.md, and in what `attnflow models` tells.

    python benchmarks/zoo.py                     # all types, about 12 minutes on two cores
    python benchmarks/zoo.py --types bert,t5     # some
    python benchmarks/zoo.py --work DIR          # keep rows in DIR, and go on from there

Each type is built small with random weights and captured in a process of its own, so that a crash or a hang
costs one row, at two lengths: the second is beyond its windows, blocks and chunks. Several runs may share one DIR: a
type that another run has begun is left to it. The command exits with 1 if any number is wrong: a layer that differs
from what the model itself returns in eager, an output that changed, a trace that was left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

Row = dict[str, Any]
Examine = Callable[[str], Row]
SECONDS = 200
"""Of the processor's time, for one type."""

PATIENCE = 3600
MEMORY = 10 * 2**30


def main() -> int:
    """Run the command."""
    options = _options()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from zoo_page import families, summary, write

    every = list(dict.fromkeys(CONFIG_MAPPING_NAMES))
    chosen = options.types.split(",") if options.types else every[: options.limit]
    cache = Path(options.work or tempfile.mkdtemp(prefix="attnflow-zoo-")) / "rows.jsonl"
    cache.parent.mkdir(parents=True, exist_ok=True)
    rows = known(cache)
    sweep([t for t in chosen if t not in rows], cache, rows, options.workers, examine)
    rows |= known(cache)
    missing = [t for t in chosen if t not in rows]
    if missing:
        print(f"{len(missing)} types are left to another run on {cache.parent}; nothing is written.")
        return 0
    done = {t: rows[t] for t in chosen}
    wrong = [t for t, r in done.items() if r["status"] == "WRONG"]
    if chosen == every:
        docs = HERE.parent / "docs"
        write(docs / "zoo.md", done, edges=docs / "data" / "zoo-edges.csv")
        told = json.dumps(families(done), indent=1, sort_keys=True) + "\n"
        (HERE.parent / "attnflow" / "models" / "families.json").write_text(told)
    print(summary(done))
    if wrong:
        print("WRONG:", ", ".join(wrong))
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--types", default="", help="model types, separated by commas")
    parser.add_argument("--limit", type=int, default=None, help="only the first so many")
    parser.add_argument("--work", default="", help="directory for rows; a run goes on from those it finds")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="two types, nothing written")
    given = parser.parse_args()
    if given.quick:
        given.types, given.work, given.workers = "bert,gpt2", tempfile.mkdtemp(), 1
    return given


def known(cache: Path) -> dict[str, Row]:
    lines = cache.read_text().splitlines() if cache.exists() else []
    return {row["type"]: row for row in map(json.loads, lines)}


def sweep(types: list[str], cache: Path, rows: dict[str, Row], workers: int, examine: Examine) -> None:
    """Run `examine` on each of `types` in a process forked from this one, which has the imports behind it."""
    _prepare()
    waiting, running = list(reversed(types)), {}
    with cache.open("a") as file:
        while waiting or running:
            while waiting and len(running) < workers:
                kind = waiting.pop()
                if _claimed(cache, kind):
                    running[kind] = (*_start(kind, examine), time.monotonic())
            time.sleep(0.02)
            for kind, (process, answer, since) in list(running.items()):
                row = _collect(process, answer, time.monotonic() - since)
                if row is not None:
                    del running[kind]
                    rows[kind] = {"type": kind} | row
                    file.write(json.dumps(rows[kind]) + "\n")
                    file.flush()
                    print(f"{len(rows):4} {kind:40} {row['status']:10} {row.get('route', '')}", flush=True)


def _claimed(cache: Path, kind: str) -> bool:
    """Whether this run is the first to begin a type; claims of a run that is gone do not count."""
    claims = cache.parent / "claims"
    claims.mkdir(exist_ok=True)
    path = claims / kind.replace("/", "_")
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
        return True
    except FileExistsError:
        owner = path.read_text()
        if owner.isdigit() and int(owner) != os.getpid() and Path(f"/proc/{owner}").exists():
            return False
        path.write_text(str(os.getpid()))
        return True


def _prepare() -> None:
    """Import once, so that a fork is ready at once."""
    import warnings

    import torch
    from transformers.utils import logging

    from tests.zoo import build, check  # noqa: F401

    warnings.filterwarnings("ignore")
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)


def _start(kind: str, examine: Examine) -> tuple[ForkProcess, Connection]:
    context = multiprocessing.get_context("fork")
    answer, send = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(kind, send, examine))
    process.start()
    send.close()
    return process, answer


def _collect(process: ForkProcess, answer: Connection, seconds: float) -> Row | None:
    """The row of a process that is ready, crashed or out of time; None while it works."""
    row: Row | None = None
    if answer.poll():
        try:
            row = answer.recv()
        except EOFError:
            row = {"status": "crashed", "reason": f"the process ended with {process.exitcode}"}
    elif not process.is_alive():
        row = {"status": "crashed", "reason": f"the process ended with {process.exitcode}"}
    elif seconds > PATIENCE:
        process.kill()
        row = {"status": "crashed", "reason": f"longer than {PATIENCE} s"}
    if row is not None:
        process.join()
        answer.close()
        row["seconds"] = round(seconds, 1)
    return row


def _work(kind: str, send: Connection, examine: Examine) -> None:
    """In the child: one type."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        row = examine(kind)
    except BaseException as error:  # the parent must hear of anything
        row = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:400]}
    send.send(row)
    send.close()
    os._exit(0)


def examine(kind: str) -> Row:
    """Build one type, capture from it and judge the result."""
    from tests.zoo.build import CannotBuild, build, lengthened
    from tests.zoo.check import check, parts

    try:
        tiny = build(kind)
    except CannotBuild as error:
        return {"status": "not built", "reason": str(error)[:400]}
    row: Row = {"model": type(tiny.model).__name__, "parts": parts(tiny.model), "inputs": sorted(tiny.inputs)}
    row |= _verdict(tiny, check)
    more = lengthened(tiny)
    row["longer"] = "takes no other length" if more is None else _longer(row, _verdict(more, check))
    if row["longer"].startswith("WRONG"):
        row |= {"status": "WRONG", "reason": f"at the second length: {row['longer']}"}
    return row


def _verdict(tiny: Any, check: Any) -> Row:
    """One length."""
    from attnflow.errors import AttnFlowError

    try:
        report = check(tiny)
    except AttnFlowError as error:
        return {"status": "refused", "reason": f"{type(error).__name__}: {error}"[:400]}
    except AssertionError as error:
        return {"status": "WRONG", "reason": str(error)[:400]}
    return asdict(report) | {"status": _judge(report), "reason": _why(report)}


def _longer(first: Row, second: Row) -> str:
    """What the second length came to, in a few words."""
    if second["status"] in ("equal", "proved", "captured"):
        same = set(second["blocks"]) == set(first.get("blocks", ()))
        return second["status"] if same else f"{second['status']}, as {', '.join(second['blocks'])}"
    return f"{second['status']}: {second['reason']}"


def _judge(report: Any) -> str:
    if report.wrong or not report.unchanged or not (report.sums[0] >= -1e-6 and report.sums[1] <= 1.002):
        return "WRONG"
    if report.compared:
        return "equal"
    return "proved" if report.proved == report.layer_count else "captured"


def _why(report: Any) -> str:
    reasons = []
    if report.wrong:
        reasons.append(f"differs from eager: {', '.join(report.wrong[:6])} of {report.compared}")
    if not report.unchanged:
        reasons.append("the model's output changed")
    return "; ".join(reasons)


if __name__ == "__main__":
    sys.exit(main())
