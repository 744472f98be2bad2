"""Needle questions: does the source with the highest score hold the fact that was asked for?

    python benchmarks/answers.py run                # asks, and goes on where it stopped
    python benchmarks/answers.py run --most 20 --lengths 2000 4000
    python benchmarks/answers.py report             # figure, table and CSV file from what was recorded

Documents about made-up names and numbers; one of them holds the number that the question asks for. A question counts if
SmolLM2-135M-Instruct answers it right, which is read from its own most likely tokens. ``run`` appends one line per
question to docs/data/answers_needles.jsonl. What an attribution costs is measured by answers_cost.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from report import DOCS, FOLDER, insert, made, markdown, save
from weights import smollm2

from attnflow.answers.questions import interval

PAGE = FOLDER / "answers.md"
LINES = DOCS / "data" / "answers_needles.jsonl"
CSV = DOCS / "data" / "answers_needles.csv"

DOCUMENTS = 6
LENGTHS = (200, 500, 1000, 2000, 4000)
TURNS = (
    (200,) * 8 + (500,) * 3 + (1000,) + (200,) * 8 + (500,) * 3 + (1000, 2000) + (200,) * 8 + (500,) * 3 + (1000, 4000)
)
"""The lengths of one round: short questions are many, so that a run that is stopped has seen every length."""

METHODS = ("direct:alti", "direct", "raw", "raw:alti")
SLOWER = ("rollout", "gradient", "input_x_gradient")
"""For every fourth question: a pass of their own, or more."""

SHORT = ("direct:norm", "rollout:alti", "flow")
"""For every eighth question of 200 tokens: they need every row of every layer, or another pass."""

_THINGS = ("access code", "locker number", "room number", "ticket number", "badge number", "seat number")
_SYLLABLES = (
    "ba", "do", "fen", "gil", "hu", "ka", "lor", "mi", "nav", "or", "pel", "qui", "ra", "sten", "tov", "ul", "vex",
    "zor",
)  # fmt: skip
_SUBJECTS = (
    "The old harbour", "A narrow path", "The village market", "Her brother", "The small orchestra", "A grey heron",
    "The night train", "Their garden", "The librarian", "A wooden bridge", "The baker", "An early frost",
)  # fmt: skip
_VERBS = (
    "is known for", "stands next to", "was painted beside", "often reminds people of", "lies far from",
    "looks after", "was moved closer to", "takes its name from",
)  # fmt: skip
_OBJECTS = (
    "the quiet river", "the stone tower", "a row of tall trees", "the winter festival", "an empty square",
    "the salt fields", "the southern gate", "the morning fog", "a blue lantern", "the glass workshop",
)  # fmt: skip


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
    methods = METHODS + (SLOWER if number % 4 == 0 else ()) + (SHORT if length <= 200 and number % 8 == 0 else ())
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


HEAD = ("tokens", "asked", "answered right", "method", "n", "top-1", "low", "high")
DRAWN = ("leave-one-out", "direct:alti", "gradient", "input_x_gradient", "direct", "raw", "rollout")


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
    """Write the CSV file, and from it the figure and the table."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = accuracy(lines)
    CSV.write_text("\n".join(",".join(map(str, r)) for r in [HEAD, *rows]) + "\n", encoding="utf-8")
    save(draw(rows), DOCS / "images" / "answers.svg")
    lengths = sorted({r[0] for r in rows})
    by = {(r[0], r[3]): r for r in rows}
    counts = {r[0]: f"{r[2]} of {r[1]}" for r in rows}
    table: list[list[str]] = [["*questions answered right*", *(counts[n] for n in lengths)]]
    for method in dict.fromkeys(r[3] for r in rows):
        found = [by.get((n, method)) for n in lengths]
        table.append([method, *("–" if r is None else f"{r[5]:.2f} ({r[6]:.2f}–{r[7]:.2f})" for r in found)])
    text = markdown(["top-1 source", *(f"{n:,} tokens" for n in lengths)], table)
    lead = (
        f"{sum(r['right'] for r in lines)} questions that the model answers right, of {len(lines)} asked. Chance is "
        f"{1 / DOCUMENTS:.2f}; 95 % intervals (Wilson) in brackets. A dash: the method was not asked at this length."
    )
    figure = "![How often each method names the document that holds the fact, by length](../images/answers.svg)"
    insert(PAGE, "needles", f"{figure}\n\n{lead}\n\n{text}\n\n{made('python benchmarks/answers.py report')}")
    print(text)


def draw(rows: list[list[Any]]) -> Any:
    """Accuracy by length, a line per method with its interval; leave-one-out dashed, chance dotted."""
    from matplotlib.figure import Figure

    lengths = sorted({r[0] for r in rows})
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    panel = figure.subplots()
    for number, method in enumerate(DRAWN):
        mine = [r for r in rows if r[3] == method]
        at = [lengths.index(r[0]) + (number - len(DRAWN) / 2) * 0.04 for r in mine]
        spread = [[r[5] - r[6] for r in mine], [r[7] - r[5] for r in mine]]
        style = "--" if method == "leave-one-out" else "-"
        panel.errorbar(at, [r[5] for r in mine], yerr=spread, marker="o", markersize=4, linestyle=style, label=method)
    panel.axhline(1 / DOCUMENTS, color="0.6", linestyle=":", linewidth=1)
    panel.set(xticks=range(len(lengths)), xticklabels=[f"{n:,}" for n in lengths], ylim=(0, 1.03))
    panel.set(xlabel="tokens of the prompt", ylabel="the right document comes first")
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize="small", loc="outside right center")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="count the recorded questions, write nothing")
    parts = parser.add_subparsers(dest="part")
    runs = parts.add_parser("run")
    runs.add_argument("--out", type=Path, default=LINES)
    runs.add_argument("--most", type=int, default=10_000)
    runs.add_argument("--lengths", type=int, nargs="*")
    parts.add_parser("report").add_argument("file", type=Path, nargs="?", default=LINES)
    given = parser.parse_args()
    if given.quick:
        recorded = LINES.read_text(encoding="utf-8").splitlines()
        print(markdown(HEAD, accuracy([json.loads(line) for line in recorded])))
    elif given.part == "run":
        run(given.out, given.most, given.lengths)
    elif given.part == "report":
        report(given.file)
    else:
        parser.error("one of run and report is needed")


if __name__ == "__main__":
    main()
