"""Needle questions: does the source with the highest score hold the fact that was asked for?

Documents about made-up names and numbers; one of them holds the number that the question asks for. A question counts if
SmolLM2-135M-Instruct answers it right, which is read from its own most likely tokens. ``run`` appends one line per
question to a file and goes on where it stopped; ``report`` writes docs/benchmarks/answers.md and its CSV files;
``cost``
measures time and memory, each way beside the plain pass in one process.

    python -m benchmarks.answers run --out needles.jsonl
    python -m benchmarks.answers report needles.jsonl
    quiet python -m benchmarks.answers cost --tokens 2048
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from attnflow.answers.questions import interval

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a script too

from benchmarks.weights import smollm2  # noqa: E402

PAGE = ROOT / "docs" / "benchmarks" / "answers.md"

DOCUMENTS = 6
LENGTHS = (200, 500, 1000, 2000, 4000)
TURNS = (
    (200,) * 8 + (500,) * 3 + (1000,) + (200,) * 8 + (500,) * 3 + (1000, 2000) + (200,) * 8 + (500,) * 3 + (1000, 4000)
)
"""The lengths of one round: short questions are many, so that a run that is stopped has seen every length."""

METHODS = ("direct:alti", "direct", "raw", "raw:alti")
SLOWER = ("rollout", "gradient", "input_x_gradient")
"""For every second question: a pass of their own, or more."""

SHORT = ("direct:norm", "rollout:alti", "flow")
"""For every eighth question of 200 tokens: they need every row of every layer, or another pass."""

_THINGS = ("access code", "locker number", "room number", "ticket number", "badge number", "seat number")
_SYLLABLES = (
    "ba",
    "do",
    "fen",
    "gil",
    "hu",
    "ka",
    "lor",
    "mi",
    "nav",
    "or",
    "pel",
    "qui",
    "ra",
    "sten",
    "tov",
    "ul",
    "vex",
    "zor",
)
_SUBJECTS = (
    "The old harbour",
    "A narrow path",
    "The village market",
    "Her brother",
    "The small orchestra",
    "A grey heron",
    "The night train",
    "Their garden",
    "The librarian",
    "A wooden bridge",
    "The baker",
    "An early frost",
)
_VERBS = (
    "is known for",
    "stands next to",
    "was painted beside",
    "often reminds people of",
    "lies far from",
    "looks after",
    "was moved closer to",
    "takes its name from",
)
_OBJECTS = (
    "the quiet river",
    "the stone tower",
    "a row of tall trees",
    "the winter festival",
    "an empty square",
    "the salt fields",
    "the southern gate",
    "the morning fog",
    "a blue lantern",
    "the glass workshop",
)


def name(chance: random.Random) -> str:
    return "".join(chance.choices(_SYLLABLES, k=3)).capitalize()


def filler(chance: random.Random) -> str:
    return f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)}."


def question(tokenizer: Any, number: int, length: int) -> dict[str, Any]:
    """Documents of unequal length with a fact each, of which one is asked for; about ``length`` tokens in all."""
    chance = random.Random(f"{number}/{length}")
    thing, names = chance.choice(_THINGS), []
    while len(names) < DOCUMENTS:
        names += [n for n in [name(chance)] if n not in names]
    codes = chance.sample(range(1000, 9999), DOCUMENTS)
    facts = [f"The {thing} of {n} is {c}." for n, c in zip(names, codes, strict=True)]
    size = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])  # noqa: E731
    room = length - sum(map(size, facts)) - 60
    shares = np.array([chance.uniform(0.3, 1.7) for _ in facts])
    documents = []
    for fact, part in zip(facts, room * shares / shares.sum(), strict=True):
        lines: list[str] = []
        while sum(map(size, lines)) + 8 < part:
            lines.append(filler(chance))
        lines.insert(chance.randint(0, len(lines)), fact)
        documents.append(" ".join(lines))
    asked = chance.randrange(DOCUMENTS)
    ask = f"What is the {thing} of {names[asked]}?"
    content = "\n\n".join(documents) + "\n\n" + ask
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    prompt = f"{text}The {thing} of {names[asked]} is"
    return {"prompt": prompt, "answer": f" {codes[asked]}", "documents": documents, "gold": asked}


def right(model: Any, tokenizer: Any, asked: dict[str, Any]) -> tuple[bool, int]:
    """(whether each token of the answer is the model's most likely one; how many tokens the prompt has)."""
    import torch

    ids = tokenizer(asked["prompt"], return_tensors="pt")["input_ids"]
    answer = tokenizer(asked["answer"], add_special_tokens=False)["input_ids"]
    fed = torch.cat([ids, torch.tensor([answer[:-1]], dtype=torch.long)], 1)
    with torch.no_grad():
        logits = model(input_ids=fed, logits_to_keep=len(answer), use_cache=False).logits[0]
    return logits.argmax(-1).tolist() == answer, ids.shape[1]


def one(model: Any, tokenizer: Any, number: int, length: int) -> dict[str, Any]:
    from attnflow import attribute

    asked = question(tokenizer, number, length)
    fine, tokens = right(model, tokenizer, asked)
    line: dict[str, Any] = {"number": number, "length": length, "tokens": tokens, "gold": asked["gold"], "right": fine}
    if not fine:
        return line
    methods = METHODS + (SLOWER if number % 2 == 0 else ()) + (SHORT if length <= 200 and number % 8 == 0 else ())
    found = attribute(
        model, tokenizer, asked["prompt"], asked["answer"], sources=asked["documents"], methods=methods, units="whole",
        check="all",
    )  # fmt: skip
    counts = [int((found.owners == i).sum()) for i in range(DOCUMENTS)]
    line["tokens_of"] = counts
    line["shares"] = {m: [round(float(v), 6) for v in found.shares(m)[0]] for m in found.scores}
    line["without"] = [round(float(v), 5) for v in found.checks["mask"][0]]
    line["first"] = {m: round(float(found.rest(m)["first token"][0]), 4) for m in found.scores}
    return line


def run(out: Path, most: int, lengths: list[int] | None) -> None:
    model, tokenizer = smollm2()
    lines = out.read_text().splitlines() if out.exists() else []
    done = {(r["number"], r["length"]) for r in map(json.loads, lines)}
    numbers: dict[int, int] = defaultdict(int)
    count = 0
    while count < most:
        for length in TURNS:
            if lengths and length not in lengths:
                continue
            number, numbers[length] = numbers[length], numbers[length] + 1
            if (number, length) in done:
                continue
            start = time.process_time()
            line = one(model, tokenizer, number, length) | {"seconds": 0.0}
            line["seconds"] = round(time.process_time() - start, 2)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            count += 1


def accuracy(lines: list[dict[str, Any]]) -> list[list[Any]]:
    """Per length and method: how many questions, how often the greatest source is the needle, and its 95 % interval."""
    rows = []
    for length in sorted({r["length"] for r in lines}):
        mine = [r for r in lines if r["length"] == length and r["right"]]
        hits: dict[str, list[bool]] = defaultdict(list)
        for r in mine:
            for method, shares in r["shares"].items():
                hits[method].append(int(np.argmax(shares)) == r["gold"])
            hits["leave-one-out"].append(int(np.argmax(r["without"])) == r["gold"])
            hits["longest document"].append(int(np.argmax(r["tokens_of"])) == r["gold"])
            hits["first document"].append(r["gold"] == 0)
            hits["last document"].append(r["gold"] == DOCUMENTS - 1)
        asked = sum(r["length"] == length for r in lines)
        for method, found in hits.items():
            low, high = interval(sum(found), len(found))
            rows.append([length, asked, len(mine), method, len(found), sum(found) / len(found), low, high])
    return rows


def report(path: Path) -> None:
    """Write the table and the CSV file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = accuracy(lines)
    head = ["tokens", "asked", "answered right", "method", "n", "top-1", "low", "high"]
    data = ROOT / "docs" / "data" / "answers_needles.csv"
    data.write_text("\n".join(",".join(map(str, r)) for r in [head, *rows]) + "\n")
    lengths = sorted({r[0] for r in rows})
    methods = list(dict.fromkeys(r[3] for r in rows))
    by = {(r[0], r[3]): r for r in rows}
    out = ["| top-1 source | " + " | ".join(f"{n} tokens" for n in lengths) + " |", "|---|" + "---|" * len(lengths)]
    counts = {r[0]: f"{r[2]} of {r[1]}" for r in rows}
    out.append("| *questions answered right* | " + " | ".join(counts[n] for n in lengths) + " |")
    for method in methods:
        cells = []
        for n in lengths:
            r = by.get((n, method))
            cells.append("–" if r is None else f"{r[5]:.2f} ({r[6]:.2f}–{r[7]:.2f})")
        out.append(f"| {method} | " + " | ".join(cells) + " |")
    right_ones = sum(r["right"] for r in lines)
    table = "\n".join(out)
    chance = f"chance is {1 / DOCUMENTS:.2f}; 95 % intervals (Wilson) in brackets"
    lead = f"{right_ones} questions that the model answers right, of {len(lines)} asked; {chance}."
    write_between(PAGE, "needles", f"{lead}\n\n{table}")
    print(table)


def write_between(page: Path, name: str, text: str) -> None:
    """Put a text between the marks of its name on a page."""
    whole = page.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = whole.partition(first)
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{rest.partition(last)[2]}", encoding="utf-8")


def shaped(what: str) -> Any:
    """SmolLM2 itself, or a random model of Llama's shape: 16 layers × 16 heads × 1,024."""
    if what == "smollm2":
        return smollm2()[0]
    import torch
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


def cost(model_name: str, tokens: int, ways: list[str], rounds: int, answer: int = 64) -> None:
    """Seconds and peak memory of each way, one after the other, beside the plain pass over the same tokens."""
    import torch

    torch.set_num_threads(1)
    model = shaped(model_name)
    ids = torch.randint(10, 30_000, (tokens + answer,), generator=torch.Generator().manual_seed(0)).tolist()
    for way in ways:
        one_way(model, way, ids[:128], ids[128:136])  # compiles kernels and fills caches
    found: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for _ in range(rounds):
        for way in ways:
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # the highest mark so far is forgotten
            before, start = memory("VmRSS"), time.perf_counter()
            said = one_way(model, way, ids[:tokens], ids[tokens:])
            found[way].append((time.perf_counter() - start, memory("VmHWM") - before, said))
    plain = min(t for t, _, _ in found["plain"])
    base = min(m for _, m, _ in found["plain"])
    for way, seen in found.items():
        seconds, peak = min(t for t, _, _ in seen), min(m for _, m, _ in seen)
        line = {"model": model_name, "tokens": tokens, "what": way, "seconds": round(seconds, 2)}
        line |= {"x plain": round(seconds / plain, 2), "MiB above plain": peak - base, "said": seen[0][2]}
        print(json.dumps(line), flush=True)


def one_way(model: Any, way: str, prompt: list[int], answer: list[int]) -> str:
    """One attribution of an answer, or the plain pass; what it says of itself."""
    import torch

    from attnflow.answers.leave_one_out import Without
    from attnflow.answers.reading import make_run, plain_run, read

    run_of = make_run(model, None, prompt, answer, {}, torch.device("cpu"))
    if way == "plain":
        plain_run(run_of)
    elif way == "leave-one-out":
        left, step = Without(run_of), len(prompt) // 20
        for i in range(20):
            left.positions(list(range(i * step, (i + 1) * step)))
        return f"{left.forwards:.2f} forwards for 20 sources"
    else:
        read(run_of, way)
    return ""


def memory(name: str) -> int:
    """MiB of this process: VmRSS now, VmHWM at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, the recorded questions, nothing written")
    parts = parser.add_subparsers(dest="part")
    runs = parts.add_parser("run")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--most", type=int, default=10_000)
    runs.add_argument("--lengths", type=int, nargs="*")
    parts.add_parser("report").add_argument("file", type=Path)
    costs = parts.add_parser("cost")
    costs.add_argument("--model", default="smollm2", choices=["smollm2", "llama"])
    costs.add_argument("--tokens", type=int, default=2048)
    costs.add_argument("--ways", nargs="*", default=["plain", "direct:alti", "direct", "rollout"])
    costs.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if given.quick:
        recorded = (ROOT / "docs" / "data" / "answers_needles.jsonl").read_text().splitlines()
        print(*accuracy([json.loads(line) for line in recorded]), sep="\n")
        cost("tiny", 160, ["plain", "direct:alti", "direct", "rollout"], 1, 8)
    elif given.part is None:
        parser.error("one of run, report and cost is needed")
    elif given.part == "run":
        run(given.out, given.most, given.lengths)
    elif given.part == "report":
        report(given.file)
    else:
        cost(given.model, given.tokens, given.ways, given.rounds)


if __name__ == "__main__":
    main()
