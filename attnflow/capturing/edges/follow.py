"""One operation after the other on what a call of attention gave: the step that it is, or words if it is none.

Two things are followed: weights until they are multiplied with values, which the tap needs because it sees a softmax
only, and then what attention gave until it is part of the residual stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.capturing.edges.steps import Linear, Norm, Product, Step, View
from attnflow.capturing.plain import Again, Held
from attnflow.capturing.session import Call
from attnflow.capturing.survey import Site

NODE = "_attnflow_node"

# Operations by the name of the torch function; methods, operators and functions of one name do the same.
SAME = {
    "contiguous", "clone", "to", "type", "float", "double", "half", "bfloat16", "dropout", "type_as", "detach",
    "alias", "feature_dropout", "dropout_", "nan_to_num",
}  # fmt: skip
IN_ORDER = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"}
MOVED = {
    "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "__getitem__", "roll", "t", "narrow",
    "select", "chunk", "split", "unbind", "flip", "index_select",
}  # fmt: skip
ADD = {"add", "add_", "__add__", "__radd__", "__iadd__"}
SUBTRACT = {"sub", "sub_", "__sub__", "subtract", "__isub__"}
MULTIPLY = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
DIVIDE = {"div", "div_", "__truediv__", "true_divide", "divide"}
PRODUCT = {"matmul", "bmm", "__matmul__"}


@dataclass(eq=False)
class Open:
    """A call of attention that is being followed.

    Attributes:
        call, site: where it happened.
        bit: marks everything that was made of it.
        query: number of the tensor from which the queries come.
        weights: ``[B, H, n, m]``, or what computes rows of them again.
        values: ``[B, H or a divisor, m, width]``.
        out: what attention gave, ``[B, n, H, width]``; None if the values were found where they are multiplied.
        mixes: True if ``out`` was computed as weights × values, and nothing else.
        held: the memory in which the weights are, if it is to be used again.
        kept: the weights in the form in which a capture keeps them.
        rows: the output positions that ``weights`` has rows of, where those are not all.
        positions: the number of all output positions.
        closed: True as soon as its chain is complete.
        lost: the first operation that could not be followed, in words.
        last: the tensor that joined it to the stream, for models that end there.
        forms: all that was followed.
    """

    call: Call
    site: Site
    bit: int
    query: int
    past: int = 0
    weights: torch.Tensor | Again | None = None
    values: torch.Tensor | None = None
    out: torch.Tensor | None = None
    mixes: bool = False
    held: Held | None = None
    kept: torch.Tensor | None = None
    rows: tuple[int, ...] | None = None
    positions: int = 0
    closed: bool = False
    lost: str = ""
    last: tuple[torch.Tensor, Form] | None = None
    forms: list[Form] = field(default_factory=list)

    def shut(self) -> None:
        """Let go of all tensors: what was made of this call stays numbered, and would hold them to the end."""
        self.closed, self.last = True, None
        self.weights = self.values = self.out = self.held = self.kept = None
        for form in self.forms:
            form.steps, form.view = (), View(())
        self.forms.clear()


@dataclass(eq=False)
class Form:
    """A tensor as what an attention call gave, after ``steps``; ``joined`` once it holds the residual stream."""

    open: Open
    steps: tuple[Step, ...]
    view: View
    joined: bool = False

    def __post_init__(self) -> None:
        self.open.forms.append(self)

    def then(self, *steps: Step, view: View | None = None, joined: bool | None = None) -> Form:
        """The same after further steps."""
        return Form(self.open, (*self.steps, *steps), view or self.view, self.joined if joined is None else joined)


@dataclass(eq=False, slots=True)
class Node:
    """A tensor's number, and what is known of it.

    Attributes:
        serial: the number; later tensors have larger ones.
        roots: the bits of all calls of attention that it was made of.
        form: set while it is what one call gave, after linear steps.
        alias: number of the tensor of which it is a multiple or another view; 0 if there is none.
        mean_of: number of the tensor of which it is the mean.
        weighs: set while it holds attention weights.
    """

    serial: int
    roots: int = 0
    form: Form | None = None
    alias: int = 0
    mean_of: int = 0
    weighs: tuple[Open, View] | None = None


@dataclass(eq=False, slots=True)
class Operation:
    """One call of a torch function; ``nodes`` are its tensors with what is known of them."""

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any = None
    nodes: list[tuple[Any, Node]] = field(default_factory=list)


# Weights on their way to the values.


def follow_weights(op: Operation, t: Any, other: Node, out: torch.Tensor, node: Node) -> None:
    """After an operation on weights: its result holds them in another layout, or is their product with the values."""
    assert other.weighs is not None
    opened, view = other.weighs
    if op.name in PRODUCT and len(op.args) == 2 and op.args[0] is t:
        _multiplied(opened, view, t, op.args[1], out, node)
    elif op.name == "einsum" and len(op.args) == 3 and op.args[1] is t:
        _summed(opened, op.args, out, node)
    elif op.name in IN_ORDER or op.name in MOVED:
        where = view.where
        if where is None and op.name in MOVED:
            where = torch.arange(math.prod(view.shape)).view(view.shape)
        if where is not None and op.name in IN_ORDER:
            after: Any = where.reshape(out.shape)
        else:
            after = None if where is None else op.func(where, *op.args[1:], **op.kwargs)
        if after is None or isinstance(after, torch.Tensor):
            node.weighs = (opened, View(tuple(out.shape), ordered(after)))
    elif out.shape == t.shape:
        node.weighs = (opened, view)


def _multiplied(opened: Open, view: View, w: Any, values: Any, out: torch.Tensor, node: Node) -> None:
    if view.where is not None or opened.values is not None or opened.weights is None:
        opened.lost = "weights in another order than batch, heads, queries, keys"
        return
    batch, heads, n, m = opened.weights.shape
    if values.shape[-2] != m or out.shape[-2] != n or math.prod(out.shape[:-2]) != batch * heads:
        opened.lost = f"values {tuple(values.shape)} for weights {tuple(w.shape)}"
        return
    width = out.shape[-1]
    opened.weights = w.detach().reshape(batch, heads, n, m)
    opened.values = values.expand(*out.shape[:-2], m, width).reshape(batch, heads, m, width)
    where = torch.arange(out.numel(), device=out.device).view(batch, n, heads, width).transpose(1, 2)
    node.form = Form(opened, (), View(tuple(out.shape), where.reshape(out.shape)))


def _summed(opened: Open, args: Any, out: torch.Tensor, node: Node) -> None:
    """``einsum("bnij,jbnd->ibnd", weights, values)`` in any order of the axes."""
    equation, w, values = args
    inputs, _, result = equation.replace(" ", "").partition("->")
    mine, _, theirs = inputs.partition(",")
    if opened.weights is None or w.shape != opened.weights.shape or opened.values is not None or "." in equation:
        opened.lost = f"einsum {equation}"
        return
    batch, heads, n, m = mine
    width = (set(theirs) - set(mine)).pop() if len(set(theirs) - set(mine)) == 1 else ""
    if set(theirs) != {batch, heads, m, width} or set(result) != {batch, heads, n, width}:
        opened.lost = f"einsum {equation}"
        return
    opened.weights = w.detach()
    opened.values = values.permute(*(theirs.index(x) for x in (batch, heads, m, width)))
    order = [batch, n, heads, width]
    sizes = [out.shape[result.index(x)] for x in order]
    where = torch.arange(out.numel()).view(sizes).permute(*(order.index(x) for x in result))
    node.form = Form(opened, (), View(tuple(out.shape), ordered(where)))


# What attention gave.


def fits(factor: torch.Tensor, t: torch.Tensor) -> bool:
    """True if a factor broadcasts against ``t``."""
    sizes = zip(reversed(factor.shape), reversed(t.shape), strict=False)
    return factor.ndim <= t.ndim and all(mine in (1, theirs) for mine, theirs in sizes)


def moved(op: Operation, form: Form, out: torch.Tensor, number: int | None) -> Form | str:
    """The chain after a change of layout: the same is done to the places."""
    where = form.view.where
    if where is None and op.name in IN_ORDER:
        return form.then(view=View(tuple(out.shape)))
    if where is None:
        where = torch.arange(math.prod(form.view.shape), device=out.device).view(form.view.shape)
    if op.name in IN_ORDER:
        moved = where.reshape(out.shape)
    else:
        moved = op.func(where, *op.args[1:], **op.kwargs)
        moved = moved if number is None else moved[number]
    if moved.numel() > math.prod(form.view.shape):
        return f"{words(op.name)} that repeats positions"
    width = form.view.width
    if moved.numel() < math.prod(form.view.shape):
        width = width or _width(form)
        if form.joined or not _whole(moved, width):
            return "" if form.joined else f"{words(op.name)} that leaves out channels"
        return form.then(view=View(tuple(out.shape), moved, width))
    return form.then(view=View(tuple(out.shape), moved if width else ordered(moved), width))


def _width(form: Form) -> int:
    assert form.open.weights is not None
    positions = form.open.weights.shape[2] if form.open.rows is None else form.open.positions
    return math.prod(form.view.shape) // (form.open.weights.shape[0] * positions)


def _whole(where: torch.Tensor, width: int) -> bool:
    """True if the places that are left are all channels of some positions: padding of windows was cut off."""
    count = torch.bincount(where.reshape(-1) // width)
    return bool(((count == 0) | (count == width)).all())


def ordered(where: torch.Tensor | None) -> torch.Tensor | None:
    """None for places that are in order."""
    if where is None:
        return None
    flat = where.reshape(-1)
    return None if flat.numel() == 0 or bool((flat == torch.arange(len(flat), device=flat.device)).all()) else where


def normed(op: Operation, t: Any, form: Form) -> Form | str:
    """The chain after a norm, or words."""
    names = ["input", "normalized_shape", "weight", "bias", "eps"]
    if op.name == "rms_norm":
        names.remove("bias")
    given: dict[str, Any] = {**dict(zip(names, op.args, strict=False)), **op.kwargs}
    if given["input"] is not t or len(tuple(given["normalized_shape"])) != 1:
        return "a norm over several axes"
    centred = op.name == "layer_norm"
    eps = given.get("eps")
    if eps is None:
        eps = 1e-5 if centred else torch.finfo(t.dtype).eps
    return form.then(Norm(t, given.get("weight"), given.get("bias"), float(eps), centred, form.view))


def projected(op: Operation, t: Any, form: Form, out: torch.Tensor) -> Form | None:
    """The chain after a product with a matrix of the model."""
    weight: Any = None
    bias: Any = None
    product = None
    if op.name == "linear":
        given = {**dict(zip(("input", "weight", "bias"), op.args, strict=False)), **op.kwargs}
        if given["input"] is t:
            weight, bias = given["weight"].T, given.get("bias")
            if op.func is torch.nn.functional.linear and type(given["weight"]) in (torch.Tensor, torch.nn.Parameter):
                product = Product.of(t, out)
    elif op.name == "addmm" and len(op.args) == 3 and op.args[1] is t:
        bias, _, weight = op.args
    elif op.name in PRODUCT and len(op.args) == 2 and op.args[0] is t and op.args[1].ndim == 2:
        weight = op.args[1]
    view = form.view
    if op.name == "einsum" and len(op.args) == 3 and op.args[1] is t:
        weight, view = _contracted(op.args[0], op.args[2], view)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return None
    after = _after(view, weight.shape[1], out)
    return form.then(Linear(weight, bias, product), view=after) if after is not None else None


def _contracted(equation: str, other: Any, view: View) -> tuple[torch.Tensor | None, View]:
    """``einsum("ibnd,hnd->ibh", x, other)`` as a product with a matrix: the last axes of x are summed over."""
    inputs, _, result = equation.replace(" ", "").partition("->")
    mine, _, theirs = inputs.partition(",")
    summed = [x for x in mine if x not in result]
    kept = [x for x in theirs if x not in summed]
    lead = mine[: len(mine) - len(summed)]
    if list(mine[len(lead) :]) != summed or "." in equation or result != lead + "".join(kept) or set(kept) & set(mine):
        return None, view
    matrix = other.permute(*(theirs.index(x) for x in (*summed, *kept)))
    matrix = matrix.reshape(math.prod(matrix.shape[: len(summed)]), -1)
    shape = (*view.shape[: len(lead)], matrix.shape[0])
    return matrix, View(shape, None if view.where is None else view.where.reshape(shape))


def _after(view: View, width: int, out: torch.Tensor) -> View | None:
    """The places after a projection of the last axis, if that axis held all channels of a position."""
    if view.where is None:
        return View(tuple(out.shape))
    channels = view.shape[-1]
    where = view.where.reshape(-1, channels)
    first = where[:, :1]
    if bool((first % channels != 0).any()) or bool((where - first != torch.arange(channels, device=out.device)).any()):
        return None
    places = first // channels * width + torch.arange(width, device=out.device)
    if view.width and view.width != channels:
        return None
    return View(
        tuple(out.shape),
        places.view(out.shape) if view.width else ordered(places.view(out.shape)),
        view.width and width,
    )


def words(name: str) -> str:
    """An operation, for a message."""
    return f"the operation {name.strip('_')!r}"
