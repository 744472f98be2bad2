"""Attention rollout: the product of the residual-adjusted attention of all layers below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from attnflow.attention import Attention
from attnflow.network import F64, Network, Residual, network
from attnflow.relevance import Relevance
from attnflow.select import pick_layer, pick_position
from attnflow.sources import Heads, each


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
    residual: Residual = 0.5,
    start_layer: int = 0,
    heads: Heads | None = None,
    sinks: str | None = None,
    block: str | None = None,
    tokens: Sequence[str] | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """Attention rollout (Abnar & Zuidema 2020, equation 1).

    The share of input *j* in output *i* of layer *l*, if attention and residual connection were all that mixes
    positions:  Ã(l) = Â(l)·Ã(l−1),  Ã(0) = Â(0),  with  Â = (1−ρ)·W + ρ·I, rows divided by their sums.
    ``scores[l, i, j]`` is how much output position *i* at layer *l* draws on input position *j*; rows sum to one.

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by its true number (negatives from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all. For one position and
            layer only a vector is carried down, at L·n² instead of L·n³ operations.
        residual: the residual share ρ: 0.5 in the paper; a number in [0, 1), "none", or measured: ``[L]``, ``[L, n]``.
        start_layer: leave out the layers below this one.
        heads, sinks, block, tokens, options: as for :func:`attnflow.raw`.

    >>> r = rollout([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    >>> r.scores[-1]
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """

    def method(attention: Attention) -> Relevance:
        net = network(attention, residual, start_layer)
        settings = {
            "residual": residual, "start_layer": start_layer, "heads": attention.heads,
            "route": attention.route, "notes": attention.notes,
        }  # fmt: skip
        at = list(range(len(net.layers))) if layer is None else [pick_layer(layer, net.layers)]
        layers = tuple(net.layers[i] for i in at)
        tops = [net.tops[i] for i in at]
        if position is None:
            scores = products(net, tops)[:, net.rows]
            return Relevance(scores, net.tokens, layers, "rollout", settings, attention.model, net.queries)
        p = pick_position(position, net.queries)
        settings |= {"position": p, "position_token": net.queries[p]}
        return Relevance(rows(net, tops, net.rows[p]), net.tokens, layers, "rollout", settings, attention.model)

    return each(source, tokenizer, text, method, heads=heads, sinks=sinks, tokens=tokens, block=block, **options)


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

    A vector for each top is carried down from there, all of them in one product a step.
    """
    carried = np.zeros((len(tops), net.size))
    order = np.array(tops)
    for s in range(max(tops) - 1, -1, -1):
        carried[order == s + 1, node] = 1.0
        live = order > s
        carried[live] = net.steps[s].below(carried[live])
    return carried
