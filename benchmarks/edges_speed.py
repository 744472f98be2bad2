"""What edges cost: time as a multiple of plain sdpa, and peak memory as a multiple of plain capture's.

    python benchmarks/edges.py speed                       # all, some minutes
    python benchmarks/edges.py speed --quick               # 128 tokens, one round, writes nothing
    python benchmarks/edges.py speed --part time-bert      # one part, which is left in --work
    python benchmarks/edges.py speed --write               # the page, from all parts in --work

Random models of the shapes of BERT-base, of a made-up small Llama with grouped heads, of SmolLM2-135M and of layers of
Llama-3.2-1B (benchmarks/capture.py). Times are interleaved in one process, the least of several rounds: of three times
as many at the smaller length, where a run is short and a disturbance shows. Value zeroing runs every layer again by
itself, so it is timed on two layers of each shape, against the plain run of the same two; on the largest shape at the
smaller length alone, as the other takes many minutes. Memory is the peak of the resident set above the loaded model,
each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from capture import build, ids_of, peak
from report import FOLDER, insert, markdown

from attnflow import capture

SHAPES = ("bert", "llama", "smollm2", "llama-1b")
LENGTHS = (128, 512)
LONG = 2048
TARGETS: dict[str, tuple[float, float]] = {"norm": (1.5, 2.0), "alti": (2.5, 4.0), "gradient": (4.0, 5.0)}
ZEROING, MEMORY = 0.7, 2.0
PARTS = [f"{what}-{shape}" for shape in SHAPES for what in ("time", "zeroing", "memory")]
Figures = dict[str, float]


def run(model: Any, kind: str, ids: torch.Tensor) -> Any:
    """One run with one kind of edges; "sdpa" is the model alone."""
    if kind == "sdpa":
        with torch.no_grad():
            return model(ids, use_cache=False)
    return capture(model, None, ids, edges=kind)


def times(model: Any, kinds: tuple[str, ...], length: int, rounds: int) -> Figures:
    """Least seconds of each kind, interleaved."""
    best = dict.fromkeys(kinds, float("inf"))
    for kind in kinds:
        run(model, kind, ids_of(16))
    for _ in range(rounds):
        for kind in kinds:
            start = time.perf_counter()
            run(model, kind, ids_of(length))
            best[kind] = min(best[kind], time.perf_counter() - start)
    return best


def two_layers(shape: str) -> Any:
    """The first two layers of a shape."""
    model = build(shape)
    owner, name = (model.encoder, "layer") if shape == "bert" else (model, "layers")
    setattr(owner, name, getattr(owner, name)[:2])
    model.config.num_hidden_layers = 2
    return model


def measure(part: str, lengths: tuple[int, ...], rounds: int) -> dict[str, Figures]:
    """The figures of one part: by length, kind of edges → seconds or MiB."""
    what, shape = part.split("-", 1)
    if what == "memory":
        return {str(LONG): {kind: peak(shape, LONG, kind, run) for kind in ("attention", "norm", "alti")}}
    if what == "zeroing":
        timed = lengths[:1] if shape == "llama-1b" else lengths
        return {str(n): times(two_layers(shape), ("sdpa", "value_zeroing"), n, 1 if n > 128 else 2) for n in timed}
    model = build(shape)
    return {str(n): times(model, ("sdpa", "attention", *TARGETS), n, rounds * (1 if n > 128 else 3)) for n in lengths}


def lines(found: dict[str, dict[str, Figures]]) -> list[list[str]]:
    """One line per shape and length: ratios, each with its target."""
    made = []
    for shape in SHAPES:
        for at, n in enumerate(LENGTHS):
            figures, zeroing = found[f"time-{shape}"][str(n)], found[f"zeroing-{shape}"].get(str(n))
            cells = [f"{figures['attention'] / figures['sdpa']:.2f}"]
            cells += [f"{figures[k] / figures['sdpa']:.2f} (≤ {limits[at]:g})" for k, limits in TARGETS.items()]
            ratio = f"{zeroing['value_zeroing'] / zeroing['sdpa']:.0f} (≤ {ZEROING * n:.0f})" if zeroing else "–"
            cells.append(ratio)
            made.append([shape, str(n), f"{figures['sdpa']:.3f} s", *cells])
    return made


def missed(found: dict[str, dict[str, Figures]]) -> list[str]:
    """Targets that this run does not meet, in words."""
    out = []
    for shape in SHAPES:
        for at, n in enumerate(LENGTHS):
            figures, zeroing = found[f"time-{shape}"][str(n)], found[f"zeroing-{shape}"].get(str(n))
            pairs = [(k, figures[k] / figures["sdpa"], limits[at]) for k, limits in TARGETS.items()]
            if zeroing:
                pairs.append(("value_zeroing", zeroing["value_zeroing"] / zeroing["sdpa"], ZEROING * n))
            out += [f"{k} on {shape} at {n} tokens ({r:.2f}, target {t:g})" for k, r, t in pairs if r > t]
        memory = found[f"memory-{shape}"][str(LONG)]
        for kind in ("norm", "alti"):
            ratio = memory[kind] / memory["attention"]
            if ratio > MEMORY:
                out.append(f"the memory of {kind} on {shape} ({ratio:.2f}, target {MEMORY:g})")
    return out


def page(found: dict[str, dict[str, Figures]]) -> str:
    """What stands on docs/benchmarks/edges.md."""
    weighed = []
    for shape in SHAPES:
        memory = found[f"memory-{shape}"][str(LONG)]
        ratios = [f"{memory[k]:.0f} MiB, {memory[k] / memory['attention']:.2f}×" for k in ("norm", "alti")]
        weighed.append([shape, f"{memory['attention']:.0f} MiB", *ratios])
    late = missed(found)
    return "\n\n".join(
        [
            "Time as a multiple of the plain sdpa run in the same process, with the target in brackets. One thread, "
            f"float32, torch {torch.__version__}, transformers {transformers.__version__}. Shapes: BERT-base (12 "
            "layers × 12 heads × 768), a made-up small Llama (8 layers × 16 heads on 4 keys × 512), SmolLM2-135M (30 "
            "layers × 9 heads on 3 keys × 576), layers of Llama-3.2-1B (4 × 32 heads on 8 keys × 2048). Value zeroing "
            "is timed on two of the layers.",
            markdown(["shape", "tokens", "sdpa", "attention", *TARGETS, "value_zeroing"], lines(found)),
            f"Peak memory above the loaded model at {LONG} tokens, and as a multiple of plain capture's (target ≤ "
            f"{MEMORY:g}×):",
            markdown(["shape", "attention", "norm", "alti"], weighed),
            "All targets are met." if not late else f"Not met: {'; '.join(late)}.",
        ]
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two layers, 16 tokens, one round, nothing written")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--write", action="store_true", help="put together what --part left in --work")
    parser.add_argument("--work", type=Path, default=Path("edges-speed"))
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    if given.quick:
        found = {p: measure(p, (16,), 1) for p in given.part or PARTS if "memory" not in p}
        print(json.dumps(found, indent=1))
        return
    given.work.mkdir(parents=True, exist_ok=True)
    for part in [] if given.write else given.part or PARTS:
        figures = measure(part, LENGTHS, given.rounds)
        (given.work / f"{part}.json").write_text(json.dumps(figures))
        print(part, json.dumps(figures), flush=True)
    if given.part and not given.write:
        return
    found = {part: json.loads((given.work / f"{part}.json").read_text()) for part in PARTS}
    text = page(found)
    print(text)
    insert(FOLDER / "edges.md", "speed", text)


if __name__ == "__main__":
    main()
