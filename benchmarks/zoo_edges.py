"""Edges of every model type of transformers: two columns of docs/zoo.md, and docs/data/zoo-edges.csv.

    python benchmarks/zoo_edges.py --work DIR                  # all types; a run goes on from the rows in DIR
    python benchmarks/zoo_edges.py --work DIR --types bert,t5  # some
    python benchmarks/zoo_edges.py --work DIR --again REGEX    # those whose row has words that match, once more

Each type is built small as for benchmarks/zoo.py, in a process of its own. Its norms get gains and biases, every layer
is decomposed (edges="alti" and "norm") with the certificate, and run again with values of zero. Where the model is made
as most are, both are compared with the naive forms of tests/capturing/edges/naive.py, which share no code with the
package. The command exits with 1 if a certificate holds and the numbers are wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pandas as pd
import zoo
from report import insert, made, markdown
from zoo_page import with_edges

DOCS = zoo.HERE.parent / "docs"
CSV = DOCS / "data" / "zoo-edges.csv"
COLUMNS = [
    "type",
    "decomposed",
    "parts error",
    "value zeroing",
    "replay error",
    "compared",
    "zeroing compared",
    "reason",
]
Row = zoo.Row


def examine(kind: str) -> Row:
    """One type, in a process of its own."""
    from tests.zoo.build import CannotBuild, build
    from tests.zoo.edges import check_edges

    try:
        tiny = build(kind)
    except CannotBuild as error:
        return {"status": "not built", "reason": str(error)[:400]}
    try:
        report = asdict(check_edges(tiny))
    except AssertionError as error:
        return {"status": "WRONG", "reason": str(error)[:400]}
    wrong = [c for c in (report["compared"], report["zeroed_compared"]) if c.startswith("WRONG")]
    words = [w for w, key in (("parts", "parts"), ("zeroed", "zeroed")) if report[key] is not None]
    reason = "; ".join(wrong) or (report["parts_reason"] or report["zeroed_reason"])[:400]
    return {**report, "status": "WRONG" if wrong else "+".join(words) or "refused", "reason": reason}


def warm() -> None:
    """Compile the kernels before the forks."""
    import torch

    from attnflow.capturing.edges.kernels import distances, lengths, products

    for one in (torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.float64)):
        distances(one, one, None, one[0])
        lengths(one, products(one, one[0, 0])[0])


def table_of(rows: dict[str, Row]) -> pd.DataFrame:
    """One line per type."""
    lines = []
    for kind, row in sorted(rows.items()):
        parts, zeroed = row.get("parts"), row.get("zeroed")
        reasons = [row.get("parts_reason", ""), row.get("zeroed_reason", "")]
        said = "" if parts is not None and zeroed is not None else " / ".join(dict.fromkeys(filter(None, reasons)))
        lines.append(
            [
                kind, "yes" if parts is not None else "no", parts, "yes" if zeroed is not None else "no", zeroed,
                row.get("compared", ""), row.get("zeroed_compared", ""), _clean(said or row["reason"]),
            ]
        )  # fmt: skip
    return pd.DataFrame(lines, columns=COLUMNS)


def inside(rows: dict[str, Row], key: str) -> dict[str, str]:
    """Types that are only run as a part of a larger one, with one in which their edges were had."""
    found: dict[str, str] = {}
    for kind, row in rows.items():
        for part in row.get("owners", ()) if row.get(key) is not None else ():
            if part in rows and rows[part].get(key) is None and rows[part]["status"] == "not built":
                found.setdefault(part, kind)
    return found


def counts(rows: dict[str, Row]) -> dict[str, int]:
    """How many types came to what."""
    alone = {key: sum(r.get(key) is not None for r in rows.values()) for key in ("parts", "zeroed")}
    within = {key: len(inside(rows, key)) for key in alone}
    compared = Counter(
        (key, r.get(key, "").split(",")[0].split(":")[0].split(" by")[0])
        for r in rows.values()
        for key in ("compared", "zeroed_compared")
    )
    return {
        "every layer decomposed, with the certificate": alone["parts"],
        "of these equal to the naive form (norm and ALTI)": compared["compared", "equal"],
        "decomposed inside the model that they are a part of": within["parts"],
        "every layer run again with values of zero": alone["zeroed"],
        "of these equal to the whole model run again": compared["zeroed_compared", "equal"],
        "run again inside the model that they are a part of": within["zeroed"],
        "certificate holds, numbers wrong": compared["compared", "WRONG"] + compared["zeroed_compared", "WRONG"],
        "neither, with the reason": sum(r["status"] in ("refused", "failed", "crashed") for r in rows.values()),
        "not built here": sum(r["status"] == "not built" for r in rows.values()),
        "all types": len(rows),
    }


def reasons(rows: dict[str, Row]) -> list[tuple[str, int, str]]:
    """Why layers were not decomposed, by pattern, with a few of the types."""
    found: dict[str, list[str]] = {}
    for kind, row in sorted(rows.items()):
        if row["status"] != "not built" and row.get("parts") is None:
            found.setdefault(pattern(row.get("parts_reason") or row["reason"]), []).append(kind)
    ordered = sorted(found.items(), key=lambda x: -len(x[1]))
    return [(name, len(kinds), ", ".join(f"`{k}`" for k in kinds[:6])) for name, kinds in ordered]


def pattern(reason: str) -> str:
    """A reason without what differs from model to model."""
    told = re.search(r"cannot be told apart: (.*?)\. Use edges", reason) or re.search(
        r"(add up to something else)", reason
    )
    words = (told.group(1) or told.group(2)) if told else reason
    return _clean(re.sub(r"\([^()]*\)|[\d.e-]*\d", "…", words))[:100]


def _clean(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "/")[:300]


def section(rows: dict[str, Row]) -> str:
    """What stands between the marks of docs/zoo.md."""
    return "\n\n".join(
        [
            "## Edges",
            "Written by `benchmarks/zoo_edges.py`. *Decomposed*: the parts of every layer add up to what the model "
            "computed, to 10⁻³ of its size, with norms that have gains and biases. *Run again*: every layer gives the "
            "same output a second time, and was run with each value at zero. Both are two columns of the table below, "
            "with the largest error of a layer; all reasons are in [zoo-edges.csv](data/zoo-edges.csv).",
            made(),
            markdown(("", "types"), list(counts(rows).items())),
            "Why layers were not decomposed:",
            markdown(("pattern", "types", "for example"), reasons(rows)),
        ]
    )


def write(rows: dict[str, Row]) -> None:
    """CSV, section and columns."""
    frame = table_of(rows)
    CSV.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(CSV, index=False, float_format="%.1e")
    path = DOCS / "zoo.md"
    insert(path, "edges", section(rows))
    path.write_text(with_edges(path.read_text(encoding="utf-8"), frame), encoding="utf-8")


def main() -> int:
    """Run the command."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--types", default="")
    parser.add_argument("--again", default="", help="a regular expression for rows that are made again")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two types, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.types, options.work = "bert,gpt2", Path(tempfile.mkdtemp())
    if options.work is None:
        parser.error("--work is needed: rows are kept there")
    sys.path.insert(0, str(zoo.HERE.parent))
    every = list(dict.fromkeys(CONFIG_MAPPING_NAMES))
    chosen = options.types.split(",") if options.types else every
    cache = options.work / "edges.jsonl"
    cache.parent.mkdir(parents=True, exist_ok=True)
    rows = zoo.known(cache)
    again = {t for t, r in rows.items() if options.again and re.search(options.again, str(r))}
    warm()
    zoo.SECONDS = 900
    zoo.sweep([t for t in chosen if t not in rows or t in again], cache, rows, options.workers, examine)
    rows = zoo.known(cache)
    done = {t: rows[t] for t in chosen if t in rows}
    print("\n".join(f"{n:5}  {name}" for name, n in counts(done).items()))
    print(markdown(("pattern", "types", "for example"), reasons(done)))
    if len(done) == len(every):
        write(done)
    wrong = [t for t, r in done.items() if r["status"] == "WRONG"]
    print("WRONG:", ", ".join(wrong)) if wrong else None
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
