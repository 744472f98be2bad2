"""From attention to a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.attention import Attention
from attnflow.correlation import correlate
from attnflow.errors import ShapeError
from attnflow.flowgraph.flows import pair_flows
from attnflow.flowgraph.heads import Room, head_count, name_of, ways
from attnflow.flowgraph.image import patches, pixels
from attnflow.flowgraph.records import Curve, Level, Picture, Target, settings_line
from attnflow.relevance import Relevance
from attnflow.scoring.network import F64, Network, Residual, Step, network
from attnflow.scoring.raw import raw
from attnflow.scoring.rollout import rollout
from attnflow.scoring.source import Heads, reduced
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Grouping, group_words

METHODS = ("raw", "rollout", "flow")


def picture(
    attention: Attention,
    relevances: Sequence[Relevance] = (),
    *,
    position: int | str | None = None,
    layer: int = -1,
    residual: Residual = None,
    start_layer: int = 0,
    curves: Sequence[Curve] | None = None,
    image: Any = None,
    grid: tuple[int, int] | None = None,
    pairs: int | None = None,
    heads: Heads | Sequence[Heads] | None = None,
) -> Picture:
    """Assemble what a view shows.

    Args:
        attention: what :func:`attnflow.capture` gave; with ``heads="all"`` a page can switch between heads.
        relevances: further scores of the same inputs, for instance gradients; raw attention, rollout and flow are
            computed here.
        position: the output position to start with; by default "cls" where there is one, else the last.
        layer: the layer to start with.
        residual, start_layer: as for :func:`attnflow.flow`.
        curves: correlations to show, layer by layer; by default Spearman's, at ``position`` and without special
            tokens, of raw attention, rollout and flow with those of ``relevances`` that score the inputs as such
            (gradients, blank-out).
        image: the input picture (a PIL image or an array), where the tokens are its patches.
        grid: rows and columns of patches; by default from the names of the tokens, else a square.
        pairs: how many pairs of target and input get an edge flow; by default what takes a few seconds.
        heads: the ways to bring the heads down to one matrix: "mean", "max", "min" or the number of a head, or a list
            of these, the one to start with first; by default all, as far as a page has room.

    >>> p = picture(Attention.of([[[0.2, 0.8], [0.5, 0.5]]] * 2, tokens=["a", "b"]), position=1)
    >>> p.targets[0].scores["flow"].tolist(), p.pairs[0, 0].value, p.complete
    ([0.5, 1.0], 0.5, True)
    """
    listed = ways(attention) if heads is None else [heads] if isinstance(heads, str | int) else list(heads)
    options: dict[str, Any] = {"residual": residual, "start_layer": start_layer}
    room = Room() if len(listed) == 1 else Room().half()
    made = _one(attention, listed[0], relevances, position, layer, options, curves, room, pairs)
    # What came from attention came from one fusion of its heads; scores of the inputs as such go with all.
    inputs = [r for r in relevances if r.layers == ("input",)]
    scores = sum(
        s.size for t in made.targets for part in (t.scores, t.words) for s in map(part.get, METHODS) if s is not None
    )
    room = Room().rest(scores, sum(len(pair.flow) for pair in made.pairs.values()), max(1, len(listed) - 1))
    fusions = tuple(_one(attention, way, inputs, position, layer, options, curves, room, pairs) for way in listed[1:])
    size, where = ((0, 0), ()) if image is None else patches(made.net.tokens, grid)
    shown = None if image is None else pixels(image)
    return replace(made, fusions=fusions, head_count=head_count(attention), image=shown, grid=size, patches=where)


def _one(
    attention: Attention,
    way: Heads,
    relevances: Sequence[Relevance],
    position: int | str | None,
    layer: int,
    options: dict[str, Any],
    curves: Sequence[Curve] | None,
    room: Room,
    pairs: int | None,
) -> Picture:
    """The picture of one way to bring the heads down."""
    attention = reduced(attention, way)
    net = network(attention, **options)
    row = default_position(net) if position is None else pick_position(position, net.queries)
    first = (net.layers[pick_layer(layer, net.layers)], row)
    group = group_words(net.tokens)
    others = [_fitted(r, net) for r in relevances if r.method not in METHODS or _scaled(r)]
    # Scores of the inputs as such are the same for every target and are kept once.
    each = len(METHODS) + sum(r.layers != ("input",) for r in others)
    columns = net.size + (len(group.members) if len(group.members) < net.size else 0)
    places, computed = _scores(attention, net, first, options, room.scores // (columns * each))
    rows = [*computed, *others]
    targets = tuple(_target(place, rows, net, group) for place in places)
    return Picture(
        net, net.stack(), _residual(net.steps), _levels(attention, net), targets,
        pair_flows(net, targets, room, pairs), {_label(r): settings_line(r) for r in rows}, group,
        tuple(_curves(computed, others, row) if curves is None else curves), _notes(rows), attention.model,
        heads=name_of(way),
    )  # fmt: skip


def default_position(net: Network) -> int:
    """The position that classifiers read where there is one, else the last."""
    return net.queries.marks.get("cls", len(net.queries) - 1)


def _scaled(r: Relevance) -> bool:
    return r.rescaled


def _label(r: Relevance) -> str:
    return f"{r.method} (rescaled)" if r.method in METHODS and _scaled(r) else r.method


def _notes(rows: Sequence[Relevance]) -> tuple[str, ...]:
    lines: list[str] = []
    for r in rows:
        lines += [*r.notes, *(f"{r.method}: {line}" for line in (r.report.words if r.report else ()))]
    return tuple(dict.fromkeys(lines))


def _fitted(r: Relevance, net: Network) -> Relevance:
    """Scores for all inputs of the network: NaN for those that the method does not score."""
    m = len(r.tokens)
    if tuple(r.tokens) != tuple(net.tokens[:m]):
        raise ShapeError(
            f"{r.method} scores {m} inputs ({' '.join(r.tokens[:6])} …), the attention has {len(net.tokens)} "
            f"({' '.join(net.tokens[:6])} …): both must be of the same tokens, before words() and drop_special()."
        )
    if m == len(net.tokens):
        return r
    scores = np.full((*r.scores.shape[:-1], len(net.tokens)), np.nan)
    scores[..., :m] = r.scores
    return replace(r, scores=scores, tokens=net.tokens)


def _scores(
    attention: Attention, net: Network, first: tuple[int, int], options: dict[str, Any], most: int
) -> tuple[list[tuple[int, int]], list[Relevance]]:
    """At most ``most`` targets in order of interest, and raw attention, rollout and flow for (at least) these."""
    from attnflow.scoring.flow.flow import flow

    layers, outputs = net.layers, range(len(net.queries))
    order = [first, *((n, first[1]) for n in layers[::-1]), *((n, p) for n in layers[::-1] for p in outputs)]
    order = list(dict.fromkeys(order))
    kept = order[: max(1, most)]
    basic = [raw(attention), rollout(attention, **options)]
    if kept == order:
        return kept, [*basic, flow(attention, **options)]
    # Beyond this size all pairs of all layers would take minutes: one output at all layers, all at one layer.
    kept = [(n, p) for n, p in kept if n == first[0] or p == first[1]]
    found = flow(attention, position=first[1], **options)
    both = np.full((len(layers), len(outputs), net.size), np.nan)
    both[:, first[1]] = found.scores
    if any(p != first[1] for _, p in kept):
        found = flow(attention, layer=first[0], **options)
        both[layers.index(first[0])] = found.scores[0]
    return kept, [*basic, replace(found, scores=both, layers=layers, queries=net.queries)]


def _target(place: tuple[int, int], rows: Sequence[Relevance], net: Network, group: Grouping) -> Target:
    found = {_label(r): _row(r, *place) for r in rows}
    scores = {name: s for name, s in found.items() if s is not None}
    special = np.array(net.tokens.special, bool)
    words = {name: np.asarray(group.sum_keys(s), np.float64) for name, s in scores.items()}
    shares = {name: _share(s, special) for name, s in scores.items()}
    return Target(*place, scores, words, shares)


def _row(r: Relevance, layer: int, row: int) -> F64 | None:
    """The scores of one target; methods that score inputs as such have the same for each."""
    if r.layers == ("input",):
        scores = r.scores[0] if r.scores.ndim == 2 else None
    elif layer not in r.layers:
        return None
    elif r.scores.ndim == 3:
        scores = r.scores[r.layers.index(layer), row]
    else:
        scores = r.scores[r.layers.index(layer)] if r.position == row else None
    return None if scores is None or np.isnan(scores).all() else np.asarray(scores, np.float64)


def _share(scores: F64, columns: npt.NDArray[np.bool_]) -> float:
    mass = np.nan_to_num(np.abs(scores))
    total = float(mass.sum())
    return float(mass[columns].sum()) / total if total else 0.0


def _curves(computed: Sequence[Relevance], others: Sequence[Relevance], row: int) -> Iterator[Curve]:
    for reference in others:
        if reference.layers == ("input",):
            for r in computed:
                # As compare() does by default: special tokens hold most of the attention and would decide the ranking.
                found = correlate(r.at(position=row), reference, special_tokens=False)
                values = tuple(float(v) for v in found.values)
                kind = f"{found.method}, no special tokens" if any(r.tokens.special) else found.method
                yield Curve(r.method, _label(reference), kind, tuple(map(int, found.layers)), values)


def _residual(steps: Sequence[Step]) -> F64:
    out = np.zeros((len(steps), steps[0].size))
    for s, step in enumerate(steps):
        own = step.residual()
        out[s, step.row : step.row + len(own)] = own
    return out


def _levels(attention: Attention, net: Network) -> tuple[Level, ...]:
    if set(attention.blocks) != {"encoder", "decoder", "cross"}:
        return tuple(Level("self", n) for n in net.layers)
    out = [Level("encoder", n) for n in attention["encoder"].layers]
    for n in net.layers:
        out.append(Level("decoder", n))
        if n in attention["cross"].layers:
            out.append(Level("cross", n))
    return tuple(out)
