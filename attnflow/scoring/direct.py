"""Direct reading: what the output position itself read at each layer, added up over layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from attnflow.attention import Attention, outputs_of
from attnflow.errors import SelectionError, ShapeError
from attnflow.heads import Heads
from attnflow.numbers import whole
from attnflow.relevance import Relevance
from attnflow.scoring.raw import explained_at, matrices, relevance_of, said
from attnflow.scoring.source import each, ready


@overload
def direct(source: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def direct(source: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def direct(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    layer: int | None = None,
    position: int | str | None = None,
    start_layer: int = 0,
    heads: Heads | None = None,
    sinks: str | None = None,
    block: str | None = None,
    tokens: Sequence[str] | None = None,
    edges: str | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """The row of the output position, summed over the layers up to the one asked for.

    The residual stream of an output position is a sum over layers, and each layer's row says what that layer added to
    it and from which position (the edges into one column of an information flow route, Ferrando & Voita 2024,
    section 2). Nothing is composed: a path over a third position does not count.

        D(l)[i, j] = Σ_{k ≤ l} W(k)[i, j]

    ``scores[l, i, j]`` is how much output position *i* has read from position *j* in the layers up to *l*, directly.
    Where the rows of the edges sum to one, these sum to the number of layers. No residual is added, because the
    stream's own past is not read by anyone; edges that hold the residual ("norm", "alti", "value_zeroing") have it in
    the output's own column, where it stays. For an encoder-decoder model a decoder layer reads twice, from the encoder
    and from its own sequence, and each counts half (columns: the encoder's positions, then the decoder's).

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by the model's own number (negative ones count from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all.
        start_layer: leave out the layers below this one.
        heads, sinks, block, tokens, edges, options: as for :func:`attnflow.raw`.

    >>> d = direct([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], position=0)
    >>> d.scores
    array([[0., 1.],
           [1., 1.]])
    """
    source, tokenizer, text = ready(source, tokenizer, text, "direct")

    def method(attention: Attention) -> Relevance:
        scores, keys, queries, layers = matrices(attention)
        _check_size(attention)
        kept = [i for i, number in enumerate(layers) if number >= whole(start_layer, "start_layer")]
        if start_layer < 0 or not kept:
            have = ", ".join(map(str, layers))
            raise SelectionError(f"start_layer={start_layer}, but the layers with attention are {have}.")
        sums = np.cumsum(scores[kept], 0)
        settings = {"start_layer": start_layer, **said(attention)}
        numbers = tuple(layers[i] for i in kept)
        facts = (settings, attention.model, outputs_of(attention).rows)
        known: dict[str, Any] = {"start_layer": start_layer}
        return relevance_of(sums, keys, queries, numbers, layer, position, "direct", *facts, **known)

    given: dict[str, Any] = {"heads": heads, "sinks": sinks, "tokens": tokens, "block": block, "edges": edges}
    return each(source, tokenizer, text, method, **given, **explained_at(source, edges, position), **options)


def _check_size(attention: Attention) -> None:
    """Rows of layers that change the length are over different positions and cannot be added."""
    for name, block in attention.blocks.items():
        sizes = {w.shape[-2:] for w in block.weights}
        if name != "encoder" and len(sizes) > 1:
            found = ", ".join(f"{q}×{k}" for q, k in sorted(sizes))
            raise ShapeError(
                f"{name}: layers attend over {found} positions, so that their rows cannot be added up. "
                "Look at each layer by itself:  raw(…)"
            )
