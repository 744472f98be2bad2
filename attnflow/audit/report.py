"""Findings on disk: one report of all of them, and the records of each.

A report has a summary in plain words, then every experiment with its table, figure and limits. Records are kept as CSV,
with what was run and found beside them as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnflow.audit.finding import Finding, html_table, markdown
from attnflow.audit.registry import experiments
from attnflow.digests import digest_of
from attnflow.files import as_path, write_bytes, writing
from attnflow.formats import Document, figure_bytes, page, write_file
from attnflow.numbers import check_kind, check_kinds, word
from attnflow.significance import LEVEL, holm
from attnflow.version import __version__

if TYPE_CHECKING:
    import pandas as pd

READING = (
    "Jain & Wallace (2019) read low agreement, small changes under shuffling and easy adversaries as evidence against "
    "attention as explanation. Wiegreffe & Pinter (2019) answer that a task must need attention before the question "
    "has a meaning, that other seeds are the yardstick for an adversary, and that weights which guide another model "
    "carry something. No single experiment decides; each states below what it cannot say."
)
PARTS = ("page", "markdown")


def summary(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """(question, answer) of every experiment, in the order of the debate.

    An answer whose test does not hold once all tests of the report are corrected together says so.
    """
    known = experiments()
    order, made = list(known), tests(findings)
    ordered = sorted(enumerate(findings), key=lambda item: order.index(item[1].experiment))
    return [(known[f.experiment].question, f.verdict + _fallen(made, number)) for number, f in ordered]


def tests(findings: Sequence[Finding]) -> pd.DataFrame:
    """Every test of a report, corrected by Holm for all of them together; empty where there is none.

    The column ``finding`` is the number of the finding among ``findings``.
    """
    import pandas as pd

    found = [(number, claim, p) for number, one in enumerate(findings) for claim, p in one.tests.items()]
    table = pd.DataFrame(found, columns=["finding", "claim", "p"])
    # Two findings of one experiment (of other layers, say) make the same claim of different things.
    again = table.groupby("claim").cumcount()
    table["claim"] = [f"{claim} ({n + 1})" if n else claim for claim, n in zip(table["claim"], again, strict=True)]
    table["corrected p"] = holm(table["p"].to_numpy(float))
    table["holds"] = ["yes" if p < LEVEL else "no" for p in table["corrected p"]]
    return table


def _fallen(made: pd.DataFrame, number: int) -> str:
    """Of the tests of one finding those that are significant alone and not together with the others."""
    own = made[(made["finding"] == number) & (made["p"] < LEVEL) & (made["holds"] == "no")]
    if not len(own):
        return ""
    claims = "; ".join(f"{row['claim']} (p = {row['corrected p']:.2g})" for row in own.to_dict("records"))
    return f" Not shown once all {len(made)} tests of this report are corrected together: {claims}."


def _of_tests(table: pd.DataFrame) -> str:
    """The sentence above the table of tests."""
    return (
        f"{len(table)} tests were made for this report. A claim holds where its p-value is below {LEVEL} after "
        f"Holm's correction for all of them: {int((table['holds'] == 'yes').sum())} of them."
    )


def _shown(made: pd.DataFrame) -> pd.DataFrame:
    return made.drop(columns="finding")


def to_markdown(findings: Sequence[Finding], title: str, facts: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """The report as Markdown; ``figures`` gives the file of each experiment's figure."""
    parts = [f"# {title}", *(f"{name}: {value}  " for name, value in facts.items()), "## In short"]
    parts.append("\n".join(f"- **{question}** {answer}" for question, answer in summary(findings)))
    parts.append(READING)
    if len(made := tests(findings)):
        parts += ["## Tests", _of_tests(made), markdown(_shown(made))]
    parts.append("## The experiments")
    for found in findings:
        parts.append(found.to_markdown())
        if found.experiment in figures:
            question = experiments()[found.experiment].question
            parts.append(f"![{question}]({figures[found.experiment]})")
        parts.append(_settings(found))
    return "\n\n".join(parts) + "\n"


def to_html(findings: Sequence[Finding], title: str, facts: Mapping[str, Any]) -> str:
    """The report as one self-contained page: figures inside, nothing loaded, every text escaped."""
    items = "".join(f"<li><b>{escape(q)}</b> {escape(a)}</li>" for q, a in summary(findings))
    facts_list = "".join(f"<li>{escape(str(name))}: {escape(str(value))}</li>" for name, value in facts.items())
    made = tests(findings)
    corrected = f"<h2>Tests</h2><p>{escape(_of_tests(made))}</p>{html_table(_shown(made))}" if len(made) else ""
    body = corrected + "".join(
        f"{f.to_html()}<details><summary>Settings</summary><p>{escape(_settings(f))}</p></details>" for f in findings
    )
    return page(
        title,
        f"<h1>{escape(title)}</h1><ul>{facts_list}</ul><h2>In short</h2><ul>{items}</ul><p>{escape(READING)}</p>{body}",
    )


def _settings(found: Finding) -> str:
    return "Settings: " + "; ".join(f"{name} = {value}" for name, value in found.settings.items()) + "."


def write_report(
    findings: Sequence[Finding], path: Path, title: str, facts: Mapping[str, Any], overwrite: bool = False
) -> list[Path]:
    """Write ``path`` (.html, or .md with the figures as SVG in the same folder); the files that were written.

    Nothing is written if one of them is there and may not be replaced.
    """
    findings, path = check_kinds(Finding, findings, "findings"), as_path(path)
    check_kind(Mapping, facts, "facts")
    word(title, "title")

    def markdown() -> Document:
        names = {f.experiment: f"{path.stem}-{f.experiment}.svg" for f in findings if f.draw is not None}
        figures = {names[f.experiment]: figure_bytes(f.plot().figure, "svg") for f in findings if f.draw is not None}
        return Document(to_markdown(findings, title, facts, names), figures)

    return write_file(path, {"page": lambda: to_html(findings, title, facts), "markdown": markdown}, overwrite)


def save_records(finding: Finding, folder: str | os.PathLike[str], facts: Mapping[str, Any]) -> Path:
    """Write ``<experiment>-<mark>.csv`` (the records) and ``.json`` (facts, settings, verdict, limits, tests, table).

    The mark stands for ``facts`` and the finding's settings. The same experiment again writes the same files anew; with
    another model, other data or other settings it writes others, so nothing that was measured is lost.

    >>> import pandas as pd, tempfile
    >>> found = Finding("uniform", pd.DataFrame(), pd.DataFrame({"seed": [0], "F1": [0.5]}), "No.", ("One.",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pd.read_csv(save_records(found, folder, {"model": "lstm"})).to_dict("records")
    [{'seed': 0, 'F1': 0.5}]
    """
    check_kind(Finding, finding, "finding")
    check_kind(Mapping, facts, "facts")
    chosen = {"facts": _plain(facts), "settings": _plain(finding.settings)}
    path = as_path(folder) / f"{finding.experiment}-{digest_of(json.dumps(chosen, sort_keys=True))[:8]}.csv"
    content = {
        "experiment": finding.experiment, "attnflow": __version__, **chosen, "records": path.name,
        "verdict": finding.verdict, "limits": list(finding.limits), "tests": _plain(finding.tests),
        "table": json.loads(finding.table.to_json(orient="records")),
    }  # fmt: skip
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, finding.records.to_csv(index=False).encode(), overwrite=True)
    write_bytes(path.with_suffix(".json"), json.dumps(content, indent=1).encode(), overwrite=True)
    return path


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold, and the text of everything else."""
    return {
        str(name): value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in values.items()
    }
