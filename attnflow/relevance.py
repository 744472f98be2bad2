"""The result of every method: how much each output position draws on each input position."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.errors import SelectionError, ShapeError
from attnflow.numbers import at_least, listed, to_numpy, whole, word
from attnflow.reprs import one_line
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Tokens, group_words, whole_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from attnflow.attention import Attention
    from attnflow.informative import Informative

Array = npt.NDArray[Any]
Layer = int | str
UNITS = ("token", "word")


@one_line
@dataclass(frozen=True)
class Report:
    """What a method found out about its own scores.

    Attributes:
        words: sentences that a reader must know before believing the scores.
        figures: the numbers behind them, by name.

    >>> Report(("all flows are equal",), {"ties": [1.0]}).to_dict()
    {'ties': [1.0], 'words': ['all flows are equal']}
    """

    words: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """The inverse of :meth:`to_dict`."""
        figures = {name: value for name, value in data.items() if name != "words"}
        return cls(tuple(map(str, data.get("words", ()))), figures)

    def to_dict(self) -> dict[str, Any]:
        """Figures and sentences in one dict, as ``settings["report"]`` tells them."""
        return {**self.figures, "words": list(self.words)}


@dataclass(frozen=True, eq=False)
class Relevance:
    """How much outputs draw on inputs, layer by layer.

    Attributes:
        scores: ``[layers, queries, keys]``: ``scores[l, i, j]`` is how much output position *i* at layer *l*
            draws on input position *j*. Where one position was asked for: ``[layers, keys]``.
        tokens: names of the input positions (the columns).
        layers: the model's own layer numbers, from 0; ``("input",)`` for methods that score inputs as such.
        method: "raw", "rollout", "flow", "gradient", "blankout", …
        settings: everything that was chosen, also what was chosen for the user. They only tell: what something
            depends on is one of the fields below, and settings repeat it for the reader.
        model: name or class of the model.
        queries: names of the output positions (the rows), where they are not the tokens.
        attention: what the scores were computed from, for the graph on the page; :meth:`save` leaves it out.
        position: the output position, where one was asked for, and ``position_token`` its name.
        unit: "token", or "word" where the columns are words.
        dropped: where special tokens were dropped, the share of mass that they had at the last layer of this record,
            over the outputs that are left; ``dropped_mass`` is what they had, per layer and output.
        kept_rows: the numbers of the rows among all output positions, where only some were captured or special ones
            were dropped.
        target: the prediction that is explained, as a label; None for methods that read attention alone.
        heads: how the heads were brought down to one matrix.
        residual: the share of the residual connection, where the method adds one.
        start_layer: the layer that the method began with.
        edges: what the matrices of the attention hold; see :class:`Attention`.
        rescaled: True if the scores were rescaled by row, so that they are no flows any more.
        joins: how the score of a word is computed from the attention, where it is not the sum over the word's pieces:
            ``("flow",)`` is the maximum flow into all of them together, then come the ways by which rows were rescaled.
        predicted: what the model predicted, in a sentence, where it was asked.
        row_agreement: for one output, how far others rank the inputs alike, where they were looked at; see
            :attr:`informative`.
        rounding: of scores that are sums which cancel, the share of their parts that is left: what rounding leaves of
            zero. None where the scores are none.
        notes: what a reader should know: layers without attention, sinks, a change of dtype.
        report: what the method found out about its own scores.

    >>> import numpy as np
    >>> r = Relevance(np.array([[[0.5, 0.5], [0.2, 0.8]]]), Tokens(["the", "key"]), (0,), "raw")
    >>> r
    Relevance(raw, 1 layer × 2 outputs × 2 inputs)
    >>> r.at(position=-1).top(1)
    [('key', 0.8)]
    """

    scores: Array
    tokens: Tokens
    layers: tuple[Layer, ...]
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    queries: Tokens | None = None
    attention: Attention | None = None
    position: int | None = None
    position_token: str | None = None
    unit: str = "token"
    dropped: float | None = None
    dropped_mass: Array | None = None
    kept_rows: tuple[int, ...] | None = None
    target: str | None = None
    heads: str | int | tuple[int, ...] | None = None
    residual: float | str | Sequence[float] | Array | None = None
    start_layer: int | None = None
    edges: str | None = None
    rescaled: bool = False
    joins: tuple[str, ...] = ()
    predicted: str | None = None
    row_agreement: float | None = None
    rounding: float | None = None
    notes: tuple[str, ...] = ()
    report: Report | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise TypeError(f"settings is a {type(self.settings).__name__}, and a dict is needed.")
        scores = to_numpy(self.scores, "scores")
        tokens = self.tokens if isinstance(self.tokens, Tokens) else Tokens(listed(self.tokens, "tokens"))
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "tokens", tokens)
        layers = tuple(
            layer if isinstance(layer, str) else whole(layer, "layers") for layer in listed(self.layers, "layers")
        )
        object.__setattr__(self, "layers", layers)
        if scores.ndim not in (2, 3):
            raise ShapeError(f"scores have {scores.ndim} axes {scores.shape}; 2 or 3 are expected.")
        if scores.shape[0] != len(self.layers):
            raise ShapeError(f"scores have {scores.shape[0]} layers, but {len(self.layers)} layer numbers are given.")
        if scores.shape[-1] != len(tokens):
            raise ShapeError(f"scores have {scores.shape[-1]} columns, but there are {len(tokens)} tokens.")
        if scores.ndim == 3 and self.queries is None:
            object.__setattr__(self, "queries", tokens)
        if scores.ndim == 3 and scores.shape[1] != len(self.rows):
            raise ShapeError(f"scores have {scores.shape[1]} rows, but there are {len(self.rows)} row names.")
        if word(self.unit, "unit") not in UNITS:
            raise SelectionError(f"unit={self.unit!r} is not known. Use one of: {', '.join(UNITS)}.")
        object.__setattr__(self, "settings", {**self.settings, **self._repeated()})

    @property
    def rows(self) -> Tokens:
        """Names of the output positions; empty where one position was asked for."""
        return self.queries if self.queries is not None and self.scores.ndim == 3 else Tokens(())

    @property
    def special_share(self) -> float:
        """The share of the mass of the last layer that lies on special tokens."""
        return mass_share(self.scores[-1], np.array(self.tokens.special, bool))

    @property
    def informative(self) -> Informative:
        """Whether the scores of the last layer say something about this text: shares, order, and likeness of rows."""
        from attnflow.informative import informative

        return informative(self)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        layers = f"{len(self.layers)} layer{'s' if len(self.layers) > 1 else ''}"
        rows = f" × {len(self.rows)} outputs" if self.scores.ndim == 3 else self._place()
        model = f", model={self.model}" if self.model else ""
        doubts = self.informative.doubts if len(self.tokens) >= 4 and self.layers else ()
        said = f"; careful: {'; '.join(doubts)}" if doubts else ""
        return f"Relevance({self.method}, {layers}{rows} × {len(self.tokens)} inputs{model}{said})"

    def _place(self) -> str:
        return "" if self.position is None else f", position {self.position}"

    def _repeated(self) -> dict[str, Any]:
        """The fields that settings repeat for the reader."""
        out = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if self.edges == "attention":
            del out["edges"]
        if self.unit == "word" and self.settings.get("unit") != "word":
            out["words"] = True
        if self.rescaled and not {"normalize", "receptive_field"} & set(self.settings):
            out["rescaled"] = True
        if self.target is not None:
            out["target_label"] = self.target
        if self.notes:
            out["notes"] = self.notes
        return out if self.report is None else out | {"report": self.report.to_dict()}

    def at(self, layer: int | None = None, position: int | str | None = None) -> Relevance:
        """The part for one layer (by its true number, negatives from the top) and one output position."""
        scores, layers, queries, mass = self.scores, self.layers, self.queries, self.dropped_mass
        place: dict[str, Any] = {}
        if layer is not None:
            i = pick_layer(layer, self.layers)
            scores, layers = scores[i : i + 1], self.layers[i : i + 1]
            mass = None if mass is None else mass[i : i + 1]
        if position is not None:
            if scores.ndim == 2:
                where = self._place().removeprefix(", ") or "one output"
                raise SelectionError(f"Already at {where}: there is one row per layer.")
            p = pick_position(position, self.rows)
            scores, queries = scores[:, p], None
            mass = None if mass is None else mass[:, p]
            place = {"position": self._numbers([p])[0], "position_token": self.rows[p], "kept_rows": None}
        return replace(self, scores=scores, layers=layers, queries=queries, **_dropped(scores, mass), **place)

    def _numbers(self, rows: Sequence[int]) -> tuple[int, ...]:
        """The numbers of these rows among all output positions."""
        return tuple(rows if self.kept_rows is None else (self.kept_rows[i] for i in rows))

    def words(self) -> Relevance:
        """Scores of words, from all pieces of an input word and the mean over those of an output word.

        The score of an input word is the sum over its pieces. The flow into a word is the maximum flow into all of them
        together, which is at most the sum; it is computed from the attention, exactly.
        """
        if self.unit == "word":
            return self
        by_word = self.key_words()
        scores: Array = by_word.scores
        queries, mass = None, self.dropped_mass
        if scores.ndim == 3:
            rows = group_words(self.rows)
            scores, queries = rows.mean_queries(scores), rows.tokens
            mass = None if mass is None else rows.mean_queries(mass[..., None])[..., 0]
        return replace(by_word, scores=scores, queries=queries, kept_rows=None, **_dropped(scores, mass))

    def key_words(self) -> Relevance:
        """Scores of input words, one row per output token as before; see :meth:`words`."""
        group = group_words(self.tokens)
        if self.joins and len(group.members) < len(self.tokens):
            from attnflow.scoring.flow.joined import word_scores

            scores: Array = word_scores(self, group)
        else:
            scores = group.sum_keys(self.scores)
        return replace(self, scores=scores, tokens=group.tokens, unit="word")

    @property
    def has_words(self) -> bool:
        """False where scores of words would need the attention and it is not there, as after :meth:`load`."""
        return not self.joins or self.unit == "word" or self.attention is not None

    def drop_special(self) -> Relevance:
        """Without special tokens, as inputs and as outputs; ``dropped`` is the share of mass they had."""
        keep = [i for i, s in enumerate(self.tokens.special) if not s]
        if not keep:
            raise SelectionError(f"All {len(self.tokens)} tokens are special: nothing would be left.")
        if len(keep) == len(self.tokens) and self.dropped is not None:
            return self
        scores, queries, places = self.scores, None, None
        if scores.ndim == 3:
            kept = [i for i, s in enumerate(self.rows.special) if not s]
            if not kept:
                raise SelectionError(
                    f"All {len(self.rows)} outputs are special tokens: nothing would be left. Choose one of them "
                    "first:  relevance.at(position=0).drop_special()"
                )
            scores, queries = scores[:, kept], self.rows.take(kept)
            places = None if self.unit == "word" else self._numbers(kept)
        mass = np.nansum(np.abs(scores[..., np.array(self.tokens.special, bool)]), -1)
        found = _dropped(scores[..., keep], mass)
        tokens = self.tokens.take(keep)
        return replace(self, scores=scores[..., keep], tokens=tokens, queries=queries, kept_rows=places, **found)

    def top(self, k: int = 5, layer: int = -1, position: int | str | None = None) -> list[tuple[str, float]]:
        """The ``k`` inputs with the highest scores at one layer, highest first; equal scores in text order."""
        one = self.at(layer=layer, position=position)
        if one.scores.ndim == 3:
            raise SelectionError(
                f"top() ranks the inputs of one output position, and there are {len(self.rows)}. "
                "Choose one:  relevance.top(position=-1)"
            )
        order = np.argsort(-one.scores[0], kind="stable")[: at_least(k, 0, "k")]
        return [(self.tokens[j], float(one.scores[0, j])) for j in order]

    def to_frame(self) -> pd.DataFrame:
        """A long table with one row per score: layer, (query, query_token,) key, token, score."""
        import pandas as pd

        index = np.indices(self.scores.shape)
        data: dict[str, Any] = {"layer": [self.layers[i] for i in index[0].ravel()]}
        if self.scores.ndim == 3:
            rows = index[1].ravel()
            data |= {"query": rows, "query_token": [whole_text(self.rows[i]) for i in rows]}
        keys = index[-1].ravel()
        data |= {"key": keys, "token": [whole_text(self.tokens[j]) for j in keys], "score": self.scores.ravel()}
        return pd.DataFrame(data)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON types."""
        return {**self._header(), "scores": self.scores.tolist()}

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _header(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "model": self.model,
            "layers": list(self.layers),
            "tokens": self.tokens.to_dict(),
            "queries": None if self.queries is None else self.queries.to_dict(),
            "settings": _plain(self.settings),
        }

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the record to one safetensors file; a file that is there is replaced only with ``overwrite=True``."""
        typed = {name: getattr(self, name) for name in _KINDS}
        typed["report"] = None if self.report is None else self.report.to_dict()
        header = {**self._header(), "fields": _plain(typed)}
        arrays = {"scores": self.scores}
        if self.dropped_mass is not None:
            arrays["dropped_mass"] = self.dropped_mass
        files.save(path, "relevance", arrays, header, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Relevance:
        """Read what :meth:`save` wrote."""
        arrays, h = files.load(path, "relevance")
        with files.reading(files.as_path(path)):
            queries = None if h["queries"] is None else Tokens.from_dict(h["queries"])
            return cls(
                arrays["scores"], Tokens.from_dict(h["tokens"]), tuple(h["layers"]), str(h["method"]),
                dict(h["settings"]), str(h["model"]), queries, dropped_mass=arrays.get("dropped_mass"),
                **_typed(h.get("fields", {})),
            )  # fmt: skip

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """A heat-map: layers × tokens for one position, outputs × inputs at the last layer otherwise."""
        from attnflow.views.plot import plot

        return plot(self, ax=ax, **options)

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        others: Sequence[Relevance] = (),
        title: str = "Attention flow",
        **options: Any,
    ) -> str:
        """One self-contained page; also written to ``path`` where one is given.

        It shows these scores and, where the result knows the attention that it came from (all but loaded ones do), the
        graph of attention flow, with the methods and outputs that the result leaves out. ``others`` are results on the
        same input to show beside it, for instance gradients; ``title`` is that of the page; ``options`` go to
        :func:`attnflow.flowgraph.flow_graph`: ``image=…`` for a vision model.
        """
        from attnflow.flowgraph import graph_of
        from attnflow.views.html import document

        results = [self, *others]
        text = document(results, graph_of(results, **options), title)
        if path is not None:
            files.write_bytes(files.as_path(path), text.encode(), overwrite)
        return text

    def _repr_html_(self) -> str:
        from attnflow.flowgraph import graph_at_once
        from attnflow.formats import frame
        from attnflow.views.html import document

        return frame(document([self], graph_at_once([self])), 900)


# The fields that something may depend on, and of which kind they are in a file.
_KINDS: dict[str, tuple[type, ...]] = {
    "position": (int, np.integer), "position_token": (str,), "unit": (str,), "dropped": (float, int), "target": (str,),
    "heads": (str, int, tuple, list), "residual": (float, int, str, tuple, list, np.ndarray), "start_layer": (int,),
    "edges": (str,), "rescaled": (bool,), "joins": (tuple, list), "kept_rows": (tuple, list),
    "predicted": (str,), "row_agreement": (float, int), "rounding": (float, int), "notes": (tuple, list),
    "report": (Mapping,),
}  # fmt: skip
# Those that settings tell under the same name.
_PLAIN = ("position", "position_token", "dropped", "heads", "residual", "start_layer", "edges")


def _typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the fields that are of their kind, in the form in which a record keeps them."""
    out: dict[str, Any] = {name: value for name, value in given.items() if isinstance(value, _KINDS.get(name, ()))}
    if isinstance(out.get("heads"), list):
        out["heads"] = tuple(out["heads"])
    for name, kind in (("notes", str), ("joins", str), ("kept_rows", int)):
        if name in out:
            out[name] = tuple(map(kind, out[name]))
    if "report" in out:
        out["report"] = Report.of(out["report"])
    return out


def _dropped(scores: Array, mass: Array | None) -> dict[str, Any]:
    """The fields of scores from which special tokens with this ``mass`` per layer (and output) were dropped."""
    if mass is None:
        return {}
    gone, left = float(mass[-1].sum()), float(np.nansum(np.abs(scores[-1])))
    return {"dropped_mass": mass, "dropped": gone / (gone + left) if gone + left else 0.0}


def mass_share(scores: Array, columns: npt.NDArray[np.bool_]) -> float:
    """The share of the mass (the sum of magnitudes, without missing ones) that lies on ``columns``."""
    total = float(np.nansum(np.abs(scores)))
    return float(np.nansum(np.abs(scores[..., columns]))) / total if total else 0.0


def _plain(value: Any) -> Any:
    """Numbers, strings, lists and dicts only, so that settings fit into JSON."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
