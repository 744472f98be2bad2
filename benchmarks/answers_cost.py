"""What it costs to attribute an answer: time and memory of each way beside the plain pass over the same tokens.

    python benchmarks/answers_cost.py                                     # both models, 2,048 and 8,192 tokens
    python benchmarks/answers_cost.py --model smollm2 --tokens 2048       # one of them; the others stay as recorded
    python benchmarks/answers_cost.py --quick                             # a tiny model, nothing written

One process and one thread, an answer of 64 tokens behind a prompt of 2,048 or 8,192 (for SmolLM2, which has 8,192
positions, of 8,128), each way in turn; the least of the rounds counts. Memory is the peak
of the resident set above that of the plain pass. Writes its place on docs/benchmarks/answers.md from
docs/data/answers_cost.csv.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pandas as pd
import torch
from report import DOCS, FOLDER, insert, made, markdown, quick
from weights import smollm2

CSV = DOCS / "data" / "answers_cost.csv"
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct (30 layers × 9 heads × 576)",
    "llama": "Llama's shape, random (16 layers × 16 heads on 4 keys × 1,024)",
}
TOKENS = (2048, 8192)
WAYS = ("plain", "direct", "direct:alti", "rollout", "leave-one-out")
SOURCES = 20
MOST_TIME, MOST_MEMORY = 3.0, {2048: 600, 8192: 1536}


def shaped(what: str) -> Any:
    """SmolLM2 itself, or a random model of Llama's shape: 16 layers × 16 heads × 1,024."""
    if what == "smollm2":
        return smollm2()[0]
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4,
        vocab_size=32_000, max_position_embeddings=16_384,
    )  # fmt: skip
    if what == "tiny":
        config = LlamaConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=32_000
        )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def cost(name: str, tokens: int, rounds: int, answer: int = 64) -> pd.DataFrame:
    """A row per way: seconds, as a multiple of the plain pass, and MiB above it."""
    torch.set_num_threads(1)
    model = shaped(name)
    prompt = min(tokens, model.config.max_position_embeddings - answer)
    ids = torch.randint(10, 30_000, (prompt + answer,), generator=torch.Generator().manual_seed(0)).tolist()
    ways = WAYS if tokens <= TOKENS[0] else WAYS[:-1]  # what leave-one-out takes is a number of passes
    for way in ways:
        one_way(model, way, ids[:128], ids[128:136])  # compiles kernels and fills caches
    found: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for _ in range(rounds):
        for way in ways:
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
            before, start = memory("VmRSS"), time.perf_counter()
            said = one_way(model, way, ids[:prompt], ids[prompt:])
            found[way].append((time.perf_counter() - start, memory("VmHWM") - before, said))
            print(f"{name}, {tokens} tokens, {way}: {found[way][-1][0]:.1f} s", flush=True)
    least = {way: (min(t for t, _, _ in seen), min(m for _, m, _ in seen), seen[0][2]) for way, seen in found.items()}
    plain, base, _ = least["plain"]
    rows = [[name, tokens, way, t, t / plain, m - base, said] for way, (t, m, said) in least.items()]
    return pd.DataFrame(rows, columns=["model", "tokens", "way", "seconds", "ratio", "mib", "said"])


def one_way(model: Any, way: str, prompt: list[int], answer: list[int]) -> str:
    """One attribution of an answer, or the plain pass; what it says of itself."""
    from attnflow.answers.leave_one_out import Without
    from attnflow.answers.reading import make_run, plain_run, read

    run_of = make_run(model, None, prompt, answer, {}, torch.device("cpu"))
    if way == "plain":
        plain_run(run_of)
    elif way == "leave-one-out":
        left, step = Without(run_of), len(prompt) // SOURCES
        for i in range(SOURCES):
            left.positions(list(range(i * step, (i + 1) * step)))
        return f"{left.forwards:.1f} forwards for {SOURCES} sources"
    else:
        read(run_of, way)
    return ""


def memory(name: str) -> int:
    """MiB of this process: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


def table(frame: pd.DataFrame) -> str:
    """A table per model and length, and what of the targets is not met."""
    out = []
    for (name, tokens), part in frame.groupby(["model", "tokens"], sort=False):
        plain = part.set_index("way")["seconds"]["plain"]
        rows = [
            [f"`{way}`" if way != "leave-one-out" else f"{way}: {said}", f"{ratio:.2f}", f"{mib:.0f}"]
            for way, ratio, mib, said in part[["way", "ratio", "mib", "said"]].itertuples(index=False)
            if way != "plain"
        ]
        head = ["way", "× plain", "MiB above plain"]
        out.append(f"{MODELS[name]}, {tokens:,} tokens; the plain pass takes {plain:.1f} s:\n\n{markdown(head, rows)}")
    return "\n\n".join([*out, targets(frame)])


def targets(frame: pd.DataFrame) -> str:
    """What was aimed at: 3 × the plain pass, 600 MiB or 1.5 GiB above it, a pass per source at most."""
    read = frame[~frame["way"].isin(["plain", "leave-one-out"])]
    over = read[(read["ratio"] > MOST_TIME) | (read["mib"] > read["tokens"].map(MOST_MEMORY))]
    passes = frame[frame["way"] == "leave-one-out"]["said"].str.split().str[0].astype(float)
    missed = [f"{r.way} of {r.model} at {r.tokens:,} tokens" for r in over.itertuples()]
    missed += ["leave-one-out"] if (passes > SOURCES).any() else []
    return (
        f"Aimed at: {MOST_TIME:.0f} × the plain pass, {MOST_MEMORY[2048]} MiB above it at 2,048 and "
        f"{MOST_MEMORY[8192]:,} MiB at 8,192 tokens, and at most {SOURCES} passes for {SOURCES} sources. "
        f"Missed: {', '.join(missed) or 'nothing'}."
    )


def record(found: pd.DataFrame) -> None:
    """Put new rows in the place of older ones of the same model and length, and write the table."""
    old = pd.read_csv(CSV).fillna({"said": ""}) if CSV.exists() else found[:0]
    fresh = set(zip(found["model"], found["tokens"], strict=True))
    kept = old[[pair not in fresh for pair in zip(old["model"], old["tokens"], strict=True)]]
    frame = pd.concat([kept, found]) if len(kept) else found
    order = sorted(
        range(len(frame)), key=lambda i: (list(MODELS).index(frame["model"].iloc[i]), frame["tokens"].iloc[i])
    )
    frame = frame.iloc[order]
    frame.to_csv(CSV, index=False, float_format="%.3f")
    insert(FOLDER / "answers.md", "cost", f"{table(frame)}\n\n{made()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--tokens", type=int, action="append", choices=TOKENS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a tiny model, 160 tokens, nothing written")
    given = parser.parse_args()
    if quick():
        print(cost("tiny", 160, 1, 8).to_string(index=False))
        return
    for tokens in given.tokens or TOKENS:
        for name in given.model or MODELS:
            found = cost(name, tokens, given.rounds)
            print(found.to_string(index=False))
            record(found)


if __name__ == "__main__":
    main()
