"""The page that benchmarks/zoo.py writes: counts, one row for each type, and what is missing, with the reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from report import between, insert, made

Row = dict[str, Any]
HEAD = ("type", "model", "route", "layers", "row sums", "first length", "second length")
TAKEN = ("equal", "proved", "captured")
# The columns that benchmarks/zoo_edges.py adds.
EDGES = ("parts add up", "value zeroing")


def inside(rows: dict[str, Row]) -> dict[str, str]:
    """Types that were not captured on their own, each with a model in which their attention was."""
    found: dict[str, str] = {}
    for kind, row in rows.items():
        for part in row.get("owners", ()) if row["status"] in TAKEN else ():
            if part in rows and rows[part]["status"] not in (*TAKEN, "WRONG"):
                found.setdefault(part, kind)
    return found


def groups(rows: dict[str, Row]) -> dict[str, dict[str, Row]]:
    """What was not captured, neither on its own nor inside another model, by what happened."""
    within, found = inside(rows), {name: {} for name in ("none", "refused", "failed", "not built", "WRONG")}
    for kind, row in rows.items():
        status = row["status"]
        if status in TAKEN or kind in within:
            continue
        if status == "refused" and row["reason"].startswith("CaptureError"):
            status = "none"
        found["failed" if status == "crashed" else status][kind] = row
    return found


def counts(rows: dict[str, Row]) -> dict[str, int]:
    """How many types came to what."""
    by, left = Counter(r["status"] for r in rows.values()), groups(rows)
    within = len(inside(rows))
    second = [r.get("longer", "") for r in rows.values() if r["status"] in TAKEN]
    return {
        "captured, every layer equal to the model's own eager attention": by["equal"],
        "captured, every layer equal to what the model multiplies its values with (it returns no attention)": by[
            "proved"
        ],
        "captured, but nothing to compare with": by["captured"],
        "captured inside the model that they are a part of": within,
        "**captured in all**": by["equal"] + by["proved"] + by["captured"] + within,
        "of these also at a second length": sum(longer.startswith(TAKEN) for longer in second),
        "of these refused at a second length, with the cause": sum(longer.startswith("refused") for longer in second),
        "of these that take no other length": sum(longer.startswith("takes no") for longer in second),
        "no softmax attention: refused with an error that says so": len(left["none"]),
        "refused, because the weights are not fit to be used": len(left["refused"]),
        "failed in another way": len(left["failed"]),
        "not built here": len(left["not built"]),
        "wrong": len(left["WRONG"]),
        "all types": len(rows),
    }


def families(rows: dict[str, Row]) -> dict[str, Any]:
    """What `attnflow models` tells about each type: the route, or why there is none."""
    within = inside(rows)
    types = {}
    for kind, row in sorted(rows.items()):
        if row["status"] in TAKEN:
            types[kind] = row["route"]
        elif kind in within:
            types[kind] = f"{rows[within[kind]]['route']} (as a part of {within[kind]})"
        elif row["status"] == "refused":
            types[kind] = "no softmax attention"
        else:
            types[kind] = "not tried"
    return {"transformers": transformers.__version__, "types": types}


def summary(rows: dict[str, Row]) -> str:
    """The counts as plain lines."""
    return "\n".join(f"{n:5}  {name.strip('*')}" for name, n in counts(rows).items())


def page(rows: dict[str, Row]) -> str:
    """The whole page."""
    within, left = inside(rows), groups(rows)
    taken = {t: r for t, r in sorted(rows.items()) if r["status"] in TAKEN}
    routes = Counter(r["route"] for r in taken.values())
    parts = [
        "# Model zoo",
        f"Written by `benchmarks/zoo.py` with transformers {transformers.__version__} and torch {torch.__version__}: "
        f"every one of the {len(rows)} model types that this transformers knows, built small with random weights "
        "(its default configuration, shrunk), run once, captured with `attnflow.capture(model, inputs=…)`, and run "
        "again. *Equal*: each tensor of `output_attentions=True` on an eager copy of the model equals a captured layer "
        "to 2·10⁻⁵. *Proved*: the model returns none, and each captured layer is what an eager copy multiplies its "
        "values with. The second length is beyond the windows, blocks and chunks of the model, which are made small. "
        "For every type in the table the output after the capture equals the output before bit for bit, and "
        "attention implementation, configuration, hooks, flags and parameters are as they were.",
        made(),
        _table(("", "types"), [(name, str(n)) for name, n in counts(rows).items()]),
        "## By route",
        _table(("route", "types"), [(f"`{r}`", str(n)) for r, n in routes.most_common()]),
        *_listed("WRONG", left["WRONG"]),
        "<!-- edges -->\n\n<!-- /edges -->",
        "## Captured",
        _table(
            ("type", "model", "route", "layers", "row sums", "first length", "second length"), map(_line, taken.items())
        ),
        "## Captured inside a larger model",
        "These types are parts, and were not run on their own.",
        _table(("type", "inside"), [(f"`{t}`", f"`{p}`") for t, p in sorted(within.items())]),
        *_listed("No softmax attention", left["none"]),
        *_listed("Refused", left["refused"]),
        *_listed("Failed", left["failed"]),
        *_listed("Not built", left["not built"]),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def write(path: Path, rows: dict[str, Row], edges: Path) -> None:
    """Replace the page; its section and its columns of edges, which another run makes, stay as they are recorded."""
    section = between(path, "edges") if path.is_file() else ""
    path.write_text(page(rows), encoding="utf-8")
    if section and edges.is_file():
        insert(path, "edges", section)
        path.write_text(with_edges(path.read_text(encoding="utf-8"), pd.read_csv(edges)), encoding="utf-8")


def with_edges(page: str, frame: pd.DataFrame) -> str:
    """The table of captured types with two columns for edges; columns of an earlier run are replaced."""
    known = frame.set_index("type")
    lines, inside_table, width = [], False, 0
    for line in page.split("\n"):
        cells = line.strip("| ").split(" | ") if line.startswith("| ") else []
        if cells[:2] == ["type", "model"]:
            inside_table, width = True, len([c for c in cells if c not in EDGES])
            cells = [*cells[:width], *EDGES]
        elif inside_table and not cells:
            inside_table = False
        elif inside_table:
            kind = cells[0].strip("`")
            cells = [*cells[:width], *(["---"] * 2 if kind == "---" else _edges(known, kind))]
        lines.append("| " + " | ".join(cells) + " |" if inside_table else line)
    return "\n".join(lines)


def _edges(known: pd.DataFrame, kind: str) -> list[str]:
    if kind not in known.index:
        return ["", ""]
    row = known.loc[kind]
    pairs = [("decomposed", "parts error"), ("value zeroing", "replay error")]
    return [f"{row[error]:.0e}" if row[had] == "yes" else "no" for had, error in pairs]


def _line(item: tuple[str, Row]) -> tuple[str, ...]:
    kind, row = item
    low, high = row["sums"]
    sums = "1" if low > 0.998 else f"{low:.2f} … {high:.2f} (sink)"
    layers = ", ".join(f"{name} {n}" if name != "self" else str(n) for name, n in row["blocks"].items())
    compared = f"equal, {row['compared']}" if row["compared"] else f"{row['status']}, {row['proved']}"
    return f"`{kind}`", row["model"], row["route"], layers, sums, compared, _clean(row.get("longer", ""))


def _listed(title: str, rows: dict[str, Row]) -> list[str]:
    """A heading and one line for each type; nothing where there is none."""
    lines = [f"- `{t}`: {_clean(r['reason'])}" for t, r in sorted(rows.items())]
    return [f"## {title}", "\n".join(lines)] if lines else []


def _clean(reason: str) -> str:
    first = reason.split(" | ")[0].split("; ")[0]
    return " ".join(first.split())[:200].replace("<", "‹").replace("|", "/")


def _table(head: tuple[str, ...], lines: Any) -> str:
    rows = [head, tuple("---" for _ in head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
