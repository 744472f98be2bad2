"""Attention rollout: the product of the residual-adjusted attention of all layers below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from attnflow.attention import Attention
from attnflow.errors import SelectionError
from attnflow.heads import Heads
from attnflow.relevance import Relevance
from attnflow.scoring.network import F64, Network, Residual, network, residual_of
from attnflow.scoring.raw import explained_at, said
from attnflow.scoring.source import each, is_model, ready
from attnflow.select import pick_layer, pick_position

if TYPE_CHECKING:
    from attnflow.scoring.rollout_stream import Streamed
    from attnflow.tokens import Tokens


@overload
def rollout(source: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def rollout(source: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def rollout(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    layer: int | None = None,
    position: int | str | None = None,
    residual: Residual = None,
    start_layer: int = 0,
    heads: Heads | None = None,
    sinks: str | None = None,
    block: str | None = None,
    tokens: Sequence[str] | None = None,
    edges: str | None = None,
    stream: bool | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """Attention rollout (Abnar & Zuidema 2020, equation 1).

    The share of input *j* in output *i* of layer *l*, if attention and residual connection were all that mixes
    positions:  Ã(l) = Â(l)·Ã(l−1),  Ã(0) = Â(0),  with  Â = (1−ρ)·W + ρ·I, rows divided by their sums.
    ``scores[l, i, j]`` is how much output position *i* at layer *l* draws on input position *j*; rows sum to one.

    With other ``edges`` it is the same product of other matrices. Those that hold the residual connection are
    multiplied as they are; gradient edges give Chefer's generic rule R ← R + Ā·R (Chefer et al. 2021, equation 6),
    whose rows have any sum.

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by the model's own number (negative ones count from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all. For one position and
            layer only a vector is carried down, at L·n² instead of L·n³ operations.
        residual: the residual share ρ: a number in [0, 1); by default 0.5, as in the paper. "none": 0. "measured":
            1 − the mixing ratio of each position and layer, as the model weighs it. "add": Â = W + I, rows not divided
            by their sums (default for gradient edges). Shares of your own: ``[L]``, ``[L, n]``. Edges that hold the
            residual ("norm", "alti", "value_zeroing") take none.
        start_layer: leave out the layers below this one.
        stream: for a model and one ``layer``: multiply while the model runs, so that only n² numbers are kept whatever
            the depth, and for one ``position`` no n × n matrix at all. None (default): where all layers' matrices
            would take more than 256 MiB. ``settings["stream"]`` says what was done.
        heads, sinks, block, tokens, edges, options: as for :func:`attnflow.raw`.

    >>> r = rollout([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    >>> r.scores[-1]
    array([[0.5, 0.5],
           [0.5, 0.5]])

    Two layers of three tokens: all outputs, one layer, one output, one number per input.

    >>> weights = [[[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.5, 0.0, 0.5]]] * 2
    >>> rollout(weights).scores.shape, rollout(weights, layer=-1).scores.shape
    ((2, 3, 3), (1, 3, 3))
    >>> rollout(weights, position=-1).scores.shape
    (2, 3)
    >>> last = rollout(weights, layer=-1, position=-1, tokens=["the", "key", "is"])
    >>> last.scores.round(4)
    array([[0.4125, 0.025 , 0.5625]])
    >>> [(token, round(score, 4)) for token, score in last.top(2)]
    [('is', 0.5625), ('the', 0.4125)]

    Without a residual it is the plain product of the matrices; with more of it, a token keeps more of itself.

    >>> rollout(weights, layer=-1, position=-1, residual="none").scores.round(3)
    array([[0.65, 0.1 , 0.25]])
    >>> rollout(weights, layer=-1, position=-1, residual=0.9).scores.round(3)
    array([[0.096, 0.001, 0.902]])

    Heads ``[layers, heads, n, n]`` are averaged first, or brought down in another way.

    >>> heads = [[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]]
    >>> rollout(heads, residual="none").scores[0], rollout(heads, residual="none", heads=1).scores[0]
    (array([[0.5, 0.5],
           [0.5, 0.5]]), array([[0., 1.],
           [1., 0.]]))
    """
    source, tokenizer, text = ready(source, tokenizer, text, "rollout")
    kinds: dict[str, Any] = {"edges": edges, **explained_at(source, edges, position), **measured(source, residual)}
    if _streams(source, tokenizer, text, stream, layer, residual, block, tokens, kinds | options):
        chosen = {"heads": heads, "sinks": sinks} | options
        kept = {name: value for name, value in chosen.items() if value is not None}
        return _streamed(source, tokenizer, text, layer, position, residual, start_layer, kept)

    unstreamed = is_model(source) and layer is not None and edges not in (None, "attention")

    def method(attention: Attention) -> Relevance:
        net = network(attention, residual, start_layer)
        known: dict[str, Any] = {"residual": residual_of(attention, residual), "start_layer": start_layer}
        settings = {**known, **said(attention)}
        if unstreamed:
            settings["stream"] = "every layer was kept: only attention weights are multiplied while the model runs"
        at = list(range(len(net.layers))) if layer is None else [pick_layer(layer, net.layers)]
        layers = tuple(net.layers[i] for i in at)
        tops = [net.tops[i] for i in at]
        if position is None:
            scores = products(net, tops)[:, net.rows]
            return Relevance(scores, net.tokens, layers, "rollout", settings, attention.model, net.queries, **known)
        p = pick_position(position, net.queries)
        known |= {"position": p, "position_token": net.queries[p]}
        scores = rows(net, tops, net.rows[p])
        return Relevance(scores, net.tokens, layers, "rollout", settings, attention.model, **known)

    given: dict[str, Any] = {"heads": heads, "sinks": sinks, "tokens": tokens, "block": block}
    return each(source, tokenizer, text, method, **given, **kinds, **options)


def measured(source: Any, residual: Residual) -> dict[str, Any]:
    """The option of capture by which the mixing ratios are there that ``residual="measured"`` needs."""
    return {"mixing": True} if isinstance(residual, str) and residual == "measured" and is_model(source) else {}


def products(net: Network, tops: Sequence[int]) -> F64:
    """Rollout of every node at each of ``tops``: ``[len(tops), size, size]``, multiplied from the inputs up."""
    out = np.empty((len(tops), net.size, net.size))
    running = np.eye(net.size)
    wanted = {top: i for i, top in enumerate(tops)}
    for s in range(max(tops)):
        running = net.steps[s].above(running)
        if s + 1 in wanted:
            out[wanted[s + 1]] = running
    return out


def rows(net: Network, tops: Sequence[int], node: int) -> F64:
    """Rollout of one node at each of ``tops``: ``[len(tops), size]``.

    A vector for each top is carried down from there, all of them in one product per step.
    """
    carried = np.zeros((len(tops), net.size))
    order = np.array(tops)
    for s in range(max(tops) - 1, -1, -1):
        carried[order == s + 1, node] = 1.0
        live = order > s
        carried[live] = net.steps[s].below(carried[live])
    return carried


def _streams(
    source: Any,
    tokenizer: Any,
    text: Any,
    stream: bool | None,
    layer: int | None,
    residual: Residual,
    block: str | None,
    tokens: Sequence[str] | None,
    options: Mapping[str, Any],
) -> bool:
    """Whether this rollout is to be multiplied while the model runs: only attention weights, one share per layer."""
    given = {name for name, value in options.items() if (name, value) not in (("edges", None), ("edges", "attention"))}
    fits = is_model(source) and layer is not None and block is None and tokens is None and given <= {"inputs"}
    fits = fits and (residual == "none" if isinstance(residual, str) else residual is None or np.ndim(residual) < 2)
    if stream and not fits:
        raise SelectionError(
            "stream=True gives one layer of a model, of its attention weights with one residual share per layer, and "
            "something else was asked for. Pass a model and a layer:  "
            "rollout(model, tokenizer, text, layer=-1, stream=True)"
        )
    if stream is not None or not fits:
        return bool(stream)
    from attnflow.scoring.rollout_stream import too_long

    return too_long(source, tokenizer, text, options.get("inputs"))


def _streamed(
    model: Any,
    tokenizer: Any,
    text: Any,
    layer: int | None,
    position: int | str | None,
    residual: Residual,
    start_layer: int,
    options: Mapping[str, Any],
) -> Relevance | list[Relevance]:
    from attnflow.scoring import rollout_stream as stream

    given: dict[str, Any] = {"layer": layer, "start_layer": start_layer, **options}
    given["residual"] = 0.5 if residual is None else 0.0 if isinstance(residual, str) else residual
    if position is None:
        found = stream.rollout_matrix(model, tokenizer, text, **given)
    else:
        found = stream.rollout_row(model, tokenizer, text, position=position, **given)
    return [_relevance(one) for one in found] if isinstance(found, list) else _relevance(found)


def _relevance(found: Streamed) -> Relevance:
    settings = {**found.settings, "route": found.route, "notes": found.notes}
    known: dict[str, Any] = {"heads": found.heads, "residual": found.residual, "start_layer": found.start_layer}
    known |= {"edges": "attention", "notes": found.notes}
    queries: Tokens | None = found.queries
    if found.position is not None:
        known |= {"position": found.position, "position_token": found.queries[found.position]}
        queries = None
    scores = found.scores[None]
    return Relevance(scores, found.tokens, found.layers[-1:], "rollout", settings, found.model, queries, **known)
