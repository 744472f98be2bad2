"""The record of what a model attended to: the only thing that the methods read.

Axes are Hugging Face's: in every matrix the rows are queries (the positions that look) and the columns
keys (the positions that are looked at), so ``weights[l][i, j]`` is how much position *i* attends to *j*.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.errors import SelectionError, ShapeError, WeightsError
from attnflow.heads import check_heads, reduce_heads
from attnflow.numbers import check_finite, heads_of, to_numpy, truth, whole, wholes, word
from attnflow.reprs import one_line
from attnflow.row_sums import check_sinks, divided, slack_of, with_rest
from attnflow.tokens import Tokens

Array = npt.NDArray[Any]

EDGES = ("attention", "norm", "alti", "value_zeroing", "gradient")
"""What a layer's matrix may hold. All but "gradient" have rows that sum to one."""

RESIDUAL_INSIDE = ("norm", "alti", "value_zeroing")
"""Those of them that hold the residual connection."""

_DEEPEST = 100_000
SINK = "⟨sink⟩"
"""Name of the column that holds what a learned sink took; it is not a position of the input."""

NEXT = "next token"
"""What the last output of a model that generates predicts: it does not stand in the text."""


@one_line
@dataclass(frozen=True, eq=False)
class Block:
    """The attention of one tower of a model: one matrix per layer.

    Attributes:
        weights: for each layer ``[queries, keys]``, or ``[heads, queries, keys]`` where all heads were kept.
        layers: the model's own number of each of these layers, from 0; a hybrid model has gaps.
        queries: names of the rows.
        keys: names of the columns. The same positions as ``queries`` except in cross-attention, in layers
            that change the length, and where a learned sink has a column of its own.
        causal: True if no position sees a later one.
        modules: the name of the attention module of each layer.
        depth: how many layers the tower has, with those that have no attention.
        gradients: where they were asked for, the gradient of the chosen output with respect to each weight.
        mixing: where it was asked for, for each layer ``[queries]``: the measured mixing ratio of each output position,
            r = ‖other positions‖ / (‖other positions‖ + ‖own position‖) (Kobayashi et al. 2021, section 4.2). The share
            of the residual is 1 − r. In a cross block of edges that hold the residual it is the share of the encoder's
            positions, whose rows sum to one; the rest is the decoder's own position, which has no column.
        rows: where only some output positions were captured, their numbers; ``queries`` names them.
    """

    weights: tuple[Array, ...]
    layers: tuple[int, ...]
    queries: Tokens
    keys: Tokens
    causal: bool = False
    modules: tuple[str, ...] = ()
    depth: int = 0
    gradients: tuple[Array, ...] | None = None
    mixing: tuple[Array, ...] | None = None
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.layers):
            raise ShapeError(f"{len(self.weights)} matrices but {len(self.layers)} layer numbers.")
        if not self.weights:
            raise ShapeError("0 layers of attention: give at least one matrix.")
        if self.mixing is not None:
            _check_mixing(self.mixing, self.weights, self.layers)
        object.__setattr__(self, "depth", max(self.depth, max(self.layers) + 1))

    @property
    def missing(self) -> tuple[int, ...]:
        """The layers of this tower that have no attention (state-space, convolution, linear attention)."""
        return tuple(sorted(set(range(self.depth)) - set(self.layers)))

    @property
    def sink(self) -> bool:
        """True if the last column is what a learned sink took."""
        return bool(self.keys) and self.keys[-1] == SINK

    def reduced(self, heads: str | int | Sequence[int] = "mean", rows: bool = True) -> Block:
        """The same block with its heads brought down to one matrix per layer; ``rows`` as in :func:`reduce_heads`."""
        if all(w.ndim == 2 for w in self.weights):
            return self
        return replace(self, weights=tuple(reduce_heads(w, heads, rows) for w in self.weights), gradients=None)


@dataclass(frozen=True, eq=False)
class Attention:
    """What a model attended to in one run on one example.

    Attributes:
        blocks: by name. Encoders and decoders have one, ``"self"``; encoder-decoder models have
            ``"encoder"``, ``"decoder"`` and ``"cross"`` (rows: decoder positions, columns: encoder positions);
            multimodal models have one per tower, by its name.
        heads: how the heads were brought down to one matrix, or ``"all"``.
        route: how the weights were obtained: ``"interface"``, ``"tap"``, ``"output_attentions"`` or ``"given"``.
        model: name or class of the model.
        notes: what a reader should know: layers without attention, sinks, a change of dtype.
        settings: every choice that was made, also those made for the user.
        edges: what the matrices hold: "attention" (the weights), "norm", "alti", "value_zeroing" or "gradient".
        residual_inside: True if the residual connection is part of the matrices, so that no method adds it again.
        generates: True for a model whose outputs are read as the next token, so that position *i* predicts *i* + 1.
        certificate: where the layers were decomposed, by layer: how far the sum of its parts is from what the model
            computed, relative to its size.

    >>> import numpy as np
    >>> att = Attention.of(np.full((2, 3, 3), 1 / 3), tokens=["the", "key", "is"])
    >>> att
    Attention(2 layers × 3 tokens, heads=mean, route=given)
    >>> att.weights.shape, att.layers
    ((2, 3, 3), (0, 1))
    """

    blocks: Mapping[str, Block]
    heads: str | int | tuple[int, ...] = "mean"
    route: str = "given"
    model: str = ""
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    edges: str = "attention"
    residual_inside: bool = False
    certificate: Mapping[str, float] | None = None
    generates: bool = False

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ShapeError("An attention without blocks holds nothing: give at least one.")
        check_edges(self.edges)
        object.__setattr__(self, "residual_inside", truth(self.residual_inside, "residual_inside"))
        if self.edges == "attention" and self.residual_inside:
            raise SelectionError(
                "edges='attention' and residual_inside=True, but attention weights know nothing of the residual "
                "connection. Name the edges that hold it:  Attention.of(matrices, edges='alti', residual_inside=True)"
            )

    @classmethod
    def of(
        cls,
        weights: Any,
        tokens: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        heads: str | int | Sequence[int] = "mean",
        sinks: str = "error",
        edges: str = "attention",
        **record: Any,
    ) -> Attention:
        """From ready weights of one example: an array ``[L, n, n]`` or ``[L, H, n, n]``, or one array per layer.

        ``heads`` says how ``[L, H, n, n]`` is brought down ("all" keeps them). ``sinks`` says what to do where
        rows sum to less than one: "error", "keep" (a column for the rest) or "renormalise". ``edges`` says what the
        matrices hold; the rows of "gradient" edges may have any sum. Other parts of the record go by name.
        """
        check_edges(edges)
        heads = heads_of(heads)
        given = weights if isinstance(weights, list | tuple) else to_numpy(weights)
        if isinstance(given, np.ndarray) and given.ndim == 0:
            raise ShapeError("The attention is one number: give an array [layers, n, n], or one array per layer.")
        matrices = [check_weights(to_numpy(w), f"layer {i}", sinks, edges) for i, w in enumerate(given)]
        if heads != "all":
            matrices = [reduce_heads(w, heads, rows=edges != "gradient") for w in matrices]
        queries = _names(tokens, matrices[0].shape[-2] if matrices else 0)
        keys = queries
        if matrices and matrices[0].shape[-1] == len(queries) + 1 and sinks == "keep":
            keys = with_sink(queries)
        elif (most := max((w.shape[-1] for w in matrices), default=0)) > len(queries):
            keys = _names(None, most)  # inputs that are no outputs: they have no names here
        numbers = tuple(range(len(matrices))) if layers is None else wholes(layers, "layers")
        block = Block(tuple(matrices), numbers, queries, keys)
        block = replace(block, causal=is_causal(block))
        return cls({"self": block}, heads=heads, edges=edges, **record)

    def __getitem__(self, name: str) -> Block:
        if name not in self.blocks:
            raise SelectionError(f"No block {name!r}: this attention has {', '.join(map(repr, self.blocks))}.")
        return self.blocks[name]

    def predicts(self, rows: Tokens) -> tuple[str, ...] | None:
        """For each of all output positions, named ``rows``, the token that follows, which it predicts.

        What the last one predicts is called ``NEXT``. None for a model that does not generate.
        """
        return (*rows[1:], NEXT) if self.generates else None

    @property
    def only(self) -> Block:
        """The one block there is; with several, an error that names them."""
        if len(self.blocks) != 1:
            names = ", ".join(map(repr, self.blocks))
            raise SelectionError(
                f"One block was asked for, and this attention has {len(self.blocks)}: {names}. "
                f"Choose one:  attention.block({next(iter(self.blocks))!r})"
            )
        return next(iter(self.blocks.values()))

    @property
    def weights(self) -> Array:
        """All layers of the one block: ``[layers, queries, keys]`` or ``[layers, heads, queries, keys]``."""
        return np.stack(self.only.weights)

    @property
    def tokens(self) -> Tokens:
        """Names of the input positions (the keys) of the one block."""
        return self.only.keys

    @property
    def layers(self) -> tuple[int, ...]:
        """The model's own layer numbers of the one block."""
        return self.only.layers

    def block(self, name: str) -> Attention:
        """One block as an attention of its own, for instance to run rollout in the encoder alone."""
        # The outputs of an encoder, or of a tower of images, predict no next token.
        generates = self.generates and name.split(".")[0] not in ("encoder", "vision", "audio", "qformer")
        settings = {**self.settings, "block": name}
        return replace(self, blocks={"self": self[name]}, settings=settings, generates=generates)

    def __repr__(self) -> str:
        parts = []
        for name, b in self.blocks.items():
            size = f"{len(b.queries)} tokens" if b.queries == b.keys else f"{len(b.queries)}×{len(b.keys)} tokens"
            label = "" if name == "self" else f"{name}: "
            parts.append(f"{label}{len(b.layers)} layers × {size}")
        model = f", model={self.model}" if self.model else ""
        edges = "" if self.edges == "attention" else f", edges={self.edges}"
        return f"Attention({'; '.join(parts)}{edges}, heads={self.heads}, route={self.route}{model})"

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the record to one safetensors file; a file that is there is replaced only with ``overwrite=True``."""
        arrays: dict[str, Array] = {}
        blocks: dict[str, Any] = {}
        for name, b in self.blocks.items():
            arrays |= {f"{name}/weights/{i}": w for i, w in enumerate(b.weights)}
            arrays |= {f"{name}/gradients/{i}": w for i, w in enumerate(b.gradients or ())}
            arrays |= {f"{name}/mixing/{i}": r for i, r in enumerate(b.mixing or ())}
            blocks[name] = {
                "layers": b.layers, "queries": b.queries.to_dict(), "keys": b.keys.to_dict(), "causal": b.causal,
                "modules": b.modules, "depth": b.depth, "gradients": b.gradients is not None,
                "mixing": b.mixing is not None, "rows": b.rows,
            }  # fmt: skip
        header = {
            "blocks": blocks, "heads": self.heads, "route": self.route, "model": self.model,
            "notes": self.notes, "settings": dict(self.settings), "edges": self.edges,
            "residual_inside": self.residual_inside,
            "certificate": None if self.certificate is None else dict(self.certificate),
            "generates": self.generates,
        }  # fmt: skip
        files.save(path, "attention", arrays, header, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Attention:
        """Read what :meth:`save` wrote."""
        arrays, header = files.load(path, "attention")
        with files.reading(files.as_path(path)):
            heads, certificate = header["heads"], header.get("certificate")
            return cls(
                {str(name): _loaded_block(str(name), b, arrays) for name, b in header["blocks"].items()},
                check_heads(heads),
                str(header["route"]),
                str(header["model"]),
                tuple(map(str, header["notes"])),
                dict(header["settings"]),
                # Files written before there were other edges than attention have none of these.
                header.get("edges", "attention"),
                bool(header.get("residual_inside", False)),
                None if certificate is None else {str(k): float(v) for k, v in certificate.items()},
                bool(header.get("generates", False)),
            )


def _loaded_block(name: str, saved: Mapping[str, Any], arrays: Mapping[str, Array]) -> Block:
    """A block of a file, which may be a stranger's: everything in it is checked as if it had been given by hand."""
    layers, depth = wholes(saved["layers"], "layers"), whole(saved["depth"], "depth")
    if not all(0 <= layer < _DEEPEST for layer in (*layers, depth)):
        raise ShapeError(f"{name} has layers up to {max(*layers, depth)}, and no model has {_DEEPEST}.")

    def part(kind: str, ranks: tuple[int, ...]) -> tuple[Array, ...]:
        found = tuple(arrays[f"{name}/{kind}/{i}"] for i in range(len(layers)))
        for i, array in enumerate(found):
            check_finite(array, f"{name} layer {i}")
            if array.ndim not in ranks or 0 in array.shape or array.dtype.kind != "f":
                raise ShapeError(f"{name} layer {i} has {kind} of shape {array.shape} ({array.dtype}).")
        return found

    weights = part("weights", (2, 3))
    if len({w.ndim for w in weights}) > 1 or any(w.min() < 0 for w in weights):
        raise WeightsError(f"{name} has weights of different rank, or below 0.")
    return Block(
        weights,
        layers,
        Tokens.from_dict(saved["queries"]),
        Tokens.from_dict(saved["keys"]),
        bool(saved["causal"]),
        tuple(map(str, saved["modules"])),
        depth,
        part("gradients", (2, 3)) if saved["gradients"] else None,
        part("mixing", (1,)) if saved.get("mixing") else None,
        None if saved.get("rows") is None else wholes(saved["rows"], "rows"),
    )


def outputs_of(attention: Attention) -> Block:
    """The block whose rows are the outputs of the model: the decoder's, or the only one."""
    return attention["decoder"] if "decoder" in attention.blocks else attention.only


def check_edges(edges: str) -> str:
    """The name of a kind of edges, if it is one."""
    if word(edges, "edges") not in EDGES:
        raise SelectionError(f"edges={edges!r} is not known. Use {', '.join(map(repr, EDGES[:-1]))} or {EDGES[-1]!r}.")
    return edges


def check_weights(weights: Array, where: str, sinks: str = "error", edges: str = "attention") -> Array:
    """Weights that are fit to be used: rank, no NaN, nothing negative, rows that sum to one.

    Only the rows of gradient edges have no sum of their own: they are in units of the target.
    """
    if weights.ndim not in (2, 3):
        raise ShapeError(
            f"{where} has {weights.ndim} axes {weights.shape}; attention has 2 (queries, keys) or 3 "
            "(heads, queries, keys). A batch is given as Hugging Face's tuple of [batch, heads, n, n]."
        )
    if 0 in weights.shape:
        raise ShapeError(f"{where} is empty: shape {weights.shape}.")
    if not np.issubdtype(weights.dtype, np.floating):
        weights = weights.astype(np.float64)
    check_finite(weights, where)
    if weights.min() < 0 and edges != "attention":
        raise WeightsError(f"{where} has a negative weight ({weights.min():.3g}), and {edges} edges are at least 0.")
    if weights.min() < 0:
        raise WeightsError(
            f"{where} has a negative weight ({weights.min():.3g}), and attention weights are probabilities. "
            "These may be scores before the softmax."
        )
    return weights if edges == "gradient" else settle_rows(weights, where, sinks)


def _check_mixing(mixing: Sequence[Array], weights: Sequence[Array], layers: Sequence[int]) -> None:
    if len(mixing) != len(weights):
        raise ShapeError(f"{len(mixing)} rows of mixing ratios but {len(weights)} matrices: give one for each layer.")
    for r, w, layer in zip(mixing, weights, layers, strict=True):
        if r.shape != (w.shape[-2],):
            raise ShapeError(f"Layer {layer} has mixing ratios {r.shape}, but {w.shape[-2]} output positions.")
        if not (np.isfinite(r).all() and r.min() >= 0 and r.max() <= 1):
            raise WeightsError(f"Layer {layer} has mixing ratios {r.min():.3g} … {r.max():.3g}; they are in [0, 1].")


def settle_rows(weights: Array, where: str, sinks: str) -> Array:
    """Treat rows whose sum is not one as ``sinks`` says: "error", "keep" or "renormalise"."""
    with np.errstate(over="ignore"):
        sums = weights.sum(-1, dtype=np.float64)
    if not np.isfinite(sums).all():
        raise WeightsError(f"{where} has a row whose sum is larger than any number: these are no attention weights.")
    # What was given may have been summed up in half precision before: more slack than for captured weights.
    slack = 2e-2 if weights.dtype == np.float16 else slack_of(weights.dtype)
    if np.abs(sums - 1).max() <= slack:
        return weights
    if check_sinks(sinks) == "renormalise":
        return np.asarray(divided(weights, sums))
    if sinks == "keep" and sums.max() <= 1 + slack:
        return np.asarray(with_rest(weights, sums))
    raise WeightsError(
        f"{where} has rows that sum to {sums.min():.3f} … {sums.max():.3f}, and attention rows sum to 1. "
        "Pass sinks='renormalise' to divide by the sums, or (sums below 1 only) sinks='keep' to give the rest "
        "a column of its own."
    )


def with_sink(tokens: Tokens) -> Tokens:
    """The same tokens and, behind them, the column of a learned sink (special, in no word)."""
    return Tokens([*tokens, SINK], [*tokens.special, True], [*tokens.word_ids, None], tokens.words, tokens.marks)


def is_causal(block: Block) -> bool:
    """True if no layer looks ahead, and there is something ahead to look at."""
    n = len(block.queries)
    if n < 2 or any(w.shape[-2:] != block.weights[0].shape[-2:] for w in block.weights):
        return False
    if block.rows is not None:
        ahead = np.arange(len(block.keys) - block.sink)[None] > np.array(block.rows)[:, None]
        return not any(w[..., : ahead.shape[1]][..., ahead].any() for w in block.weights)
    return not any(np.triu(w[..., :n], 1).any() for w in block.weights)


def _names(tokens: Sequence[str] | None, n: int) -> Tokens:
    if tokens is None:
        return Tokens.numbered(n)
    named = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
    if len(named) != n:
        raise ShapeError(f"{len(named)} tokens but attention over {n} positions: give one name for each.")
    return named
