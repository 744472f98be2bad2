"""Raw attention: the weights of each layer as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from attnflow.attention import Attention, Block
from attnflow.relevance import Relevance
from attnflow.scoring.source import Heads, each
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Tokens, join


@overload
def raw(source: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def raw(source: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def raw(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    layer: int | None = None,
    position: int | str | None = None,
    heads: Heads | None = None,
    sinks: str | None = None,
    block: str | None = None,
    tokens: Sequence[str] | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """The attention weights themselves, heads averaged.

    ``scores[l, i, j]``: how much output position *i* of layer *l* attends to position *j* **of the layer below**.
    Above the first layer that position is already a mixture of inputs, which is why raw attention is a poor
    guide there (Abnar & Zuidema 2020, Table 1). For an encoder-decoder model the columns are the encoder's
    positions followed by the decoder's, and a row holds the cross- and the self-attention of a decoder
    layer, half each.

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by its true number (negatives from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all.
        heads: "mean" (default), "max", "min", a number or a list of heads.
        sinks: rows that sum to less than one: "error", "keep" or "renormalise".
        block: for models with several towers, the one to look at.
        tokens: names of the positions, where they are not known from a tokenizer.
        options: passed to :func:`attnflow.capture`.

    >>> raw([[[0.2, 0.8], [0.6, 0.4]]], position=0).scores
    array([[0.2, 0.8]])
    """

    def method(attention: Attention) -> Relevance:
        if set(attention.blocks) == {"encoder", "decoder", "cross"}:
            scores, keys, queries, layers = _two_towers(attention)
        else:
            only = attention.only
            scores, keys, queries, layers = _stack(only), only.keys, only.queries, only.layers
        settings = {"heads": attention.heads, "route": attention.route, "notes": attention.notes}
        return chosen(scores, layers, keys, queries, layer, position, "raw", settings, attention.model)

    return each(source, tokenizer, text, method, heads=heads, sinks=sinks, tokens=tokens, block=block, **options)


def chosen(
    scores: Any,
    layers: Sequence[int],
    tokens: Tokens,
    queries: Tokens,
    layer: int | None,
    position: int | str | None,
    method: str,
    settings: dict[str, Any],
    model: str,
) -> Relevance:
    """The relevance for the layer and position that were asked for, out of all."""
    if layer is not None:
        i = pick_layer(layer, layers)
        scores, layers = scores[i : i + 1], layers[i : i + 1]
    if position is None:
        return Relevance(scores, tokens, tuple(layers), method, settings, model, queries)
    p = pick_position(position, queries)
    settings = {**settings, "position": p, "position_token": queries[p]}
    return Relevance(scores[:, p], tokens, tuple(layers), method, settings, model)


def _stack(block: Block) -> Any:
    """``[L, q, k]`` in float64; layers of unequal size are filled up with zeros."""
    q = max(w.shape[0] for w in block.weights)
    k = len(block.keys)
    out = np.zeros((len(block.weights), q, k))
    for i, w in enumerate(block.weights):
        out[i, : w.shape[0], : w.shape[1]] = w
    return out


def _two_towers(attention: Attention) -> tuple[Any, Tokens, Tokens, tuple[int, ...]]:
    decoder, cross = attention["decoder"], attention["cross"]
    across = dict(zip(cross.layers, cross.weights, strict=True))
    n = len(cross.keys)
    out = np.zeros((len(decoder.layers), len(decoder.queries), n + len(decoder.keys)))
    for i, (number, w) in enumerate(zip(decoder.layers, decoder.weights, strict=True)):
        half = 0.5 if number in across else 1.0
        out[i, :, n:] = half * w
        if number in across:
            out[i, :, :n] = 0.5 * across[number]
    return out, join(cross.keys, decoder.keys), decoder.queries, decoder.layers
