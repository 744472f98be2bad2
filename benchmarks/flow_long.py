"""Attention flow at the length of language models, against one forward pass of the same model over the same tokens.

python benchmarks/flow_long.py [--part NAME ...] [--work FOLDER]

Parts are kept in FOLDER as they are done; without ``--part`` those that are missing are run and the page is written.
``row N``: one output (the last) at the top, all inputs, exact up to 2,048 tokens and with ``tolerance=1e-3`` above; the
time is that of ``flow`` on captured attention. ``layer N``: all outputs of the top layer. ``local``: synthetic local
attention of 12 layers against a BERT-base shape. ``reads``: how often each capacity is read, by a debug build. One
thread for both sides of every ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from flow_networks import available, synthetic
from report import markdown, write

LIMITS = {"row 512": 0.3, "row 1024": 1, "row 2048": 3, "row 4096": 1, "row 8192": 2, "layer 128": 1.5, "layer 256": 4}
TOLERANCE = 1e-3
EXACT = 2048
READS = """
import sys
sys.path.insert(0, {folder!r})
from flow_networks import real
from attnflow.scoring.flow.counting import taken
from attnflow.scoring.flow.solver import solve
stack = real({name!r}, {n})
taken()
solve(stack, [len(stack)], [{n} - 1], threads=1)
found = taken()
print(found.edges, found.hops, found.sets, found.waves, found.pairs, int((stack > 0).sum()))
"""


def prose(tokenizer: Any, n: int) -> list[int]:
    """English of the language reference that comes with Python: long, and not the same text again and again."""
    from pydoc_data.topics import topics

    names = ("typesseq", "exceptions", "execmodel", "import", "naming", "objects", "specialnames", "compound")
    text = " ".join(" ".join(topics[k].split()) for k in names if k in topics)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) < n:
        raise SystemExit(f"the text has {len(ids)} tokens, but {n} were asked for")
    return list(ids[:n])


def passes(n: int, whole: bool) -> dict[str, float]:
    """Seconds of a forward pass, and of flow on the attention that was captured from it."""
    import torch
    from weights import smollm2

    from attnflow import capture, flow

    torch.set_num_threads(1)
    model, tokenizer = smollm2()
    ids = prose(tokenizer, n)
    with torch.no_grad():
        if n <= 512:
            model(torch.tensor([ids]))
        start = time.perf_counter()
        model(torch.tensor([ids]))
        forward = time.perf_counter() - start
    start = time.perf_counter()
    attention = capture(model, None, ids)
    captured = time.perf_counter() - start
    flow(np.full((3, 2, 2), 0.5))  # load the kernel
    options: dict[str, Any] = {} if n <= EXACT else {"tolerance": TOLERANCE}
    start = time.perf_counter()
    found = flow(attention, layer=-1, position=None if whole else -1, threads=1, **options)
    taken = time.perf_counter() - start
    width = float((found.settings["upper"] - found.scores).max()) if options else 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    wide = found.settings.get("wide", 0)
    return {"forward": forward, "capture": captured, "flow": taken, "width": width, "wide": wide, "GiB": peak}


def local(n: int = 512, seconds: float = 4.0) -> dict[str, float]:
    """One row of synthetic local attention against a BERT-base shape."""
    import torch
    from flow import ours
    from transformers import BertConfig, BertModel

    from attnflow.scoring.flow.solver import solve

    torch.set_num_threads(2)
    model, stack = BertModel(BertConfig()).eval(), synthetic("local", n, 12)
    with torch.no_grad():
        ids = torch.randint(1000, 20000, (1, n))
        forward = ours(lambda: model(ids), seconds)
    return {"forward": forward, "flow": ours(lambda: solve(stack, [12], [n - 1], threads=2), seconds)}


def reads(name: str, n: int) -> dict[str, float]:
    """What a debug build of the kernels reads for one row."""
    code = READS.format(folder=os.path.dirname(os.path.abspath(__file__)), name=name, n=n)
    env = {**os.environ, "ATTNFLOW_COUNT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    edges, hops, sets, waves, pairs, total = map(int, done.stdout.split())
    return {"searched": edges / total, "laid": hops / total, "sets": sets / total, "waves": waves / max(pairs, 1),
            "pairs": pairs, "capacities": total}  # fmt: skip


def run(part: str) -> dict[str, float]:
    """One part of the page."""
    kind, _, rest = part.partition(" ")
    if kind == "local":
        return local()
    if kind == "reads":
        name, n = rest.split()
        return reads(name, int(n))
    return passes(int(rest), kind == "layer")


def parts() -> list[str]:
    """All parts whose packages are installed."""
    have = available()
    found = [*LIMITS] if have["smollm2"] else []
    for name, sizes in (("minilm", (128, 512)), ("mpnet", (128, 512)), ("smollm2", (128, 512, 1024))):
        found += [f"reads {name} {n}" for n in sizes if have[name]]
    return [*found, "local"]


def page(done: dict[str, dict[str, float]]) -> None:
    """Write the page from parts that are done."""
    rows, missed = [], []
    for part, limit in LIMITS.items():
        if part not in done:
            missed.append(f"{part}: not run")
            continue
        d = done[part]
        ratio = d["flow"] / d["forward"]
        width = f"{d['width']:.1e}" if d["width"] else "exact"
        width += f", {d['wide']} above {TOLERANCE:g}" if d.get("wide") else ""
        cells = (f"{d[k]:.3g} s" for k in ("flow", "forward", "capture"))
        rows.append([part, width, *cells, f"{d['GiB']:.1f}", f"{ratio:.2f}", limit])
        if ratio > limit or d["width"] > TOLERANCE:
            missed.append(f"{part}: {ratio:.2f} passes (limit {limit})")
    text = []
    if "local" in done:
        ratio = done["local"]["flow"] / done["local"]["forward"]
        text.append(f"One row of synthetic local attention, 12 layers, n = 512: {ratio:.2f} passes of a BERT-base "
                    "shape on both cores (limit 0.8).")  # fmt: skip
        missed += [f"local: {ratio:.2f} passes (limit 0.8)"] if ratio > 0.8 else []
    sizes = [int(p.split()[1]) for p in done if p.startswith("row") and int(p.split()[1]) <= EXACT]
    if len(sizes) > 1:
        slope = np.polyfit(np.log(sizes), np.log([done[f"row {n}"]["flow"] for n in sizes]), 1)[0]
        text.append(f"Growth of an exact row on SmolLM2 from {min(sizes)} to {max(sizes)} tokens: n^{slope:.2f}.")
    counted = [[*p.split()[1:], f"{d['searched']:.2f}", f"{d['laid']:.2f}", f"{d['sets']:.3f}", int(d["pairs"]),
                f"{d['waves']:.1f}"] for p, d in done.items() if p.startswith("reads")]  # fmt: skip
    if counted:
        head = [
            "model",
            "n",
            "by the search",
            "sums, by the relay bound",
            "words of sets",
            "pairs searched",
            "waves each",
        ]
        text.append("How often each capacity is read for one row, besides the once when it is rounded:\n\n"
                    + markdown(head, counted))  # fmt: skip
    text.insert(0, f"Targets missed: {'; '.join(missed) or 'none'}.")
    head = ["", "interval", "flow", "forward pass", "capture", "peak GiB", "passes", "limit"]
    write("flow_long", "Attention flow at the length of language models", head, rows, "\n\n".join(text),
          "python benchmarks/flow_long.py")  # fmt: skip


def main() -> None:
    """Run the parts that are missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs="*", help="only these parts, and no page")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "attnflow-flow-long")
    parser.add_argument("--quick", action="store_true", help="one short part, nothing written")
    options = parser.parse_args()
    if options.quick:
        print("local", local(n=32, seconds=0.1))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    done = {}
    for part in options.part or parts():
        kept = options.work / f"{part.replace(' ', '-')}.json"
        if not kept.exists():
            kept.write_text(json.dumps(run(part)))
        done[part] = json.loads(kept.read_text())
        print(part, done[part], flush=True)
    if not options.part:
        page(done)


if __name__ == "__main__":
    main()
