"""Raw attention: the weights of each layer as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from attnflow.attention import Attention, Block, check_edges, outputs_of
from attnflow.heads import Heads
from attnflow.relevance import Relevance
from attnflow.scoring.network import F64, own_shares
from attnflow.scoring.source import each, is_model, notes_of, ready
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
    edges: str | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """The attention weights themselves, heads averaged; or each layer's matrix of other ``edges``.

    ``scores[l, i, j]``: how much output position *i* of layer *l* attends to position *j* **of the layer below**.
    Above the first layer that position is already a mixture of inputs, which is why raw attention is a poor
    guide there (Abnar & Zuidema 2020, Table 1). For an encoder-decoder model the columns are the encoder's
    positions followed by the decoder's, and a row holds the cross- and the self-attention of a decoder
    layer, half each. Edges that hold the residual connection have it in the output's own column.

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by the model's own number (negative ones count from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all.
        heads: "mean" (default), "max", "min", a number or a list of heads.
        sinks: rows that sum to less than one: "error", "keep" or "renormalise".
        block: for models with several towers, the one to look at.
        tokens: names of the positions, where they are not known from a tokenizer.
        edges: what a layer's matrix holds: "attention" (default: the weights), "norm", "alti", "value_zeroing" or
            "gradient"; see :func:`attnflow.capture` and the page of methods. An :class:`Attention` knows its own.
        options: passed to :func:`attnflow.capture`: with edges="gradient" also ``target``.

    >>> raw([[[0.2, 0.8], [0.6, 0.4]]], position=0).scores
    array([[0.2, 0.8]])
    """
    source, tokenizer, text = ready(source, tokenizer, text, "raw")

    def method(attention: Attention) -> Relevance:
        facts = (said(attention), attention.model, outputs_of(attention).rows)
        return relevance_of(*matrices(attention), layer, position, "raw", *facts)

    given: dict[str, Any] = {"heads": heads, "sinks": sinks, "tokens": tokens, "block": block, "edges": edges}
    return each(source, tokenizer, text, method, **given, **explained_at(source, edges, position), **options)


def said(attention: Attention) -> dict[str, Any]:
    """What every method says of the attention that it was given."""
    settings: dict[str, Any] = {"heads": attention.heads, "route": attention.route, "notes": notes_of(attention)}
    if attention.edges != "attention":
        settings |= {"edges": attention.edges}
        settings |= {name: attention.settings[name] for name in _TARGET if name in attention.settings}
    return settings


# What gradient edges say of the number that was differentiated; its position is not the one that scores are read at.
_TARGET = ("explains", "target", "target_label", "score", "target_position")


def explained_at(source: Any, edges: str | None, position: int | str | None) -> dict[str, Any]:
    """The option of capture by which gradient edges explain the output at the position that is looked at."""
    gradient = edges is not None and check_edges(edges) == "gradient"
    return {"position": position} if gradient and position is not None and is_model(source) else {}


def matrices(attention: Attention) -> tuple[F64, Tokens, Tokens, tuple[int, ...]]:
    """(``[layers, queries, keys]``, names of the keys, names of the queries, layer numbers), in float64.

    For an encoder-decoder model the decoder's layers, encoder positions first.
    """
    if set(attention.blocks) == {"encoder", "decoder", "cross"}:
        return _two_towers(attention)
    only = attention.only
    return _stack(only), only.keys, only.queries, only.layers


def relevance_of(
    scores: Any,
    tokens: Tokens,
    queries: Tokens,
    layers: Sequence[int],
    layer: int | None,
    position: int | str | None,
    method: str,
    settings: dict[str, Any],
    model: str,
    kept_rows: tuple[int, ...] | None = None,
    **known: Any,
) -> Relevance:
    """The relevance for the layer and position that were asked for, out of all :func:`matrices`.

    ``kept_rows`` are the numbers of the output positions, where the scores are not of all. ``known`` are further
    fields.
    """
    if layer is not None:
        i = pick_layer(layer, layers)
        scores, layers = scores[i : i + 1], layers[i : i + 1]
    if position is None:
        known["kept_rows"] = kept_rows
        return Relevance(scores, tokens, tuple(layers), method, settings, model, queries, **known)
    p = pick_position(position, queries)
    known |= {"position": p if kept_rows is None else kept_rows[p], "position_token": queries[p]}
    return Relevance(scores[:, p], tokens, tuple(layers), method, settings, model, **known)


def _stack(block: Block) -> F64:
    """``[L, q, k]`` in float64; layers of unequal size are filled up with zeros."""
    q = max(w.shape[0] for w in block.weights)
    k = len(block.keys)
    out = np.zeros((len(block.weights), q, k))
    for i, w in enumerate(block.weights):
        out[i, : w.shape[0], : w.shape[1]] = w
    return out


def _two_towers(attention: Attention) -> tuple[F64, Tokens, Tokens, tuple[int, ...]]:
    decoder, cross = attention["decoder"], attention["cross"]
    across = dict(zip(cross.layers, cross.weights, strict=True))
    shares = dict(zip(cross.layers, own_shares(cross), strict=True)) if attention.residual_inside else {}
    n = len(cross.keys)
    out = np.zeros((len(decoder.layers), len(decoder.queries), n + len(decoder.keys)))
    for i, (number, w) in enumerate(zip(decoder.layers, decoder.weights, strict=True)):
        half = 0.5 if number in across else 1.0
        out[i, :, n:] = half * w
        if number in across:
            out[i, :, :n] = 0.5 * across[number]
        if number in shares:
            rows = np.arange(len(decoder.queries))
            own = rows if decoder.rows is None else np.array(decoder.rows)
            out[i, :, :n] *= 1 - shares[number][:, None]
            out[i, rows, n + own] += 0.5 * shares[number]
    return out, join(cross.keys, decoder.keys), decoder.queries, decoder.layers
