"""All findings in one report: a summary in plain words, then every experiment with its table, figure and limits."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from attnflow.audit.finding import Finding
from attnflow.files import refuse_overwrite, write_bytes

QUESTIONS = {
    "correlation": "Does attention rank the inputs as gradients and leave-one-out do?",
    "permutation": "Does the output change when the attention weights are shuffled?",
    "adversary": "Are there quite other weights that give the same output?",
    "uniform": "Does the task need attention at all?",
    "seeds": "How much does attention differ between runs of the same training?",
    "guide": "Do the weights help a model that sees each token by itself?",
    "imposter": "Can a model be trained to predict the same while attending elsewhere?",
}
READING = (
    "Jain & Wallace (2019) read low agreement, small changes under shuffling and easy adversaries as evidence against "
    "attention as explanation. Wiegreffe & Pinter (2019) answer that a task must need attention before the question "
    "has a meaning, that other seeds are the yardstick for an adversary, and that weights which guide another model "
    "carry something. No single experiment decides; each states below what it cannot say."
)
SUFFIXES = (".html", ".md")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:54rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f;"
    "background:#fff}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;display:block;"
    "overflow-x:auto}th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right}th:first-child,"
    "td:first-child{text-align:left}svg{max-width:100%;height:auto;background:#fff}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6ea;background:#17171b}th,td{border-color:#444}}"
)


def summary(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """(question, answer) of every experiment, in the order of the debate."""
    order = list(QUESTIONS)
    known = sorted(findings, key=lambda f: order.index(f.experiment))
    return [(QUESTIONS[f.experiment], f.verdict) for f in known]


def to_markdown(findings: Sequence[Finding], title: str, facts: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """The report as Markdown; ``figures`` gives the file of each experiment's figure."""
    parts = [f"# {title}", *(f"{name}: {value}  " for name, value in facts.items()), "## In short"]
    parts.append("\n".join(f"- **{question}** {answer}" for question, answer in summary(findings)))
    parts += [READING, "## The experiments"]
    for found in findings:
        parts.append(found.to_markdown())
        if found.experiment in figures:
            parts.append(f"![{QUESTIONS[found.experiment]}]({figures[found.experiment]})")
        parts.append(_settings(found))
    return "\n\n".join(parts) + "\n"


def to_html(findings: Sequence[Finding], title: str, facts: Mapping[str, Any]) -> str:
    """The report as one self-contained page: figures inside, nothing loaded, every text escaped."""
    items = "".join(f"<li><b>{escape(q)}</b> {escape(a)}</li>" for q, a in summary(findings))
    told = "".join(f"<li>{escape(str(name))}: {escape(str(value))}</li>" for name, value in facts.items())
    body = "".join(
        f"{f.to_html()}<details><summary>Settings</summary><p>{escape(_settings(f))}</p></details>" for f in findings
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(title)}</h1><ul>{told}</ul><h2>In short</h2><ul>{items}</ul><p>{escape(READING)}</p>{body}"
        "</body></html>\n"
    )


def _settings(found: Finding) -> str:
    return "Settings: " + "; ".join(f"{name} = {value}" for name, value in found.settings.items()) + "."


def write_report(
    findings: Sequence[Finding], path: Path, title: str, facts: Mapping[str, Any], overwrite: bool = False
) -> list[Path]:
    """Write ``path`` (.html, or .md with the figures beside it as SVG); the files that were written.

    Nothing is written if one of them is there and may not be replaced.
    """
    if path.suffix == ".html":
        write_bytes(path, to_html(findings, title, facts).encode(), overwrite)
        return [path]
    drawn = {f.experiment: f for f in findings if f.draw is not None}
    figures = {name: path.with_name(f"{path.stem}-{name}.svg") for name in drawn}
    for target in (path, *figures.values()):
        refuse_overwrite(target, overwrite)
    for name, target in figures.items():
        write_bytes(target, _svg(drawn[name]), overwrite)
    text = to_markdown(findings, title, facts, {name: target.name for name, target in figures.items()})
    write_bytes(path, text.encode(), overwrite)
    return [path, *figures.values()]


def _svg(found: Finding) -> bytes:
    buffer = io.BytesIO()
    figure: Any = found.plot().figure
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()
