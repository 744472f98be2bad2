"""The layered graph along which rollout multiplies and through which flow runs.

Abnar & Zuidema (2020), section 3: the nodes are the positions of the input and of every layer's output, and
a layer's attention, adjusted for the residual connection, weighs the edges from its outputs (rows) to its
inputs (columns). With the residual share ρ

    Â = (1 − ρ)·W + ρ·I,  its rows divided by their sums          (the paper: ρ = ½)

Edges that hold the residual connection already (norm, alti, value zeroing) are used as they are. Gradient edges are in
units of the target, so they are not divided by anything: Â = I + W (Chefer et al. 2021, equation 6).

An encoder-decoder model is one graph over both token sequences, encoder positions first: each encoder layer is
a step that leaves decoder positions as they are, each decoder layer is a self step and a cross step (rows:
decoder positions, columns: encoder positions, the residual on the decoder's own position). A cross block has no column
for the residual: where its edges hold one, the mixing ratio says which share the encoder's positions have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.attention import Attention, Block
from attnflow.errors import SelectionError, ShapeError
from attnflow.numbers import to_numpy, whole
from attnflow.reprs import one_line
from attnflow.tokens import Tokens, join

F64 = npt.NDArray[np.float64]
Residual = float | str | Sequence[float] | npt.NDArray[Any] | None
"""None leaves the choice to the edges; see :func:`residual_of`."""

_NAMES = "a number in [0, 1), 'none', 'add' or 'measured'"


@one_line
@dataclass(frozen=True, eq=False)
class Step:
    """One attention layer inside a graph of ``size`` nodes per level.

    Rows ``row … row+q`` (above) look at columns ``column … column+k`` (below) with ``weights`` [q, k] and at
    their own node with the residual ``share`` [q]; all other nodes are handed down as they are. Weights and share are
    mixed, (1 − share)·W + share·I with rows divided by their sums, or ``added``: W + share·I.
    """

    weights: npt.NDArray[Any]
    share: F64
    size: int
    row: int = 0
    column: int = 0
    added: bool = False

    def matrix(self) -> F64:
        """The step as a matrix ``[size, size]``; unless ``added``, rows sum to one (or zero, for a row of zeros)."""
        rows, columns = self._slices()
        mass, weights = self._parts()
        out = np.eye(self.size)
        out[rows, rows] = 0
        out[rows, columns] = mass[0][:, None] * weights
        own = np.arange(rows.start, rows.stop)
        out[own, own] += mass[1]
        return out

    def rows(self, start: int, stop: int, width: int | None = None) -> F64:
        """Rows ``start … stop`` of :meth:`matrix`, without the others: ``[stop - start, size]``.

        Only the first ``width`` columns, where the others are known to be zero.
        """
        rows, columns = self._slices()
        out = np.zeros((stop - start, self.size if width is None else width))
        columns = slice(columns.start, min(columns.stop, out.shape[1]))
        own = np.arange(start, stop)
        out[own - start, own] = 1.0
        low, high = max(start, rows.start), min(stop, rows.stop)
        if low < high:
            seen = slice(0, max(0, columns.stop - columns.start))
            mass, weights = self._parts(slice(low - self.row, high - self.row), seen)
            part, own = slice(low - start, high - start), np.arange(low, high)
            out[part] = 0
            np.multiply(weights, mass[0][:, None], out=out[part, columns])
            out[own - start, own] += mass[1]
        return out

    @cached_property
    def sums(self) -> F64:
        """``[q]``: the sum of each row of weights, the same whatever part of the row is read afterwards."""
        total: F64 = self.weights.sum(1, dtype=np.float64)
        return total

    @cached_property
    def factors(self) -> tuple[F64, F64]:
        """``[q]`` each: what the row's weights are multiplied by, and what the residual adds at its own node."""
        share = self.share
        if self.added:
            return np.ones_like(share), share
        total = (1 - share) * self.sums + share
        scale = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
        return (1 - share) * scale, share * scale

    def largest_sum(self) -> float:
        """An upper bound of all row and column sums, without the matrix."""
        rows, columns = self._slices()
        total = np.ones(self.size)
        total[rows] = 0
        most = 1.0
        # Single precision is quicker, and off by less than a thousandth.
        kind, slack = (np.float32, 1.001) if self.size > 2048 else (np.float64, 1.0)
        for start in range(0, self.weights.shape[0], 1024):
            weights = self.weights[start : start + 1024]
            share = self.share[start : start + 1024]
            sums = self.sums[start : start + 1024]
            scale = np.ones_like(share) if self.added else 1 / np.maximum((1 - share) * sums + share, 1e-30)
            factor = scale if self.added else (1 - share) * scale
            total[columns] += factor.astype(kind) @ weights.astype(kind, copy=False)
            total[rows.start + start : rows.start + start + len(share)] += share * scale
            most = max(most, float((factor * sums + share * scale).max()))
        return max(most, float(total.max()) * slack)

    def above(self, below: F64) -> F64:
        """``M @ below``: carries ``[size, m]`` from the lower level to the upper one."""
        rows, columns = self._slices()
        mass, weights = self._parts()
        out = below.copy()
        out[rows] = mass[0][:, None] * (weights @ below[columns]) + mass[1][:, None] * below[rows]
        return out

    def below(self, above: F64) -> F64:
        """``above @ M``: carries ``[..., size]`` from the upper level to the lower one, in q·k operations per row."""
        rows, columns = self._slices()
        mass, weights = self._parts()
        out = above.copy()
        out[..., rows] = above[..., rows] * mass[1]
        out[..., columns] += (above[..., rows] * mass[0]) @ weights
        return out

    def residual(self) -> F64:
        """``[q]``: what each row hands down to its own node by the residual connection alone."""
        return self._parts()[0][1]

    def _slices(self) -> tuple[slice, slice]:
        q, k = self.weights.shape
        return slice(self.row, self.row + q), slice(self.column, self.column + k)

    def _parts(self, some: slice = slice(None), seen: slice = slice(None)) -> tuple[tuple[F64, F64], F64]:
        """((attention's factor, residual's factor), weights) of some rows: float64, so that the row sums are one."""
        factor, own = self.factors
        return (factor[some], own[some]), self.weights[some, seen].astype(np.float64)


@one_line
@dataclass(frozen=True, eq=False)
class Network:
    """The graph of one run.

    Attributes:
        steps: from the inputs up; step *s* leads from level *s* + 1 (its rows) to level *s* (its columns).
        tops: for each layer the number of steps below its output.
        layers: the model's own numbers of these layers.
        rows: the nodes that are outputs: all, or the decoder's part.
        tokens: names of the input nodes.
        queries: names of the output nodes.
        labels: the name of each step: its layer, in an encoder-decoder model with the tower.
        causal: True if it is known that no node looks at a later one.
    """

    steps: tuple[Step, ...]
    tops: tuple[int, ...]
    layers: tuple[int, ...]
    rows: range
    tokens: Tokens
    queries: Tokens
    labels: tuple[str, ...] = ()
    causal: bool = False

    @property
    def size(self) -> int:
        """Number of nodes per level."""
        return self.steps[0].size

    def stack(self) -> F64:
        """All steps as matrices, ``[steps, size, size]``."""
        return np.stack([step.matrix() for step in self.steps])


def residual_of(attention: Attention, residual: Residual = None) -> Residual:
    """What is done about the residual connection: what was asked for, or what fits the edges.

    None: "inside" (nothing is added) where the edges hold the residual, "add" for gradient edges, else the paper's 0.5.
    An error where it was asked for and the edges hold it, or where it was not measured.

    >>> from attnflow import Attention
    >>> half = [[[0.5, 0.5], [0.5, 0.5]]]
    >>> [residual_of(Attention.of(half, edges=edges, residual_inside=edges == "alti"))
    ...  for edges in ("attention", "alti", "gradient")]
    [0.5, 'inside', 'add']
    """
    named = isinstance(residual, str)
    if attention.residual_inside:
        if residual is None or (named and residual in ("inside", "none")):
            return "inside"
        raise SelectionError(
            f"residual={residual!r} was given, but {attention.edges} edges hold the residual connection already, as "
            "the model weighs it. Leave residual out, or choose edges='attention'."
        )
    if residual is None:
        return "add" if attention.edges == "gradient" else 0.5
    if named and residual == "measured":
        if attention.edges != "attention":
            raise SelectionError(
                f"residual='measured' is the share of the residual that goes with attention weights, but these are "
                f"{attention.edges} edges. Use residual='add', or edges='attention'."
            )
        lacking = [name for name, b in attention.blocks.items() if b.mixing is None]
        if lacking:
            raise SelectionError(
                f"residual='measured' needs the mixing ratio of each position, and {', '.join(lacking)} has none. "
                "Measure it:  capture(model, tokenizer, text, mixing=True)"
            )
    elif named and residual not in ("none", "add"):
        raise SelectionError(f"residual={residual!r} is not known. Use {_NAMES}.")
    return residual


def network(attention: Attention, residual: Residual = None, start_layer: int = 0) -> Network:
    """The graph of ``attention``: its layers from ``start_layer`` up, adjusted for the residual connection.

    ``residual`` is a share in [0, 1), "none" (0), "add" (I + W, rows not divided), "measured" (1 − the mixing ratio of
    each position, :class:`Block`), or your own shares: one per layer ``[L]``, or one per layer and position ``[L, n]``.
    None does what fits the edges (:func:`residual_of`). Layers without attention hand every position down as it is.

    >>> from attnflow import Attention
    >>> weights = [[[0.2, 0.8], [1.0, 0.0]]]
    >>> network(Attention.of(weights)).stack()[0]
    array([[0.6, 0.4],
           [0.5, 0.5]])
    >>> network(Attention.of(weights), residual="add").stack()[0]
    array([[1.2, 0.8],
           [1. , 1. ]])
    >>> network(Attention.of(weights, edges="alti", residual_inside=True)).stack()[0]
    array([[0.2, 0.8],
           [1. , 0. ]])
    """
    some = next((b for b in attention.blocks.values() if b.rows is not None), None)
    if some is not None:
        raise SelectionError(
            f"This attention holds {len(some.queries)} rows of {len(some.keys)} positions, and paths lead through all "
            "of them. Capture without rows=, or look at these rows alone:  direct(attention)"
        )
    done = residual_of(attention, residual)
    # Only gradient edges have rows of any sum: all others sum to one, up to rounding.
    added = isinstance(done, str) and (done == "add" or (done == "none" and attention.edges == "gradient"))
    if set(attention.blocks) == {"encoder", "decoder", "cross"}:
        return _two_towers(attention, done, start_layer, added)
    return _one_tower(attention.only, done, start_layer, added)


def _one_tower(block: Block, residual: Residual, start_layer: int, added: bool) -> Network:
    chosen = _from(block, start_layer)
    size = max(max(block.weights[i].shape) for i in chosen)
    shares = _shares(residual, block)
    steps: list[Step] = []
    for i in chosen:
        w = block.weights[i]
        _check_chain(w, block, steps)
        _check_residual(w, block, shares[i], block.layers[i])
        steps.append(Step(w, shares[i], size, added=added))
    outputs = range(steps[-1].weights.shape[0])
    inputs = steps[0].weights.shape[1]
    return Network(
        tuple(steps),
        tuple(range(1, len(steps) + 1)),
        tuple(block.layers[i] for i in chosen),
        outputs,
        _fit(block.keys, inputs, size),
        _fit(block.queries, len(outputs), len(outputs)),
        tuple(f"layer {block.layers[i]}" for i in chosen),
        block.causal and not block.sink,
    )


def _two_towers(attention: Attention, residual: Residual, start_layer: int, added: bool) -> Network:
    encoder, decoder, cross = (attention[name] for name in ("encoder", "decoder", "cross"))
    if whole(start_layer, "start_layer"):
        raise SelectionError(
            f"start_layer={start_layer} is ambiguous in an encoder-decoder model. Take one block:  "
            "rollout(attention.block('decoder'), start_layer=…)"
        )
    if not isinstance(residual, str) and np.asarray(residual).ndim > 0:
        raise SelectionError(
            "Shares of your own need one block, and this is an encoder-decoder model. Pass one number for all "
            "layers, residual='measured', or take one block:  rollout(attention.block('decoder'), residual=…)"
        )
    first, n = len(encoder.keys), len(encoder.keys) + len(decoder.keys)
    _check_towers(encoder, decoder, cross)
    steps = [Step(w, s, n, added=added) for w, s in zip(encoder.weights, _shares(residual, encoder), strict=True)]
    below = dict(zip(cross.layers, _cross(cross, residual, added, first, n), strict=True))
    labels = [f"encoder layer {layer}" for layer in encoder.layers]
    tops = []
    for layer, w, s in zip(decoder.layers, decoder.weights, _shares(residual, decoder), strict=True):
        steps.append(Step(w, s, n, row=first, column=first, added=added))
        labels.append(f"decoder layer {layer}")
        if layer in below:
            steps.append(below[layer])
            labels.append(f"cross-attention of layer {layer}")
        tops.append(len(steps))
    tokens = join(encoder.keys, decoder.keys)
    names = tuple(labels)
    return Network(tuple(steps), tuple(tops), decoder.layers, range(first, n), tokens, decoder.queries, names)


def _check_towers(encoder: Block, decoder: Block, cross: Block) -> None:
    """Each matrix between the positions of its towers: else it would spill into the columns of others."""
    for name, block, rows, columns in (
        ("encoder", encoder, encoder, encoder),
        ("decoder", decoder, decoder, decoder),
        ("cross", cross, decoder, encoder),
    ):
        for layer, w in zip(block.layers, block.weights, strict=True):
            if w.shape[-2:] != (len(rows.queries), len(columns.keys)):
                raise ShapeError(
                    f"The {name} matrix of layer {layer} is {w.shape[-2]} × {w.shape[-1]}, but the decoder has "
                    f"{len(decoder.keys)} positions and the encoder {len(encoder.keys)}: it does not fit between them."
                )


def _cross(cross: Block, residual: Residual, added: bool, first: int, size: int) -> Iterator[Step]:
    """The cross steps: decoder positions (rows) look at encoder positions (columns) and at their own node."""
    shares = own_shares(cross) if residual == "inside" else _shares(residual, cross)
    for w, share in zip(cross.weights, shares, strict=True):
        yield Step(w, share, size, row=first, added=added)


def own_shares(cross: Block) -> list[F64]:
    """``[queries]`` for each layer: the decoder's own share in a cross block of edges that hold the residual.

    Value zeroing does not weigh the residual of cross-attention: then it is half, as in the paper, and
    :func:`attnflow.scoring.raw.said` says so.
    """
    if cross.mixing is None:
        return [np.full(w.shape[-2], 0.5) for w in cross.weights]
    return [1.0 - r.astype(np.float64) for r in cross.mixing]


def _from(block: Block, start_layer: int) -> list[int]:
    start_layer = whole(start_layer, "start_layer")
    if not 0 <= start_layer < block.depth:
        raise SelectionError(f"start_layer={start_layer}, but the model has layers 0 to {block.depth - 1}.")
    chosen = [i for i, layer in enumerate(block.layers) if layer >= start_layer]
    if not chosen:
        raise SelectionError(f"start_layer={start_layer}, but the highest layer with attention is {max(block.layers)}.")
    return chosen


def _check_chain(w: npt.NDArray[Any], block: Block, steps: Sequence[Step]) -> None:
    if steps:
        q = steps[-1].weights.shape[0] + block.sink
        if w.shape[1] != q:
            raise ShapeError(
                f"A layer attends to {w.shape[1]} positions, but the one below it has {q} outputs: these are "
                "not layers of one stack."
            )


def _check_residual(w: npt.NDArray[Any], block: Block, share: F64, layer: int) -> None:
    q, k = w.shape
    if q != k - block.sink and share.any():
        raise ShapeError(
            f"Layer {layer} has {q} outputs and {k} inputs, so no output continues an input and a residual "
            "connection has no place. Pass residual='none'."
        )


def _fit(tokens: Tokens, n: int, size: int) -> Tokens:
    """Names for ``size`` nodes of which the first ``n`` exist; numbers where the layer changed the length."""
    named = tokens if len(tokens) == n else Tokens.numbered(n)
    return named if size == n else Tokens([*named, *[""] * (size - n)], [*named.special, *[True] * (size - n)])


def _shares(residual: Residual, block: Block) -> list[F64]:
    """The residual share of every layer and output position of a block."""
    heights = [w.shape[-2] for w in block.weights]
    if isinstance(residual, str) and residual == "measured" and block.mixing is not None:
        return [1.0 - r.astype(np.float64) for r in block.mixing]
    if isinstance(residual, str):
        return [np.full(q, 1.0 if residual == "add" else 0.0) for q in heights]
    return [np.full(q, r) if r.ndim == 0 else r for q, r in zip(heights, _by_layer(residual, heights), strict=True)]


def check_shares(residual: Any) -> F64:
    """Residual shares as an array: each is in [0, 1)."""
    values = to_numpy(residual, "residual").astype(np.float64)
    if values.size and not (np.isfinite(values).all() and values.min() >= 0 and values.max() < 1):
        raise SelectionError(
            f"residual={residual!r}, but a residual share is in [0, 1): 0.5 is the paper's, 'none' leaves it out."
        )
    return values


def _by_layer(residual: Residual, heights: list[int]) -> Iterator[F64]:
    values = check_shares(residual)
    if values.ndim > 0 and len(values) != len(heights):
        raise ShapeError(f"residual has shares for {len(values)} layers, but there are {len(heights)}.")
    if values.ndim == 2 and any(len(v) != q for v, q in zip(values, heights, strict=True)):
        raise ShapeError(f"residual has {values.shape[1]} shares per layer, but a layer has {heights[0]} positions.")
    if values.ndim > 2:
        raise ShapeError(f"residual has {values.ndim} axes; use a number, [layers] or [layers, positions].")
    for i in range(len(heights)):
        yield values if values.ndim == 0 else values[i]
