"""What is known of a tensor while a model runs: its number, and how it came from what a call of attention gave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.capturing.edges.steps import Step, View
from attnflow.capturing.plain import Again
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
        self.weights = self.values = self.out = self.kept = None
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


@dataclass(eq=False)
class Operation:
    """One call of a torch function; ``nodes`` are its tensors with what is known of them."""

    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any = None
    nodes: list[tuple[Any, Node]] = field(default_factory=list)
