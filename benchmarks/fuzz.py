"""What a stranger's file, a bad value, a full disk, a kill or a second run can do: tried, counted and judged.

python benchmarks/fuzz.py            every part, from where the last run stopped (benchmarks/.fuzz/*.json)
python benchmarks/fuzz.py files      one part: ran, typed, modelled, shown, quick (calls), files, kills, disk, two, ray
python benchmarks/fuzz.py page       the page from the parts that are done
python benchmarks/fuzz.py --quick    100 calls and some files, which writes nothing

The page is docs/reliability.md; its figures stand between the marks that this script fills.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from report import insert, made, markdown  # noqa: E402

import attnflow  # noqa: E402
from attnflow import AttnFlowError  # noqa: E402
from attnflow.comparing import runs  # noqa: E402
from attnflow.comparing.comparison import Comparison  # noqa: E402
from tests.fuzz import calls as fuzz  # noqa: E402
from tests.fuzz import damage  # noqa: E402
from tests.tiny_models import tiny, tokenizer  # noqa: E402

STATE = Path(__file__).parent / ".fuzz"
CHUNK = 100
CALLS = {"ran": 300, "typed": 300, "modelled": 2_000, "shown": 1_500, "quick": 46_500}
FILES = 12_000
QUICK = ("quick", "files")  # what is done within a minute
WORDS = [
    "the",
    "key",
    "to",
    "is",
    "are",
    "on",
    "table",
    "a",
    "film",
    "was",
    "great",
    "dull",
    "author",
    "talked",
    "sara",
    "about",
    "book",
]
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 3 + i % 5]) for i in range(60)]
Counts = collections.Counter


def kept(name: str) -> dict[str, Any]:
    path = STATE / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def keep(name: str, found: dict[str, Any], write: bool) -> None:
    if write:
        STATE.mkdir(exist_ok=True)
        (STATE / f"{name}.json").write_text(json.dumps(found, indent=1))


def run_calls(part: str, scale: float, write: bool) -> dict[str, Any]:
    """Calls of the functions of one table, in chunks of their own seeds."""
    state = (kept(part) if write else {}) or {"chunks": 0, "outcomes": {}, "violations": {}}
    table, wanted = fuzz.TABLES[part](), max(1, round(CALLS[part] * scale / CHUNK))
    while state["chunks"] < wanted:
        found, seen = fuzz.tried(table, CHUNK, 1000 + state["chunks"])
        counts = Counts(state["outcomes"]) + found
        bad = {what: first[:600] for what, (first, _) in seen.items()} | state["violations"]
        state.update(chunks=state["chunks"] + 1, outcomes=dict(counts), violations=bad)
        keep(part, state, write)
        print(f"{part}: {sum(counts.values())} calls, {len(bad)} kinds of violation", flush=True)
    return state


def run_files(scale: float, write: bool) -> dict[str, Any]:
    """Files of every kind, damaged in every way."""
    found = kept("files") if write else {}
    each = max(4, round(FILES * scale / len(damage.KINDS)))
    for kind in damage.KINDS:
        if kind.name in found:
            continue
        counts, bad = Counts(), {}
        with tempfile.TemporaryDirectory() as folder:
            path = kind.write(Path(folder))
            truth, whole, chance = kind.read(path), path.read_bytes(), random.Random(kind.name)
            for _ in range(each):
                how, made = damage.damaged(whole, chance)
                path.write_bytes(made)
                result, what = damage.outcome(kind, path, truth)
                counts[result] += 1
                if result == "violation":
                    bad.setdefault(what, how)
        found[kind.name] = {"outcomes": dict(counts), "violations": bad}
        keep("files", found, write)
        print(f"{kind.name}: {dict(counts)}", flush=True)
    return found


def child(work: Callable[[], Any], delay: float | None = None, number: int = signal.SIGKILL) -> tuple[int, str]:
    """(exit code, what it said) of ``work`` in a process of its own, which gets a signal after ``delay`` seconds."""
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reads)
        code = 0
        try:
            said = repr(work())
        except BaseException as error:
            said, code = f"{type(error).__name__}: {error}", 3
        os.write(writes, said.encode(errors="replace")[:4000])
        os._exit(code)
    os.close(writes)
    if delay is not None:
        time.sleep(delay)
        os.kill(process, number)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said


def compared(folder: Path) -> None:
    runs.PART_EXAMPLES = 3
    attnflow.compare(tiny("bert"), tokenizer(), TEXTS, methods=("raw", "rollout"), references=("gradient",), out=folder,
                     resume=True)  # fmt: skip


KEYS = ["example", "method", "reference", "correlation", "special", "layer"]


def records(folder: Path) -> Any:
    return Comparison.load(folder).records.sort_values(KEYS).reset_index(drop=True)


def part_of(some: Any, whole: Any) -> bool:
    """True if no record is doubled and each is one of the whole run, with the same value."""
    if some[KEYS].duplicated().any():
        return False
    both = some.merge(whole, on=KEYS, how="left", suffixes=("", "_whole"))
    return bool(((both["value"] == both["value_whole"]) | (both["value"].isna() & both["value_whole"].isna())).all())


def trained(folder: Path) -> str:
    from attnflow.audit.training import Recipe, fit
    from attnflow.digests import weights_digest
    from tests.audit.tiny import lstm, splits

    torch.manual_seed(0)
    found = fit(lstm(), splits(), Recipe(epochs=12, patience=12, batch=8), folder=folder)
    return weights_digest(found.model) + str(found.history)


def run_kills(scale: float, write: bool) -> dict[str, Any]:
    """Runs of compare and of audit's training, ended by signals at moments of chance, until they are done."""
    found: dict[str, Any] = kept("kills") if write else {}
    if found:
        return found
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        start = time.monotonic()
        assert child(lambda: compared(base / "whole")) == (0, "None")
        length, whole = time.monotonic() - start, records(base / "whole")
        start = time.monotonic()
        code, truth = child(lambda: trained(base / "fit"))
        assert code == 0
        training = time.monotonic() - start
        wanted, bad, counts = max(2, round(60 * scale)), [], Counts()
        while counts["compare"] < wanted // 2 + wanted % 2:
            folder = base / f"compare-{counts['compare']}"
            for _ in range(100):
                number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
                code, _ = child(lambda f=folder: compared(f), chance.uniform(0.05, 0.6) * length, number)
                counts["compare"] += 1
                counts[signal.Signals(number).name] += 1
                if (folder / "settings.json").exists() and not part_of(records(folder), whole):
                    bad.append("a record lost, doubled or changed")
                if code == 0:
                    break
            code, said = child(lambda f=folder: compared(f))
            if code or not records(folder).equals(whole):
                bad.append(f"the resumed run differs from the whole one: {said[:200]}")
            counts["compare runs brought to their end"] += 1
        while counts["audit"] < wanted // 2:
            folder = base / f"fit-{counts['audit']}"
            for _ in range(100):
                code, _ = child(lambda f=folder: trained(f), chance.uniform(0.05, 0.7) * training)
                counts["audit"] += 1
                if code == 0:
                    break
            if child(lambda f=folder: trained(f)) != (0, truth):
                bad.append("the resumed training differs from the whole one")
            counts["audit runs brought to their end"] += 1
    found = {"outcomes": dict(counts), "violations": bad, "records": len(whole)}
    keep("kills", found, write)
    print(found, flush=True)
    return found


def small_disk() -> Path | None:
    """A file system of 200 kB, where this user may make one."""
    folder = Path(tempfile.mkdtemp(prefix="attnflow-small-"))
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)], capture_output=True)
    return folder if done.returncode == 0 else None


def run_disk(scale: float, write: bool) -> dict[str, Any]:
    """The disk is full: by a limit on the size of files, and on a real file system without room."""
    import resource

    counts, bad = Counts(), []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        assert child(lambda: compared(base / "whole")) == (0, "None")
        whole = records(base / "whole")

        def limited(folder: Path, size: int) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            compared(folder)

        def judged(code: int, said: str, folder: Path, how: str) -> None:
            counts[how] += 1
            if code == 0 or "FileError: Cannot write" not in said or str(folder) not in said:
                bad.append(f"{how}: {said[:200]}")

        for size in (100, 800, 3_000):
            folder = base / f"limit-{size}"
            judged(*child(lambda f=folder, s=size: limited(f, s)), folder, "files limited in size")
            if child(lambda f=folder: compared(f))[0] or not records(folder).equals(whole):
                bad.append("the run did not go on")
        small = small_disk()
        if small is not None:
            try:
                (small / "filler").write_bytes(b"x" * 100_000)
                folder = small / "run"
                code, said = child(lambda: compared(folder))
                judged(code, said, folder, "a file system of 200 kB that is full")
                if "No space left on device" not in said or "resume=True" not in said:
                    bad.append(said[:200])
                if not part_of(records(folder), whole):
                    bad.append("what was there is damaged")
                subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
                if child(lambda: compared(folder))[0] or not records(folder).equals(whole):
                    bad.append("the run did not go on when there was room")
                counts["went on when there was room"] += 1
                (small / "filler").write_bytes(b"x" * (7 << 20))
                result = attnflow.raw(np.full((4, 60, 60), 1 / 60))
                result.save(base / "kept.safetensors")
                shutil.copy(base / "kept.safetensors", small / "kept.safetensors")
                subprocess.run(["mount", "-o", f"remount,size={(7 << 20) + (300 << 10)}", str(small)], check=False)
                try:
                    attnflow.raw(np.full((40, 90, 90), 1 / 90)).save(small / "kept.safetensors", overwrite=True)
                    bad.append("a file was written where there is no room")
                except AttnFlowError as error:
                    counts["saved results refused, the old one as it was"] += 1
                    if "No space left" not in str(error) or attnflow.Relevance.load(small / "kept.safetensors") is None:
                        bad.append(str(error)[:200])
            finally:
                subprocess.run(["umount", str(small)], check=False)
    found = {"outcomes": dict(counts), "violations": bad}
    keep("disk", found, write)
    print(found, flush=True)
    return found


def run_two(scale: float, write: bool) -> dict[str, Any]:
    """Several runs at once on one folder: one writes, the others are told so, and nothing is doubled."""
    counts, bad = Counts(), []
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        assert child(lambda: compared(base / "whole")) == (0, "None")
        whole = records(base / "whole")
        for i in range(max(1, round(10 * scale))):
            folder, processes = base / f"run-{i}", []
            for _ in range(4):
                reads, writes = os.pipe()
                process = os.fork()
                if process == 0:
                    try:
                        compared(folder)
                        os.write(writes, b"done")
                    except BaseException as error:
                        os.write(writes, f"{type(error).__name__}: {error}".encode()[:2000])
                    os._exit(0)
                os.close(writes)
                processes.append((process, reads))
            for process, reads in processes:
                os.waitpid(process, 0)
                said = os.read(reads, 2000).decode()
                os.close(reads)
                told = "FileError: Another run is writing to" in said
                counts["did the work, or found it done" if said == "done" else "told that another run writes"] += 1
                if said != "done" and not told:
                    bad.append(said[:200])
            counts["rounds of four"] += 1
            if child(lambda f=folder: compared(f))[0] or not records(folder).equals(whole):
                bad.append("records lost, doubled or changed")
    found = {"outcomes": dict(counts), "violations": bad}
    keep("two", found, write)
    print(found, flush=True)
    return found


def run_ray(scale: float, write: bool) -> dict[str, Any]:
    """Ray with a killed worker: two worked, one was killed, exactly a third took over, and the records are the same."""
    found = kept("ray") if write else {}
    rounds = max(1, round(3 * scale))
    counts, bad = Counts(), []
    if found:
        return found
    names = ["test_records_equal_local_ones_with_a_worker_killed",
             "test_a_cluster_that_is_started_here_listens_on_this_machine_alone"]  # fmt: skip
    for _ in range(rounds):
        for name in names:
            path = ROOT / "tests" / "comparing" / "test_cluster.py"
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", f"{path}::{name}"], capture_output=True, text=True
            )
            counts[name] += 1
            if done.returncode:
                bad.append(done.stdout[-600:])
    found = {"outcomes": dict(counts), "violations": bad}
    keep("ray", found, write)
    print(found, flush=True)
    return found


PARTS: dict[str, Callable[[float, bool], dict[str, Any]]] = {
    **{name: partial(run_calls, name) for name in CALLS},
    "files": run_files, "kills": run_kills, "disk": run_disk, "two": run_two, "ray": run_ray,
}  # fmt: skip


def table(found: dict[str, dict[str, Any]]) -> str:
    """One row for each thing that was tried."""
    rows: list[list[object]] = []
    calls = [found[name] for name in CALLS]
    outcomes = sum((Counts(s["outcomes"]) for s in calls), Counts())
    by = {kind: sum(n for name, n in outcomes.items() if name.endswith(f"|{kind}")) for kind in ("result", "refused")}
    functions = {name.partition("|")[0] for name in outcomes}
    bad = sum(n for name, n in outcomes.items() if name.endswith("|violation"))
    rows.append([f"calls of {len(functions)} functions with hostile values", f"{sum(outcomes.values()):,}",
                 f"{by['result']:,} results, {by['refused']:,} refused with an error of ours", bad])  # fmt: skip
    kinds = Counts()
    for state in found["files"].values():
        kinds.update(state["outcomes"])
    same = f"{kinds['refused']:,} refused by name, {kinds['the same']:,} read as they were written"
    text = f", {kinds['other text']:,} text files that say something else now" if kinds["other text"] else ""
    rows.append([f"damaged files of {len(found['files'])} kinds", f"{sum(kinds.values()):,}", same + text,
                 kinds["violation"]])  # fmt: skip
    kills = found["kills"]["outcomes"]
    number = kills["compare"] + kills["audit"]
    ended = kills["compare runs brought to their end"] + kills["audit runs brought to their end"]
    rows.append([f"signals to runs of compare ({kills['compare']}) and audit ({kills['audit']})", number,
                 f"{ended} runs resumed to the end, equal to runs that nobody disturbed",
                 len(found["kills"]["violations"])])  # fmt: skip
    for name, what in (("disk", "full disks"), ("two", "runs at once on one folder"), ("ray", "Ray, a worker killed")):
        counts = found[name]["outcomes"]
        said = "; ".join(f"{key.replace('test_', '').replace('_', ' ')}: {n}" for key, n in counts.items())
        rows.append([what, sum(counts.values()), said, len(found[name]["violations"])])
    return markdown(["tried", "times", "what came of it", "violations"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=[*PARTS, "page"])
    parser.add_argument("--quick", action="store_true", help="100 calls, some files; writes nothing")
    given = parser.parse_args()
    scale, write = (0.001, False) if given.quick else (1.0, True)
    chosen = [given.part] if given.part in PARTS else [] if given.part == "page" else list(PARTS)
    if given.quick and given.part is None:
        chosen = list(QUICK)
    found = {name: PARTS[name](scale, write) for name in chosen}
    if write and (given.part is None or given.part == "page"):
        found = {name: found.get(name) or kept(name) for name in PARTS}
        text = f"{table(found)}\n\n{made()}"
        print(text)
        insert(ROOT / "docs" / "reliability.md", "fuzz", text)
    bad = [v for state in found.values() for v in _violations(state)]
    for one in bad[:40]:
        print("VIOLATION", one)
    sys.exit(bool(bad))


def _violations(state: dict[str, Any]) -> list[Any]:
    if "violations" in state:
        found = state["violations"]
        return [found] if found and not isinstance(found, list) else list(found)
    return [v for inner in state.values() for v in _violations(inner)]


if __name__ == "__main__":
    main()
