"""The file formats of everything that is written for a reader: pages, figures, tables, numbers.

Whoever writes a file says which parts there are (a page, a figure, a frame, …) and how each is made; a format says
which part it is made from. So a format that is added here can be written by every command that has its part.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from attnflow.errors import FileError
from attnflow.files import refuse_overwrite, write_bytes

Parts = Mapping[str, Callable[[], Any]]
"""How each part is made, by its name: only the one that the format needs is made."""


POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
)
"""For pages without scripts: none may run, and nothing may be loaded. A second wall behind the escaping."""


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:54rem;margin:2rem auto;padding:0 1rem;color:#1b1b1f;"
    "background:#fff}table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums;display:block;"
    "overflow-x:auto}th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right}th:first-child,"
    "td:first-child{text-align:left}svg{max-width:100%;height:auto;background:#fff}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6ea;background:#17171b}th,td{border-color:#444}}"
)


def page(title: str, body: str) -> str:
    """A self-contained report; ``body`` is markup in which the caller has escaped every text."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width">{POLICY}<style>{_STYLE}</style></head><body>'
        f"{body}</body></html>\n"
    )


@dataclass(frozen=True)
class Document:
    """A text, and the files that it refers to, by name; they are written to the same folder."""

    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A file format: the part that it is made from, and how this part is written to a path."""

    part: str
    write: Callable[[Any, Path, bool], None]


def frame(document: str, height: int = 480) -> str:
    """A document inside an iframe of its own, as notebooks show it: styles and ids cannot clash.

    The frame is a sandbox: a script in it can neither reach the notebook around it nor leave the frame.
    """
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(document, quote=True)}" '
        f'style="width:100%;height:{height:d}px;border:0" title="attnflow result"></iframe>'
    )


def texts_of(ax: Any) -> list[Any]:
    """Every text of the axes: names along them, titles, labels, and what stands in the legend."""
    legend = ax.get_legend()
    texts = [*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label, ax.yaxis.label]
    texts += [ax.title, ax._left_title, ax._right_title]
    return texts if legend is None else [*texts, legend.get_title(), *legend.get_texts()]


def as_written(ax: Any) -> Any:
    """The axes with every text shown as it is: matplotlib reads what stands between two ``$`` as a formula."""
    for text in texts_of(ax):
        text.set_parse_math(False)
    return ax


def figure_bytes(figure: Any, kind: str) -> bytes:
    """A matplotlib figure as "png", "pdf" or "svg"."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def _text(text: str, path: Path, overwrite: bool) -> None:
    write_bytes(path, text.encode(), overwrite)


def _figure(figure: Any, path: Path, overwrite: bool) -> None:
    write_bytes(path, figure_bytes(figure, path.suffix[1:]), overwrite)


def _csv(frame: Any, path: Path, overwrite: bool) -> None:
    write_bytes(path, frame.to_csv(index=False).encode(), overwrite)


def _parquet(frame: Any, path: Path, overwrite: bool) -> None:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    write_bytes(path, buffer.getvalue(), overwrite)


def _record(record: Any, path: Path, overwrite: bool) -> None:
    record.save(path, overwrite=overwrite)


FORMATS = {
    ".html": Format("page", _text),
    ".png": Format("figure", _figure),
    ".pdf": Format("figure", _figure),
    ".svg": Format("figure", _figure),
    ".csv": Format("frame", _csv),
    ".parquet": Format("table", _parquet),
    ".json": Format("json", _text),
    ".safetensors": Format("record", _record),
    ".md": Format("markdown", _text),
    ".tex": Format("latex", _text),
}


def suffixes(*parts: str) -> tuple[str, ...]:
    """The endings of the files that can be made from these parts.

    >>> suffixes("markdown", "latex")
    ('.md', '.tex')
    """
    return tuple(suffix for suffix, form in FORMATS.items() if form.part in parts)


def endings(*parts: str) -> str:
    """The same for a help text.

    >>> endings("figure")
    '.png, .pdf or .svg'
    """
    *most, last = suffixes(*parts)
    return f"{', '.join(most)} or {last}" if most else last


def check_file(option: str, path: Path | None, parts: Sequence[str], overwrite: bool) -> None:
    """Refuse a file that cannot be written, before anything has run; ``option`` names it in the message."""
    if path is None:
        return
    known = suffixes(*parts)
    if path.suffix not in known:
        wanted = " or ".join(known) if len(known) < 3 else f"one of: {', '.join(known)}"
        raise FileError(f"{option} {path} ends in {path.suffix or 'nothing'!r}. Use {wanted}.")
    refuse_overwrite(path, overwrite)


def write_file(path: Path, parts: Parts, overwrite: bool = False) -> list[Path]:
    """Write the part that the ending of ``path`` asks for; the files that were written.

    Nothing is written if one of them is there and may not be replaced.
    """
    check_file("The file", path, tuple(parts), overwrite)
    form = FORMATS[path.suffix]
    made = parts[form.part]()
    document = made if isinstance(made, Document) else None
    beside = {} if document is None else {path.with_name(name): data for name, data in document.files.items()}
    for file in beside:
        refuse_overwrite(file, overwrite)
    for file, data in beside.items():
        write_bytes(file, data, overwrite)
    form.write(made if document is None else document.text, path, overwrite)
    return [path, *beside]
