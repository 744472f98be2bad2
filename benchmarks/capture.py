"""What capture costs: time and peak memory against plain sdpa and against eager ``output_attentions=True``.

    python benchmarks/capture.py            # all lengths, some minutes
    python benchmarks/capture.py --quick    # two layers of one shape, 16 tokens, one round

Random models of the shapes of BERT-base, GPT-2-small and a small Llama with grouped heads. Times are of one thread,
interleaved in one process (the least of several rounds); memory is the peak of the resident set above the loaded model,
each measured in a process of its own. Writes docs/benchmarks/capture.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from report import made, quick

from attnflow import capture
from attnflow.scoring.rollout_stream import rollout_matrix, rollout_row

OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "capture.md"
SHAPES = ("bert", "gpt2", "llama")
METHODS = ("sdpa", "capture", "eager output_attentions", "streamed rollout", "streamed row")
WEIGHED = (512, 2048)
TARGETS = {
    ("bert", 512): 1.05, ("gpt2", 512): 1.20, ("gpt2", 1024): 1.15, ("llama", 512): 1.35, ("llama", 2048): 1.50,
}  # fmt: skip


def build(shape: str) -> Any:
    """A random model: 12 layers × 12 heads × 768 (bert, gpt2), 8 layers × 16 heads on 4 keys × 512 (llama).

    "smollm2" has the sizes of SmolLM2-135M (30 layers × 9 heads on 3 keys × 576), the smallest Llama that is in use.
    "llama-1b" has the layers of Llama-3.2-1B (32 heads on 8 keys × 2048), four of them, and a smaller vocabulary.
    """
    torch.manual_seed(0)
    few = {"num_hidden_layers": 2} if quick() else {}
    if shape == "bert":
        return transformers.BertModel(transformers.BertConfig(max_position_embeddings=2048, **few)).eval()
    if shape == "gpt2":
        return transformers.GPT2Model(transformers.GPT2Config(n_positions=2048, **few)).eval()
    if shape == "llama-1b":
        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
        few = {"num_hidden_layers": 2 if quick() else 4}
    elif shape == "smollm2":
        sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
        few = {"num_hidden_layers": 2 if quick() else 30}
    else:
        sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 16, "num_key_value_heads": 4}
        few = {"num_hidden_layers": 2 if quick() else 8}
    return transformers.LlamaModel(transformers.LlamaConfig(max_position_embeddings=4096, **sizes, **few)).eval()


def run(model: Any, method: str, ids: torch.Tensor) -> Any:
    """One run of the model by one method; what it returns is what has to be in memory."""
    if method == "capture":
        return capture(model, None, ids)
    if method == "streamed rollout":
        return rollout_matrix(model, None, ids)
    if method == "streamed row":
        return rollout_row(model, None, ids, position=-1)
    eager = method != "sdpa"
    model.set_attn_implementation("eager" if eager else "sdpa")
    try:
        with torch.no_grad():
            return model(ids, use_cache=False, output_attentions=eager)
    finally:
        model.set_attn_implementation("sdpa")


def ids_of(length: int) -> torch.Tensor:
    return torch.randint(5, 20000, (1, length), generator=torch.Generator().manual_seed(length))


def times(shape: str, length: int, rounds: int) -> dict[str, float]:
    """Least seconds of each method, interleaved."""
    model, ids = build(shape), ids_of(length)
    best = dict.fromkeys(METHODS, float("inf"))
    run(model, "capture", ids_of(16))
    for _ in range(rounds):
        for method in METHODS:
            start = time.perf_counter()
            run(model, method, ids)
            best[method] = min(best[method], time.perf_counter() - start)
    return best


def peak(shape: str, length: int, method: str, run: Callable[..., Any] = run) -> float:
    """MiB above the loaded model while ``run(model, method, ids)`` works, in a fresh process.

    It is spawned, not forked: a fork would have all that this process has freed, and use it again unseen.
    """
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(shape, length, method, run, writer))
    child.start()
    writer.close()
    try:
        return float(reader.recv())
    finally:
        child.join()


def _measure(shape: str, length: int, method: str, run: Callable[..., Any], writer: Any) -> None:
    torch.set_num_threads(1)
    model, ids = build(shape), ids_of(length)
    run(model, method, ids_of(16))  # loads and compiles what it needs
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    kept = run(model, method, ids)
    writer.send(_status("VmHWM") - before)
    del kept


def _status(name: str) -> float:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1]) / 1024


def table(title: str, shapes: tuple[str, ...], lengths: list[int], cell: Callable[[str, int, str], str]) -> list[str]:
    """A Markdown table: one row for each shape and length, one column for each method."""
    out = [f"## {title}", "", "| shape | tokens | " + " | ".join(METHODS) + " |"]
    out.append("|---|---:|" + "---:|" * len(METHODS))
    for shape in shapes:
        for length in lengths:
            out.append(f"| {shape} | {length} | " + " | ".join(cell(shape, length, m) for m in METHODS) + " |")
    return [*out, ""]


def verdicts(taken: dict[Any, dict[str, float]], memory: dict[Any, float], lengths: list[int]) -> list[str]:
    """Each target with the figure of this run."""
    out = ["## Targets", ""]
    for (shape, length), target in TARGETS.items():
        if length in lengths:
            ratio = taken[shape, length]["capture"] / taken[shape, length]["sdpa"]
            met = "met" if ratio <= target else "not met"
            out.append(f"- {shape}, {length} tokens: {ratio:.2f}× plain sdpa (target ≤ {target:.2f}×): {met}.")
    for shape in SHAPES:
        if 2048 in lengths:
            ratio = taken[shape, 2048]["capture"] / taken[shape, 2048]["eager output_attentions"]
            met = "met" if ratio < 1 else "not met"
            out.append(f"- {shape}, 2048 tokens: {ratio:.2f}× eager output_attentions (target < 1×): {met}.")
            plain = memory[shape, 2048, "sdpa"]
            ours, theirs = (memory[shape, 2048, m] for m in ("capture", "eager output_attentions"))
            whole, above = ours / theirs, (ours - plain) / (theirs - plain)
            met = "met" if max(whole, above) <= 1 / 6 else "not met"
            out.append(
                f"- {shape}, 2048 tokens: {whole:.3f} of eager's whole peak above the loaded model, {above:.3f} of "
                f"what eager needs above plain sdpa (target ≤ 1/6 = 0.167 for both): {met}."
            )
    return [*out, ""]


def main() -> None:
    """Measure, print, write."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--quick", action="store_true", help="two layers of one shape, 16 tokens, one round, nothing written"
    )
    arguments.add_argument("--rounds", type=int, default=6)
    chosen = arguments.parse_args()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    lengths = [16] if chosen.quick else [128, 512, 1024, 2048]
    shapes = SHAPES[-1:] if chosen.quick else SHAPES
    # Before anything is computed in this process: its children then start from the same state.
    weighed = lengths if chosen.quick else [n for n in lengths if n in WEIGHED]
    memory = {(s, n, m): peak(s, n, m) for s in shapes for n in weighed for m in METHODS}
    rounds = 1 if chosen.quick else chosen.rounds
    taken = {(s, n): times(s, n, rounds if n <= 512 else max(2, rounds // 2)) for s in shapes for n in lengths}
    lines = [
        "# What capture costs",
        "",
        f"{made('python benchmarks/capture.py')} One thread of {platform.processor() or platform.machine()}, float32, "
        "one text. Shapes: BERT-base, "
        "GPT-2-small (12 layers × 12 heads × 768), llama (8 layers × 16 heads on 4 keys × 512), random weights.",
        "",
        *table(
            "Time, as a multiple of plain sdpa",
            shapes,
            lengths,
            lambda s, n, m: (
                f"{taken[s, n][m]:.3f} s" if m == "sdpa" else f"{taken[s, n][m] / taken[s, n]['sdpa']:.2f}×"
            ),
        ),
        *table(
            "Peak memory above the loaded model, MiB",
            shapes,
            weighed,
            lambda s, n, m: f"{memory[s, n, m]:.0f}",
        ),
        *verdicts(taken, memory, lengths),
    ]
    print("\n".join(lines))
    if not chosen.quick:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
