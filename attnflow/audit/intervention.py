"""Which weights of a model an experiment changes: layers, heads, rows and columns; and how they are put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.audit.instances import Instance, check_choice
from attnflow.capturing.bands import FAMILIES
from attnflow.capturing.capture import capture
from attnflow.capturing.notes import model_type
from attnflow.capturing.session import Call, Replace
from attnflow.errors import CaptureError, SelectionError, ShapeError
from attnflow.heads import head_numbers
from attnflow.inputs.embedding import run
from attnflow.numbers import wholes
from attnflow.select import pick_layer
from attnflow.tokens import Tokens

Layers = int | str | Sequence[int]
Heads = int | Sequence[int] | None
ROWS = ("position", "all")
# What a model may do when it is given the states of another layer.
_ERRORS = (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError, NotImplementedError)


@dataclass(frozen=True)
class Intervention:
    """The weights that are changed.

    Attributes:
        tower, kind: of the modules (see :class:`attnflow.capturing.session.Call`): in an encoder-decoder model the
            decoder's own self-attention.
        where: the layer of each call, by the name of its module and how often this had been entered before.
        layers: the numbers of those that are changed.
        heads: the heads that are changed, None for all.
        rows: "position": the row of the output position that is examined; "all": every row.
        fix_special: columns of special tokens stay as they are.
    """

    tower: str
    kind: str
    where: Mapping[tuple[str, int], int]
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    rows: str
    fix_special: bool

    def wants(self, call: Call) -> bool:
        """True for a call whose weights are changed."""
        return call.kind == self.kind and self.where.get((call.name, call.entry)) in self.layers

    def layer(self, call: Call) -> int:
        """The layer of a call that :meth:`wants` takes."""
        return self.where[call.name, call.entry]

    def rows_of(self, instances: Sequence[Instance], weights: Tensor) -> Tensor:
        """``[batch, rows]``: which rows of ``weights`` [batch, heads, queries, keys] are changed.

        An attention with one row (that of a pooling layer) has only this one to examine.
        """
        batch, _, queries, _ = weights.shape
        if batch % len(instances):
            raise ShapeError(
                f"The attention has {batch} matrices for {len(instances)} texts, and it is not known which "
                "of them belong to which text."
            )
        if self.rows == "all":
            return torch.arange(queries, device=weights.device).expand(batch, queries)
        wrong = next((i for i in instances if queries not in (1, len(i.example.queries))), None)
        if wrong is not None:
            raise ShapeError(
                f"The attention has {queries} rows and the text {len(wrong.example.queries)} output positions, so the "
                "row of a position is not known. Use rows='all'."
            )
        rows = [0 if queries == 1 else i.row for i in instances]
        index = torch.tensor(rows, device=weights.device)[:, None]
        return index.repeat_interleave(batch // len(instances), 0)

    def free(self, old: Tensor, instances: Sequence[Instance]) -> Tensor:
        """``[batch, 1, rows, keys]``: the columns that may change, of ``old`` [batch, heads, rows, keys].

        What a row cannot see (later tokens, tokens outside a window) has weight zero in every head.
        """
        seen = (old > 0).any(1, keepdim=True)
        if not self.fix_special:
            return seen
        marked = [keys_of(i, self.kind, old.shape[-1]).special for i in instances]
        special = torch.tensor(marked, device=old.device).repeat_interleave(len(old) // len(instances), 0)
        return seen & ~special[:, None, None]

    def in_heads(self, old: Tensor, new: Tensor) -> Tensor:
        """``new``, but ``old`` for the heads that are not changed."""
        if self.heads is None:
            return new
        mine = torch.zeros(old.shape[-3], dtype=torch.bool, device=old.device)
        mine[list(self.heads)] = True
        return torch.where(mine[:, None, None], new, old)

    def of_heads(self, values: Tensor) -> Tensor:
        """``[…, heads, rows, keys]`` with only the heads that are changed."""
        return values if self.heads is None else values[..., list(self.heads), :, :]

    def settings(self) -> dict[str, Any]:
        """What a result says about it."""
        return {
            "layers": list(self.layers),
            "heads": "all" if self.heads is None else list(self.heads),
            "rows": self.rows,
            "fix_special": self.fix_special,
            "attention": f"{self.kind}-attention of {self.tower or 'the model'}",
        }

    def describe(self) -> str:
        """The same in words, for a verdict."""
        layers = ", ".join(map(str, self.layers))
        where = f"layer {layers}" if len(self.layers) == 1 else f"layers {layers}"
        return f"{where} ({'the row of the output position' if self.rows == 'position' else 'all rows'})"


def take(weights: Tensor, rows: Tensor) -> Tensor:
    """``[batch, heads, queries, keys]``, ``[batch, rows]`` → ``[batch, heads, rows, keys]``; float32 at least.

    >>> take(torch.arange(4.0).reshape(1, 1, 2, 2), torch.tensor([[1]])).tolist()
    [[[[2.0, 3.0]]]]
    """
    found = weights.gather(2, _index(weights, rows))
    return found if found.dtype == torch.float64 else found.float()


def put(weights: Tensor, rows: Tensor, changed: Tensor) -> Tensor:
    """``weights`` with ``changed`` [batch, heads, rows, keys] in place of the rows that :func:`take` gave."""
    return weights.scatter(2, _index(weights, rows), changed.to(weights.dtype))


def _index(weights: Tensor, rows: Tensor) -> Tensor:
    batch, heads, _, keys = weights.shape
    return rows[:, None, :, None].expand(batch, heads, rows.shape[1], keys)


def keys_of(instance: Instance, kind: str, count: int) -> Tokens:
    """The names of the columns: the decoder's own tokens, or for cross-attention the encoder's."""
    example = instance.example
    tokens = example.queries
    if kind == "cross" and "decoder_input_ids" in example.inputs:
        tokens = example.tokens.take(range(len(example.tokens) - len(tokens)))
    if len(tokens) != count:
        raise ShapeError(f"The attention has {count} columns and the text {len(tokens)} tokens.")
    return tokens


@contextmanager
def replaced(model: nn.Module, replace: Replace) -> Iterator[list[Any]]:
    """The model with ``replace`` inside its attention; the list holds what was recorded, to be emptied by the user."""
    with capture(model, replace=replace, heads=0) as captured:
        yield captured.records


def forward(model: nn.Module, inputs: Mapping[str, Any], records: list[Any]) -> Any:
    """One run inside :func:`replaced`; nothing of it is kept."""
    try:
        return run(model, inputs)
    finally:
        records.clear()


def find_intervention(
    model: nn.Module, instance: Instance, layers: Layers, heads: Heads, rows: str, fix_special: bool
) -> Intervention:
    """Check the choices against a first run of the model.

    Args:
        layers: the model's own numbers (negative ones count from the top), one or several, or "all".
        heads: one or several, None for all.
    """
    check_choice("rows", rows, ROWS)
    calls: list[tuple[Call, int]] = []

    def note(call: Call, weights: Tensor) -> None:
        calls.append((call, weights.shape[1]))

    with replaced(model, note) as records, torch.no_grad():
        forward(model, instance.example.inputs, records)
    # A band has one column for each distance and not for each token, so that moving its weights means something else.
    if not calls or model_type(model) in FAMILIES:
        raise CaptureError(unseen(model))
    # The tower that ran last is the one whose output is read.
    tower = calls[-1][0].tower
    kind = "self" if any(c.kind == "self" and c.tower == tower for c, _ in calls) else "cross"
    mine, where = _numbered([(c, count) for c, count in calls if c.tower == tower and c.kind == kind])
    have = sorted(mine)
    picked = sorted({have[pick_layer(i, have)] for i in layer_numbers(layers) or have})
    for layer in picked:
        if heads is not None:
            head_numbers(heads, mine[layer])
    number = mine[picked[0]]
    numbers = None if heads is None else tuple(h % number for h in head_numbers(heads, number))
    return Intervention(tower, kind, where, tuple(picked), numbers, rows, fix_special)


def _numbered(calls: Sequence[tuple[Call, int]]) -> tuple[dict[int, int], dict[tuple[str, int], int]]:
    """(heads of each layer, layer of each call); a module that is every layer, as ALBERT's, has its calls counted."""
    once = len({c.layer for c, _ in calls}) == len({(c.name, c.entry) for c, _ in calls})
    where: dict[tuple[str, int], int] = {}
    heads: dict[int, int] = {}
    for call, count in calls:
        number = where.setdefault((call.name, call.entry), call.layer if once else len(where))
        heads[number] = count
    return heads, where


def unseen(model: nn.Module) -> str:
    """What an error says of a model whose weights cannot be changed."""
    return (
        f"The attention of {type(model).__name__} was not seen as a matrix of tokens while it ran, so that other "
        "weights cannot be put in its place; what a model only returns with output_attentions=True comes too late."
    )


def layer_numbers(layers: Layers) -> tuple[int, ...] | None:
    """The numbers of the layers that are meant; None for "all".

    >>> layer_numbers(-1), layer_numbers([0, 2]), layer_numbers("all")
    ((-1,), (0, 2), None)
    """
    if isinstance(layers, str):
        if layers != "all":
            raise SelectionError(f"layers={layers!r} is not known. Use a number, a list of numbers, or 'all'.")
        return None
    found = wholes(layers, "layers")
    if not found:
        raise SelectionError("layers is an empty list: use a number, a list of numbers, or 'all'.")
    return found


@dataclass
class LowerLayers:
    """The layers below the first changed one give the same for every candidate and every step: they are run once.

    A search of 500 steps at the last of 12 layers would otherwise spend eleven twelfths of its time on what it knows.

    Attributes:
        texts: how many texts there are in a batch.
        layers: the number of layers that are not run; 0 if all of them are.
        copies: how often each text stands in the batch, after one another.
        states: what the last of them gave.
    """

    texts: int
    layers: int = 0
    copies: int = 1
    states: Any = None

    def repeated(self, part: Any) -> Any:
        """The states of each text ``copies`` times after one another."""
        if isinstance(part, Tensor) and part.ndim and part.shape[0] == self.texts and self.copies > 1:
            return part.repeat_interleave(self.copies, 0)
        if isinstance(part, tuple):
            return tuple(self.repeated(p) for p in part)
        return part


@contextmanager
def lower_layers_once(
    model: nn.Module, intervention: Intervention, texts: int, outputs: Callable[[int], Tensor]
) -> Iterator[LowerLayers]:
    """Leave out the layers below the first changed one; the number of copies is to be set before each run.

    Whether a model may be run in this way is not assumed but tried, on the very texts, before it is done.

    Args:
        texts: how many texts there are in a batch.
        outputs: ``copies → [texts, copies, classes]``: runs the model as it is.
    """
    lower, skipped = LowerLayers(texts), _below(model, intervention)
    kept: list[Any] = []
    if skipped:
        with _hook(skipped[-1], kept):
            before = outputs(1)
    if len(kept) != 1:
        yield lower
        return
    lower.states = kept[0]
    with _answering(skipped, lower):
        if _same(lower, outputs, before):
            lower.layers = len(skipped)
            yield lower
            return
    yield LowerLayers(texts)


def _same(lower: LowerLayers, outputs: Callable[[int], Tensor], before: Tensor) -> bool:
    lower.copies = 2
    try:
        got = outputs(2)
    except _ERRORS:
        return False
    return torch.allclose(got, before.expand_as(got), rtol=1e-4, atol=1e-6)


def _below(model: nn.Module, intervention: Intervention) -> Sequence[nn.Module]:
    """The layers of the tower below the first that is changed."""
    if not intervention.tower:
        return []
    tower = model.get_submodule(intervention.tower)
    if not isinstance(tower, nn.ModuleList):
        return []
    changed = [name for (name, _), layer in intervention.where.items() if layer in intervention.layers]
    first = min(int(name.removeprefix(f"{intervention.tower}.").split(".")[0]) for name in changed)
    return list(tower)[:first]


@contextmanager
def _hook(layer: nn.Module, kept: list[Any]) -> Iterator[None]:
    handle = layer.register_forward_hook(lambda module, args, out: kept.append(out))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _answering(layers: Sequence[nn.Module], lower: LowerLayers) -> Iterator[None]:
    """Each of these layers gives the lower states in place of its own."""
    before = [layer.__dict__.get("forward") for layer in layers]
    try:
        for layer in layers:
            layer.__dict__["forward"] = lambda *args, **kwargs: lower.repeated(lower.states)
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = own
