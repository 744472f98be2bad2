"""The record of an attribution: how much each part of an answer draws on each source."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.answers.sources import Source, check_span
from attnflow.digests import digest_of
from attnflow.errors import FileError, SelectionError, ShapeError
from attnflow.formats import write_file
from attnflow.numbers import at_least, is_whole
from attnflow.tokens import whole_text

if TYPE_CHECKING:
    import pandas as pd

F64 = npt.NDArray[np.float64]
TEMPLATE, ANSWER = -1, -2
"""Owners of the positions that no source holds: the template, and the answer itself."""

FORMAT = 1
_BITS = 38


@dataclass(frozen=True)
class Unit:
    """A part of the answer: all of it ("whole"), a sentence or a token.

    ``start`` and ``end`` are its characters in the answer, ``first`` and ``last`` its tokens (half-open, like spans).
    """

    text: str
    start: int
    end: int
    first: int
    last: int
    kind: str = "sentence"

    def __post_init__(self) -> None:
        check_span(self, ("whole", "sentence", "token"))
        if not is_whole(self.first) or not is_whole(self.last):
            raise ShapeError(f"A unit has the tokens {self.first!r} to {self.last!r}, and whole numbers are needed.")


def on_a_grid(scores: npt.ArrayLike) -> F64:
    """The scores rounded to one part in 2³⁸ of the greatest, so that their sums are exact in whatever order.

    A float64 holds 53 bits: 38 are left for each of up to 2¹⁵ positions. Sums over sources are then the very number
    that the sum over tokens is, and shares add up.

    >>> parts = on_a_grid([0.1, 0.2, 0.3])
    >>> bool((parts[0] + parts[1]) + parts[2] == parts[0] + (parts[1] + parts[2]))
    True
    """
    given = np.asarray(scores, np.float64)
    top = float(np.abs(given).max()) if given.size else 0.0
    if top == 0 or not np.isfinite(top):
        return given
    step = 2.0 ** (np.ceil(np.log2(top)) - _BITS)
    return np.asarray(np.round(given / step) * step)


def _seal(content: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(content, sort_keys=True))


@dataclass(frozen=True, eq=False)
class Attribution:
    """Which sources the parts of an answer drew on.

    Attributes:
        prompt: the prompt as the model read it, with its template.
        answer: the answer.
        sources: the parts of the prompt; each character is in one of them or in the template.
        units: the parts of the answer: first all of it, then its sentences or tokens.
        tokens: the names of the positions that the answer could draw on: those of the prompt, then its own.
        owners: for each of these the number of its source, −1 for the template, −2 for the answer itself.
        scores: by method ``[units, positions]``: ``scores[m][u, j]`` is how much unit *u* draws on position *j*. A
            unit's row is the mean of the rows of its tokens; the row of a token is the one that predicted it.
            For gradients it is the gradient of the log-probability of the whole unit.
        checks: by way ("mask", "removal") ``[units, sources]``: how much less likely the unit is without the source,
            log p(unit) − log p(unit without it); NaN for sources that were not tried.
        logprobs: log p of each token of the answer.
        method: the method that sources are ranked by.
        model: name or class of the model.
        instead: the other answer, where scores are those of this one minus those of the other.
        images: for patches, each image as a PNG file's bytes.
        settings: what was chosen; they only tell.
        notes: what a reader should know.
        resting: the position on which attention rests where there is nothing to read: the first of a causal model; None
            for an encoder-decoder model, whose first token is a word like others.
    """

    prompt: str
    answer: str
    sources: tuple[Source, ...]
    units: tuple[Unit, ...]
    tokens: tuple[str, ...]
    owners: npt.NDArray[np.int64]
    scores: Mapping[str, F64]
    checks: Mapping[str, F64] = field(default_factory=dict)
    logprobs: tuple[float, ...] = ()
    method: str = ""
    model: str = ""
    instead: str | None = None
    images: tuple[bytes, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resting: int | None = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "owners", np.asarray(self.owners, np.int64))
        object.__setattr__(self, "scores", {name: on_a_grid(s) for name, s in self.scores.items()})
        object.__setattr__(self, "method", self.method or next(iter(self.scores), ""))
        n, count, wide = len(self.tokens), len(self.units), len(self.sources)
        if self.owners.shape != (n,) or not self.scores or self.method not in self.scores:
            raise ShapeError(f"{n} positions, {self.owners.shape} owners and scores of {len(self.scores)} methods.")
        for name, found in self.scores.items():
            if found.shape != (count, n):
                raise ShapeError(f"{name} has scores {found.shape}, but there are {count} units and {n} positions.")
        self._refuse_foreign(n, wide)
        for name, found in self.checks.items():
            if found.shape != (count, wide):
                raise ShapeError(f"{name} has checks {found.shape}, but there are {count} units and {wide} sources.")

    def _refuse_foreign(self, positions: int, sources: int) -> None:
        """Values that no run gives and a file may hold."""
        texts = (self.prompt, self.answer, self.model, "" if self.instead is None else self.instead)
        if not all(isinstance(text, str) for text in texts):
            raise ShapeError("Prompt, answer, model and the other answer are texts, and one of them is none.")
        if not self.sources or (self.owners.size and not ANSWER <= self.owners.min() <= self.owners.max() < sources):
            raise ShapeError(f"Positions belong to the sources {set(self.owners.tolist())}, and there are {sources}.")
        if self.resting is not None and not (is_whole(self.resting) and 0 <= self.resting < positions):
            raise ShapeError(f"Attention rests on position {self.resting!r}, and there are {positions}.")
        if not all(np.isfinite(found).all() for found in self.scores.values()):
            raise ShapeError("Scores are finite numbers, and some here are not.")
        if any(np.isinf(found).any() for found in self.checks.values()):
            raise ShapeError("Checks are finite numbers, or NaN where a source was not tried; some here are infinite.")

    def __repr__(self) -> str:
        shown = ", ".join(self.scores)
        checked = "".join(f", {int(np.isfinite(c[0]).sum())} checked by {way}" for way, c in self.checks.items())
        return f"Attribution({len(self.units)} units × {len(self.sources)} sources, {shown}{checked})"

    # Numbers per source.

    def sums(self, method: str | None = None, first: bool = True) -> F64:
        """``[units, sources]``: scores summed over the tokens of each source, without the first token if told so."""
        return self._summed(self._scores(method), range(len(self.sources)), first)

    def shares(self, method: str | None = None) -> F64:
        """``[units, sources]``: what each source has of what all sources have; rows sum to one.

        Without the first token, on which attention rests where there is nothing to read, and without the template and
        the answer itself. Scores below zero (of a contrast) count as nothing.
        """
        found = np.clip(self.sums(method, first=False), 0, None)
        total = found.sum(1, keepdims=True)
        return np.asarray(np.divide(found, total, out=np.zeros_like(found), where=total > 0))

    def rest(self, method: str | None = None) -> dict[str, F64]:
        """``[units]`` each: the share of the first token, the template (without it), the answer itself, the sources."""
        scores = np.abs(self._scores(method))
        total = scores.sum(1)
        parts = {
            "first token": np.zeros(len(scores)) if self.resting is None else scores[:, self.resting],
            "template": self._summed(scores, [TEMPLATE], False)[:, 0],
            "answer": self._summed(scores, [ANSWER], False)[:, 0],
            "sources": self._summed(scores, range(len(self.sources)), False).sum(1),
        }
        return {name: np.divide(part, total, out=np.zeros_like(part), where=total > 0) for name, part in parts.items()}

    def _scores(self, method: str | None) -> F64:
        name = self.method if method is None else method
        if name not in self.scores:
            raise SelectionError(f"method={name!r}, but this attribution has {', '.join(map(repr, self.scores))}.")
        return self.scores[name]

    def _summed(self, scores: F64, owners: Sequence[int], first: bool) -> F64:
        kept = np.ones(len(self.owners), bool)
        if self.resting is not None:
            kept[self.resting] = first
        # Template and answer have the numbers −1 and −2. Scores are on a grid, so that no order of adding up matters.
        places, size = self.owners[kept] - ANSWER, len(self.sources) - ANSWER
        rows = [np.bincount(places, weights=row[kept], minlength=size) for row in scores]
        return np.array(rows, np.float64).reshape(len(scores), -1)[:, [o - ANSWER for o in owners]]

    def top(
        self, k: int = 5, unit: int = 0, method: str | None = None, kinds: Sequence[str] = ("context", "patch")
    ) -> list[tuple[str, float]]:
        """The ``k`` sources with the greatest shares in one unit, greatest first; a question is none of them."""
        at_least(k, 1, "k")
        order = self.ranked(unit, method, kinds)[:k]
        shares = self.shares(method)[unit]
        return [(self.sources[i].name, float(shares[i])) for i in order]

    def ranked(
        self, unit: int = 0, method: str | None = None, kinds: Sequence[str] = ("context", "patch")
    ) -> list[int]:
        """Numbers of the sources, by their share in a unit; equal ones in the order of the prompt."""
        if not -len(self.units) <= unit < len(self.units):
            raise SelectionError(f"unit={unit}, but the answer has {len(self.units)}: 0 is the whole.")
        shares = self.shares(method)[unit]
        order = np.argsort(-shares, kind="stable").tolist()
        return [i for i in order if self.sources[i].kind in kinds]

    # Tables and files.

    def to_frame(self) -> pd.DataFrame:
        """A long table: one row per unit, source and method, with the checks beside them.

        ``sum`` is over all tokens of a source, ``mean`` per token, ``share`` as in :meth:`shares`.
        """
        import pandas as pd

        counts = np.bincount(self.owners[self.owners >= 0], minlength=len(self.sources))
        rows = []
        for name in self.scores:
            sums, shares = self.sums(name), self.shares(name)
            for u, unit in enumerate(self.units):
                for s, source in enumerate(self.sources):
                    row: dict[str, Any] = {
                        "unit": u, "unit_kind": unit.kind, "unit_text": whole_text(unit.text), "source": s,
                        "name": whole_text(source.name), "kind": source.kind, "start": source.start, "end": source.end,
                        "text": whole_text(source.text), "tokens": int(counts[s]), "method": name,
                        "sum": sums[u, s], "mean": sums[u, s] / max(counts[s], 1), "share": shares[u, s],
                    }  # fmt: skip
                    rows.append(row | {f"without_by_{way}": float(c[u, s]) for way, c in self.checks.items()})
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON types, with a digest by which :meth:`load` sees that it is as it was written."""
        made = {
            "format": FORMAT, "prompt": self.prompt, "answer": self.answer, "instead": self.instead,
            "model": self.model, "method": self.method, "sources": [asdict(s) for s in self.sources],
            "units": [asdict(u) for u in self.units], "tokens": list(self.tokens), "owners": self.owners.tolist(),
            "scores": {name: s.tolist() for name, s in self.scores.items()},
            "shares": {name: self.shares(name).tolist() for name in self.scores},
            "rest": {name: {k: v.tolist() for k, v in self.rest(name).items()} for name in self.scores},
            "checks": {way: [[None if np.isnan(v) else float(v) for v in row] for row in c]
                       for way, c in self.checks.items()},
            "logprobs": list(self.logprobs), "settings": json.loads(json.dumps(dict(self.settings), default=str)),
            "notes": list(self.notes), "resting": self.resting,
        }  # fmt: skip
        return {**made, "digest": _seal(made)}

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(self.to_dict())

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write to a file by its ending: .html (the page), .json (all of it), .csv or .parquet (the table)."""
        parts = {"page": self.to_html, "json": self.to_json, "frame": self.to_frame, "table": self.to_frame}
        write_file(files.as_path(path), parts, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Attribution:
        """Read a .json file that :meth:`save` wrote; images are not in it."""
        location = files.as_path(path)
        with files.reading(location):
            found = json.loads(location.read_text(encoding="utf-8"))
            if found.get("format") != FORMAT:
                raise FileError(f"{location} is of format {found.get('format')}, and this attnflow reads {FORMAT}.")
            if found.pop("digest", None) != _seal(found):
                raise FileError(
                    f"{location} is not as it was written: its content and its digest disagree. It is damaged."
                )
            sources = tuple(
                Source(**{**s, "box": None if s.get("box") is None else tuple(s["box"])}) for s in found["sources"]
            )
            checks = {w: np.array([[np.nan if v is None else v for v in r] for r in c], np.float64).reshape(len(c), -1)
                      for w, c in found["checks"].items()}  # fmt: skip
            return cls(
                found["prompt"], found["answer"], sources, tuple(Unit(**u) for u in found["units"]),
                tuple(map(str, found["tokens"])), np.array(found["owners"], np.int64),
                {str(m): np.array(s, np.float64) for m, s in found["scores"].items()}, checks,
                tuple(map(float, found["logprobs"])), str(found["method"]), found["model"], found["instead"],
                (), dict(found["settings"]), tuple(map(str, found["notes"])), found.get("resting", 0),
            )  # fmt: skip

    # Views.

    def to_html(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """One self-contained page: prompt and answer side by side; also written to ``path`` where one is given."""
        from attnflow.views.answers import answer_page

        text = answer_page(self)
        if path is not None:
            files.write_bytes(files.as_path(path), text.encode(), overwrite)
        return text

    def show(self, unit: int = 0, k: int = 10) -> None:
        """A table and the tinted prompt in the terminal."""
        from attnflow.views.answers_terminal import print_attribution

        print_attribution(self, unit, k)

    def _repr_html_(self) -> str:
        from attnflow.formats import frame

        return frame(self.to_html(), 700)
