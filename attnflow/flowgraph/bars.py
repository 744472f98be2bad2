"""The rows of bars of a graph: scores that were given, and those that are computed for what they leave out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnflow.attention import Attention
from attnflow.correlation import correlate
from attnflow.errors import ShapeError
from attnflow.flowgraph.records import FLOW, Curve, Output
from attnflow.informative import FEWEST, SAMPLE, row_agreement
from attnflow.relevance import Relevance, mass_share
from attnflow.reprs import one_line
from attnflow.scoring.network import F64, Network
from attnflow.scoring.registry import MethodCall
from attnflow.tokens import Grouping, Tokens

# Outputs of one layer are computed one by one where they are at most this part of all.
FEW = 4
Place = tuple[int, int]
"""An output: the true number of its layer, and the number of its position."""


@one_line
@dataclass(frozen=True, eq=False)
class Bars:
    """One row of bars: what one method says of every output.

    Attributes:
        name: what the page calls it.
        sources: results with one column per input. The first that has a score for an output and an input counts, so
            that given ones stand before computed ones.
        by_word: given results with one column per word; they count for words, before sums over ``sources``.
    """

    name: str
    sources: tuple[Relevance, ...]
    by_word: tuple[Relevance, ...] = ()

    @property
    def of_inputs(self) -> bool:
        """True if the inputs are scored as such, whatever the output."""
        return of_inputs(self.sources[0])

    def scores(self, place: Place) -> F64 | None:
        """One number per input, NaN where there is none; None where there is no score for this output."""
        return _first(self.sources, place)

    def words(self, place: Place, scores: F64, group: Grouping) -> F64:
        """One number per word, where ``scores`` are those of the inputs."""
        given, sums = _first(self.by_word, place), np.asarray(group.sum_keys(scores), np.float64)
        return sums if given is None else np.where(np.isnan(given), sums, given)

    def at_position(self, net: Network, row: int) -> Relevance | None:
        """One result with the scores of one output position, at all layers that have some."""
        found = {layer: scores for layer in net.layers if (scores := self.scores((layer, row))) is not None}
        if not found:
            return None
        return Relevance(np.stack(list(found.values())), net.tokens, tuple(found), self.name, position=row)


def of_inputs(r: Relevance) -> bool:
    """True for results that score the inputs as such: gradients, blank-out."""
    return r.layers == ("input",)


def _first(sources: Sequence[Relevance], place: Place) -> F64 | None:
    out: F64 | None = None
    for source in sources:
        found = _row(source, *place)
        if found is not None:
            out = found if out is None else np.where(np.isnan(out), found, out)
            if not np.isnan(out).any():
                break
    return out


def _row(r: Relevance, layer: int, row: int) -> F64 | None:
    """The scores of one output; methods that score inputs as such have the same for each."""
    if of_inputs(r):
        scores = r.scores[0] if r.scores.ndim == 2 else None
    elif layer not in r.layers:
        return None
    elif r.scores.ndim == 3:
        scores = r.scores[r.layers.index(layer), row]
    else:
        scores = r.scores[r.layers.index(layer)] if r.position == row else None
    return None if scores is None or np.isnan(scores).all() else np.asarray(scores, np.float64)


def named(results: Sequence[Relevance], attention: Attention, choices: Mapping[str, Any]) -> dict[str, list[Relevance]]:
    """Results by the name of their bars: those of one method with the same choices share one row.

    ``choices`` are those of the graph: a flow that was computed with others stands beside that of the graph.
    """
    out: dict[str, list[Relevance]] = {FLOW: []}
    chosen: dict[str, Mapping[str, Any]] = {FLOW: choices}
    for r in results:
        base = _name(r, attention)
        name, count = base, 2
        while name in out and (of_inputs(r) or not _alike(_choices(r), chosen[name])):
            name, count = f"{base} ({count})", count + 1
        chosen.setdefault(name, _choices(r))
        out.setdefault(name, []).append(r)
    return out


def _name(r: Relevance, attention: Attention) -> str:
    edges = "" if r.edges in (None, attention.edges) else f" ({r.edges} edges)"
    return f"{r.method}{' (rescaled)' if r.rescaled else ''}{edges}"


def _choices(r: Relevance) -> dict[str, Any]:
    return {"residual": r.residual, "start_layer": r.start_layer or 0}


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(np.array_equal(np.asarray(one[name]), np.asarray(other[name])) for name in one)


def given_bars(name: str, given: Sequence[Relevance], net: Network, row: int) -> Bars:
    """Bars of results that are shown as they are."""
    fitted = [_fitted(r, net, row) for r in given]
    for r, fit in zip(given, fitted, strict=True):
        if fit is None:
            raise ShapeError(
                f"{r.method} scores {len(r.tokens)} inputs ({' '.join(r.tokens[:6])} …), the attention has "
                f"{len(net.tokens)} ({' '.join(net.tokens[:6])} …): both must be of the same tokens, before words() "
                "and drop_special()."
            )
    return Bars(name, tuple(fit for fit in fitted if fit is not None))


def completed_bars(
    call: MethodCall,
    given: Sequence[Relevance],
    attention: Attention,
    net: Network,
    group: Grouping,
    places: Sequence[Place],
) -> Bars:
    """Bars of a method for all of ``places``: given scores where there are some, computed ones for the rest."""
    row, own = places[0][1], Bars(call.name, ())
    for r in given:
        if r.unit == "word" and tuple(r.tokens) != tuple(net.tokens):
            by_word = _by_word(r, net, group, row)
            own = own if by_word is None else replace(own, by_word=(*own.by_word, by_word))
        elif r.dropped is None or _at_its_place(r, net):
            own = replace(own, sources=(*own.sources, *given_bars(call.name, [r], net, row).sources))
    missing = [place for place in places if (s := own.scores(place)) is None or np.isnan(s).any()]
    computed = [_padded(r, net) for r in _computed(call, attention, net, places, missing)]
    if len(group.members) < len(net.tokens):
        # The flow of a word is not the sum over its pieces.
        joined = [r.key_words() for r in (*own.sources, *computed) if r.joins and r.has_words]
        own = replace(own, by_word=(*own.by_word, *joined))
    return replace(own, sources=(*own.sources, *computed))


def _computed(
    call: MethodCall, attention: Attention, net: Network, places: Sequence[Place], missing: Sequence[Place]
) -> Iterator[Relevance]:
    if not missing:
        return
    options = {**call.method.defaults, **call.options}

    def run(**place: Any) -> Relevance:
        found: Relevance = call.method.function(attention, **options, **place)
        return found

    layer, row = places[0]
    parameter = inspect.signature(call.method.function).parameters.get("position")
    if parameter is None or parameter.default is not None:
        # A function of the user's own gives one output position at a time.
        for p in sorted({p for _, p in missing}):
            yield replace(run(position=p), position=p)
    elif len(places) == len(net.layers) * len(net.queries):
        yield run()
    else:
        # Beyond this size all pairs of all layers would take minutes: one output at all layers, all at one layer, or
        # of a long text those that the page has.
        others = sorted({p for _, p in missing if p != row})
        if len(others) * FEW <= len(net.queries):
            for p in others:
                yield run(layer=layer, position=p)
        if any(p == row for _, p in missing):
            yield run(position=row)
        if len(others) * FEW > len(net.queries):
            yield run(layer=layer)


def _fitted(r: Relevance, net: Network, row: int) -> Relevance | None:
    """Scores for all inputs and outputs of the network, NaN where ``r`` has none; None if it is not of this input."""
    columns = _indices(r.tokens, net.tokens)
    lines = list(range(len(net.queries))) if r.scores.ndim == 2 or of_inputs(r) else _indices(r.rows, net.queries)
    if columns is None or lines is None:
        return None
    return _spread(_placed(r, row), columns, lines, net.tokens, net.queries)


def _padded(r: Relevance, net: Network) -> Relevance:
    """What was computed here: its names are those of the network, or numbers where layers change the length."""
    lines = range(len(r.rows) or len(net.queries))
    return _spread(r, range(len(r.tokens)), lines, net.tokens, net.queries)


def _by_word(r: Relevance, net: Network, group: Grouping, row: int) -> Relevance | None:
    columns = _indices(r.tokens, group.tokens)
    if r.scores.ndim == 3 or columns is None or not _at_its_place(r, net):
        return None
    return _spread(_placed(r, row), columns, (), group.tokens, net.queries)


def _placed(r: Relevance, row: int) -> Relevance:
    """A result that does not say which output position it is of is of the one that the page begins with."""
    return replace(r, position=row) if r.scores.ndim == 2 and r.position is None and not of_inputs(r) else r


def _at_its_place(r: Relevance, net: Network) -> bool:
    """Whether the position counts all outputs: it does not if it was chosen among words, or special ones were gone."""
    if r.scores.ndim == 3 or r.position is None or r.position_token is None:
        return True
    return r.position < len(net.queries) and net.queries[r.position] == r.position_token


def _indices(names: Tokens, wanted: Tokens) -> list[int] | None:
    """Where ``names`` stand among ``wanted``: at its beginning, or at all places that are not special."""
    if tuple(names) == tuple(wanted[: len(names)]):
        return list(range(len(names)))
    kept = [j for j, special in enumerate(wanted.special) if not special]
    return kept if tuple(names) == tuple(wanted[j] for j in kept) else None


def _spread(r: Relevance, columns: Sequence[int], lines: Sequence[int], tokens: Tokens, queries: Tokens) -> Relevance:
    """``r`` with its columns and rows at these places of ``tokens`` and ``queries``."""
    if len(columns) == len(tokens) and (r.scores.ndim == 2 or len(lines) == len(queries)):
        return r
    if r.scores.ndim == 2:
        scores = np.full((len(r.layers), len(tokens)), np.nan)
        scores[:, list(columns)] = r.scores
        return replace(r, scores=scores, tokens=tokens, dropped_mass=None)
    scores = np.full((len(r.layers), len(queries), len(tokens)), np.nan)
    scores[:, np.array(lines)[:, None], np.array(columns)] = r.scores
    return replace(r, scores=scores, tokens=tokens, queries=queries, kept_rows=None, dropped_mass=None)


def output_of(place: Place, bars: Sequence[Bars], net: Network, group: Grouping) -> Output:
    """An output with the scores of all methods."""
    found = {b.name: (b, b.scores(place)) for b in bars}
    scores = {name: s for name, (_, s) in found.items() if s is not None}
    words = {name: found[name][0].words(place, s, group) for name, s in scores.items()}
    special = np.array(net.tokens.special, bool)
    return Output(*place, scores, words, {name: mass_share(s, special) for name, s in scores.items()})


def curves_of(bars: Sequence[Bars], net: Network, row: int) -> Iterator[Curve]:
    """Correlations of each method at one output position with those that score the inputs as such."""
    rows = [b.at_position(net, row) for b in bars if not b.of_inputs and not b.sources[0].rescaled]
    for reference in (b for b in bars if b.of_inputs):
        for r in (r for r in rows if r is not None):
            # As compare() does by default: special tokens hold most of the attention and would decide the ranking.
            found = correlate(r, reference.sources[0], special_tokens=False)
            values = tuple(float(v) for v in found.values)
            kind = f"{found.method}, no special tokens" if any(r.tokens.special) else found.method
            yield Curve(r.method, reference.name, kind, tuple(map(int, found.layers)), values)


def informative_lines(bars: Sequence[Bars], places: Sequence[Place]) -> dict[str, str]:
    """For each method, whether its scores of the first output say something about this text."""
    layer, row = places[0]
    others = [place for place in places[1:] if place[0] == layer][:SAMPLE]
    out = {}
    for b in bars:
        scores = b.scores((layer, row))
        if scores is None or len(scores) < FEWEST:
            continue
        rows = [s for place in others if not b.of_inputs and (s := b.scores(place)) is not None]
        agreed = row_agreement(np.nan_to_num(np.abs(np.stack([scores, *rows])))) if rows else None
        one = Relevance(
            scores[None], b.sources[0].tokens, (0,), b.name, row_agreement=agreed, rounding=b.sources[0].rounding
        )
        out[b.name] = one.informative.line
    return out


def notes_of(bars: Sequence[Bars]) -> tuple[str, ...]:
    """What a reader must know: notes of the capture, and what methods found out about their own scores."""
    lines: list[str] = []
    for b in bars:
        lines += [note for r in b.sources for note in r.notes]
        # The last result is the one of most outputs.
        report = b.sources[-1].report
        lines += [f"{b.sources[-1].method}: {line}" for line in (report.words if report else ())]
    return tuple(dict.fromkeys(lines))
