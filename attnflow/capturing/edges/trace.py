"""Following what each call of attention gives, operation by operation, until it is part of the residual stream.

A ``TorchFunctionMode`` sees every operation of the run. Tensors get numbers and remember from which others they were
made, so that three questions have an answer without any knowledge of the model: which additions join attention to the
residual stream (the other addend is what the queries were made of), which parts of the layer stand beside attention
(the other addend is not), and where the stream goes on (the joined tensor, or its norm, is added to something that was
made of it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnflow.capturing.edges.steps import Add, Centre, Linear, Norm, Scale, Step, View
from attnflow.capturing.session import Call, Projection, Session
from attnflow.capturing.survey import Site

_NODE = "_attnflow_node"

# Operations by the name of the torch function; methods, operators and functions of one name do the same.
_SAME = {
    "contiguous", "clone", "to", "type", "float", "double", "half", "bfloat16", "dropout", "type_as", "detach",
    "alias", "feature_dropout", "dropout_", "nan_to_num",
}  # fmt: skip
_IN_ORDER = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as"}
_MOVED = {
    "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "__getitem__", "roll", "t", "narrow",
    "select", "chunk", "split", "unbind", "flip", "index_select",
}  # fmt: skip
_ADD = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_SUBTRACT = {"sub", "sub_", "__sub__", "subtract", "__isub__"}
_MULTIPLY = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
_DIVIDE = {"div", "div_", "__truediv__", "true_divide", "divide"}
_PRODUCT = {"matmul", "bmm", "__matmul__"}


@dataclass(eq=False)
class Open:
    """A call of attention that is being followed.

    Attributes:
        call, site: where it happened.
        bit: marks everything that was made of it.
        query: number of the tensor from which the queries come.
        weights: ``[B, H, n, m]``.
        values: ``[B, H or a divisor, m, width]``.
        out: what attention gave, ``[B, n, H, width]``; None if it is weights × values by construction.
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
    weights: torch.Tensor | None = None
    values: torch.Tensor | None = None
    out: torch.Tensor | None = None
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
class _Node:
    serial: int
    roots: int = 0
    form: Form | None = None
    alias: int = 0
    mean_of: int = 0
    weighs: tuple[Open, View] | None = None


@dataclass(eq=False)
class _Operation:
    name: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any = None
    nodes: list[tuple[Any, _Node]] = field(default_factory=list)


class Trace(TorchFunctionMode):
    """Follows every call that was begun; ``close`` is called with each complete chain and the tensor at its end."""

    def __init__(
        self,
        session: Session,
        close: Callable[[Open, tuple[Step, ...], torch.Tensor, View], None],
        constants: frozenset[int],
    ) -> None:
        super().__init__()
        self.session, self.close = session, close
        self.paused = False
        self.opened: list[Open] = []
        self._serial = 0
        self._parents: dict[int, tuple[int, ...]] = {}
        self._alias_of: dict[int, int] = {}
        self._constants = constants
        self._inputs: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or self.session.quiet:
            return func(*args, **kwargs)
        op = _Operation(getattr(func, "__name__", ""), func, args, kwargs)
        op.nodes = [(t, node) for t in _tensors(args, kwargs) if (node := self._known(t)) is not None]
        live = [(t, node) for t, node in op.nodes if node.form is not None and not node.form.open.closed]
        if live:
            op = self._before(op, live)
        op.out = func(*args, **kwargs)
        if isinstance(op.out, torch.Tensor):
            self._note(op, op.out)
        elif isinstance(op.out, tuple | list) and op.nodes:
            for number, part in enumerate(op.out):
                if isinstance(part, torch.Tensor):
                    self._note(op, part, number)
        return op.out

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for t in self._inputs:
            if hasattr(t, _NODE):
                delattr(t, _NODE)
        self._inputs.clear()
        for opened in self.opened:
            opened.shut()

    def _known(self, t: torch.Tensor) -> _Node | None:
        """The number of a tensor; one that comes from outside gets one, a buffer of the model has none."""
        node: _Node | None = getattr(t, _NODE, None)
        if node is None and id(t) not in self._constants and t.is_floating_point():
            node = self._node([])
            setattr(t, _NODE, node)
            self._inputs.append(t)
        return node

    # What capture tells.

    def begin(
        self, call: Call, site: Site, weights: torch.Tensor, values: torch.Tensor, out: torch.Tensor,
        query: torch.Tensor, kept: torch.Tensor | None = None, past: int = 0, rows: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """Follow ``out`` [B, n, H, width] = ``weights`` [B, H, n, m] × ``values``, of which there may be some rows."""
        opened = self._open(call, site, query, past)
        opened.weights, opened.values, opened.out, opened.kept = weights, values, out, kept
        batch, heads = weights.shape[:2]
        n = weights.shape[2] if rows is None else query.shape[-2]
        opened.rows, opened.positions = rows, n
        if values.ndim != 4 or out.numel() != batch * n * heads * values.shape[-1] or out.shape[:2] != (batch, n):
            opened.lost = f"attention that gives {tuple(out.shape)} of weights {tuple(weights.shape)}"
            return
        self._mark(out, [query, values], opened, Form(opened, (), View(tuple(out.shape))))

    def begin_projected(
        self, call: Call, site: Site, weights: torch.Tensor, given: Projection, kept: torch.Tensor | None = None
    ) -> None:
        """Follow the output of ``multi_head_attention_forward``: weights × values after its projection."""
        opened = self._open(call, site, given.query, 0)
        opened.weights, opened.values, opened.kept = weights, given.values, kept
        view = View(tuple(given.out.shape), _ordered(given.where))
        self._mark(given.out, [given.query], opened, Form(opened, (Linear(given.matrix, given.bias),), view))

    def begin_weights(
        self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor, kept: torch.Tensor | None = None
    ) -> None:
        """Follow ``weights`` of any layout of ``four`` [B, H, n, m] to the values with which they are multiplied."""
        opened = self._open(call, site, weights, 0)
        opened.weights, opened.kept = four, kept
        self._mark(weights, [weights], opened, None)
        getattr(weights, _NODE).weighs = (opened, View(tuple(weights.shape)))

    def finish(self) -> None:
        """The run is over: chains that are complete without a further addition are closed."""
        for opened in self.opened:
            if not opened.closed and opened.last is not None:
                self._close(*opened.last)

    def _open(self, call: Call, site: Site, query: torch.Tensor, past: int) -> Open:
        node = getattr(query, _NODE, None)
        opened = Open(call, site, 1 << len(self.opened), node.serial if node is not None else 0, past)
        self.opened.append(opened)
        return opened

    def _mark(self, out: torch.Tensor, made_of: list[torch.Tensor], opened: Open, form: Form | None) -> None:
        nodes = [n for t in made_of if (n := getattr(t, _NODE, None)) is not None]
        node = self._node([n.serial for n in nodes])
        for other in nodes:
            node.roots |= other.roots
        node.roots |= opened.bit
        node.form = form
        setattr(out, _NODE, node)

    # Numbers of tensors.

    def _node(self, parents: list[int]) -> _Node:
        self._serial += 1
        if parents:
            self._parents[self._serial] = tuple(parents)
        return _Node(self._serial)

    def _made_of(self, serial: int, ancestors: set[int]) -> bool:
        """True if one of ``ancestors`` is the tensor ``serial`` or one from which it was made."""
        least, todo, seen = min(ancestors), [serial], set()
        while todo:
            at = todo.pop()
            if at in ancestors:
                return True
            if at > least and at not in seen:
                seen.add(at)
                todo += self._parents.get(at, ())
        return False

    def _aliases(self, node: _Node) -> set[int]:
        """A tensor and those of which it is a multiple or another view."""
        found, at = {node.serial}, node.alias
        while at:
            found.add(at)
            at = self._alias_of.get(at, 0)
        return found

    def _note(self, op: _Operation, out: torch.Tensor, number: int | None = None) -> None:
        """Number the result, and go on with the chain of what it was made of."""
        if type(out) is not torch.Tensor:
            return
        given = next((t for t in op.args if t is out), None)
        if given is not None and getattr(given, _NODE, None) is None:
            return  # the very tensor that came in, perhaps the model's own: it stays as it is
        node = self._node([n.serial for _, n in op.nodes])
        for _, other in op.nodes:
            node.roots |= other.roots
        if op.nodes and (op.name in _SAME or op.name in _IN_ORDER or op.name in _MOVED or self._multiple(op)):
            node.alias = op.nodes[0][1].serial
            self._alias_of[node.serial] = node.alias
        if op.name == "mean" and op.nodes:
            node.mean_of = op.nodes[0][1].serial
        self._follow(op, out, node, number)
        setattr(out, _NODE, node)

    def _multiple(self, op: _Operation) -> bool:
        return op.name in _MULTIPLY | _DIVIDE and len(op.nodes) == 1

    # Chains.

    def _before(self, op: _Operation, live: list[tuple[Any, _Node]]) -> _Operation:
        """Before an addition: close the chains of streams that go on in it; save what is overwritten in place."""
        if op.name not in _ADD or len(op.args) != 2:
            return op
        for t, node in live:
            form = node.form
            assert form is not None
            other = op.args[1] if t is op.args[0] else op.args[0]
            theirs = getattr(other, _NODE, None)
            if theirs is None:
                continue
            made_of_it = bool(theirs.roots & form.open.bit)
            apart = theirs.form is None or theirs.form.open is not form.open
            if (form.joined and _full(other, t)) or (made_of_it and apart):
                self._close(t, form)
        if op.name in ("add_", "__iadd__"):
            saved = tuple(_copy(a) for a in op.args)
            return replace(op, args=saved, nodes=_nodes(saved))
        return op

    def _follow(self, op: _Operation, out: torch.Tensor, node: _Node, number: int | None) -> None:
        for t, other in op.nodes:
            if other.weighs is not None and not other.weighs[0].closed:
                self._follow_weights(op, t, other, out, node)
        live = [(t, n) for t, n in op.nodes if n.form is not None and not n.form.open.closed]
        if not live:
            return
        unjoined = [(t, n) for t, n in live if n.form is not None and not n.form.joined]
        if op.name in ("cat", "concat") and len(unjoined) > 1 and self._packed(op, unjoined, out, node):
            return
        if len({id(n.form.open) for _, n in unjoined if n.form is not None}) > 1:
            for _, n in unjoined:
                self._lose(n.form, "the sum of two calls of attention" if op.name in _ADD else op.name)
            return
        t, mine = unjoined[0] if unjoined else live[0]
        form = mine.form
        assert form is not None
        found = self._next(op, t, mine, form, out, number)
        if isinstance(found, Form):
            if found.view.where is None:
                found.view = View(tuple(out.shape))
            node.form = found
            if found.joined and not form.joined:
                found.open.last = (out, found)
        elif found and not form.joined:
            self._lose(form, found)

    def _packed(self, op: _Operation, found: list[tuple[Any, _Node]], out: torch.Tensor, node: _Node) -> bool:
        """Several calls of one module, for sequences that are packed into one row, count as one call."""
        forms = [n.form for _, n in found if n.form is not None]
        axis = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0)
        first = forms[0].open
        fits = all(
            f.open.site is first.site and not f.steps and f.view.where is None and t.shape[0] == 1 and t.ndim == 4
            for f, (t, _) in zip(forms, found, strict=True)
        )  # fmt: skip
        if axis != 1 or not fits or len(found) != len(op.args[0]) or len({id(f.open) for f in forms}) != len(forms):
            return False
        opens = [f.open for f in forms]
        first.weights = _diagonal([o.weights for o in opens])
        first.values = torch.cat([o.values for o in opens if o.values is not None], 2)
        first.out = out
        first.kept = None if first.kept is None else _diagonal([o.kept for o in opens])
        for other in opens[1:]:
            other.shut()
        node.roots |= first.bit
        node.form = Form(first, (), View(tuple(out.shape)))
        return True

    def _lose(self, form: Form | None, words: str) -> None:
        if form is not None and not form.open.lost:
            form.open.lost = words

    def _next(self, op: _Operation, t: Any, node: _Node, form: Form, out: Any, number: int | None) -> Form | str:
        """The chain after one operation; words if it cannot be followed; "" if nothing is lost by that."""
        name = op.name
        if name in _SAME or (name in ("cat", "concat") and len(op.args[0]) == 1):
            return form.then()
        if name in _IN_ORDER or name in _MOVED:
            return _moved(op, form, out, number)
        if name in _ADD:
            return self._added(op, t, form)
        if name in _SUBTRACT:
            return self._subtracted(op, t, node, form)
        if name in _MULTIPLY | _DIVIDE:
            return self._scaled(op, t, form)
        if name == "neg":
            return form.then(Scale(-1.0, form.view))
        if name in ("layer_norm", "rms_norm"):
            return _normed(op, t, form)
        if form.joined or out.ndim == 0 or out.shape[-1] == 1 or out.dtype == torch.bool:
            return ""  # a statistic, or the next part of the layer
        if out.ndim < t.ndim and out.numel() < t.numel():
            return ""
        return _projected(op, t, form, out) or _words(name)

    def _added(self, op: _Operation, t: Any, form: Form) -> Form | str:
        if len(op.args) != 2 or op.kwargs:
            return "an addition with a factor"
        other = op.args[1] if t is op.args[0] else op.args[0]
        if not isinstance(other, torch.Tensor):
            return form.then(Add("bias", torch.tensor(float(other)), t, form.view))
        theirs = getattr(other, _NODE, None)
        if theirs is None:
            return form.then(Add("bias", other, t, form.view)) if not _full(other, t) else "an addition of a parameter"
        if form.joined:
            return ""
        if not _full(other, t):
            return (
                "an addition of another shape"
                if other.numel() > t.numel()
                else form.then(Add("bias", other, t, form.view))
            )
        if theirs.roots & form.open.bit:
            return "an addition of what was made of attention"
        residual = bool(form.open.query) and self._made_of(form.open.query, self._aliases(theirs))
        return form.then(Add("residual" if residual else "beside", other, t, form.view), joined=residual)

    def _subtracted(self, op: _Operation, t: Any, node: _Node, form: Form) -> Form | str:
        if len(op.args) != 2 or op.args[0] is not t:
            return "a subtraction from something"
        theirs = getattr(op.args[1], _NODE, None)
        if theirs is not None and theirs.mean_of == node.serial:
            return form.then(Centre())
        return "a subtraction"

    def _scaled(self, op: _Operation, t: Any, form: Form) -> Form | str:
        if len(op.args) != 2 or (op.name in _DIVIDE and op.args[0] is not t) or op.kwargs:
            return "a division by attention"
        other = op.args[1] if t is op.args[0] else op.args[0]
        theirs = getattr(other, _NODE, None)
        if other is t:
            return ""  # a square, on the way to a statistic
        if theirs is not None and theirs.roots & form.open.bit and other.shape[-1] != 1:
            return "a product with what was made of attention"
        if isinstance(other, torch.Tensor) and not _fits(other, t):
            return "a product of another shape"
        return form.then(Scale(1 / other if op.name in _DIVIDE else other, form.view))

    def _close(self, t: torch.Tensor, form: Form) -> None:
        self.paused, form.open.closed = True, True
        try:
            self.close(form.open, form.steps, t, form.view)
        finally:
            self.paused = False
            form.open.shut()

    # Weights on their way to the values.

    def _follow_weights(self, op: _Operation, t: Any, other: _Node, out: torch.Tensor, node: _Node) -> None:
        assert other.weighs is not None
        opened, view = other.weighs
        if op.name in _PRODUCT and len(op.args) == 2 and op.args[0] is t:
            self._multiplied(opened, view, t, op.args[1], out, node)
        elif op.name == "einsum" and len(op.args) == 3 and op.args[1] is t:
            self._summed(opened, op.args, out, node)
        elif op.name in _IN_ORDER or op.name in _MOVED:
            where = view.where
            if where is None and op.name in _MOVED:
                where = torch.arange(math.prod(view.shape)).view(view.shape)
            if where is not None and op.name in _IN_ORDER:
                moved: Any = where.reshape(out.shape)
            else:
                moved = None if where is None else op.func(where, *op.args[1:], **op.kwargs)
            if moved is None or isinstance(moved, torch.Tensor):
                node.weighs = (opened, View(tuple(out.shape), _ordered(moved)))
        elif out.shape == t.shape:
            node.weighs = (opened, view)

    def _multiplied(self, opened: Open, view: View, w: Any, values: Any, out: torch.Tensor, node: _Node) -> None:
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

    def _summed(self, opened: Open, args: Any, out: torch.Tensor, node: _Node) -> None:
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
        node.form = Form(opened, (), View(tuple(out.shape), _ordered(where)))


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    for a in args:
        if type(a) is torch.Tensor:
            yield a
        elif type(a) in (list, tuple):
            yield from (b for b in a if type(b) is torch.Tensor)
    for a in kwargs.values():
        if type(a) is torch.Tensor:
            yield a


def _nodes(args: Any) -> list[tuple[Any, _Node]]:
    return [(a, node) for a in args if (node := getattr(a, _NODE, None)) is not None]


def _copy(a: Any) -> Any:
    """A tensor that is about to be overwritten, with its number."""
    if type(a) is not torch.Tensor:
        return a
    copy = a.clone()
    node = getattr(a, _NODE, None)
    if node is not None:
        setattr(copy, _NODE, node)
    return copy


def _full(other: torch.Tensor, t: torch.Tensor) -> bool:
    """True if ``other`` has a vector for each position, as a stream does."""
    if not isinstance(other, torch.Tensor) or other.ndim < 2:
        return False
    return other.numel() == t.numel() or (_fits(other, t) and other.shape[-2:] == t.shape[-2:])


def _diagonal(matrices: list[torch.Tensor | None]) -> torch.Tensor:
    """``[..., n, m]`` along the diagonal: sequences that do not see each other."""
    given = [m for m in matrices if m is not None]
    rows, columns = sum(m.shape[-2] for m in given), sum(m.shape[-1] for m in given)
    out = given[0].new_zeros(*given[0].shape[:-2], rows, columns)
    row = column = 0
    for m in given:
        out[..., row : row + m.shape[-2], column : column + m.shape[-1]] = m
        row, column = row + m.shape[-2], column + m.shape[-1]
    return out


def _fits(factor: torch.Tensor, t: torch.Tensor) -> bool:
    sizes = zip(reversed(factor.shape), reversed(t.shape), strict=False)
    return factor.ndim <= t.ndim and all(mine in (1, theirs) for mine, theirs in sizes)


def _moved(op: _Operation, form: Form, out: torch.Tensor, number: int | None) -> Form | str:
    """The chain after a change of layout: the same is done to the places."""
    where = form.view.where
    if where is None and op.name in _IN_ORDER:
        return form.then(view=View(tuple(out.shape)))
    if where is None:
        where = torch.arange(math.prod(form.view.shape), device=out.device).view(form.view.shape)
    if op.name in _IN_ORDER:
        moved = where.reshape(out.shape)
    else:
        moved = op.func(where, *op.args[1:], **op.kwargs)
        moved = moved if number is None else moved[number]
    if moved.numel() > math.prod(form.view.shape):
        return f"{_words(op.name)} that repeats positions"
    width = form.view.width
    if moved.numel() < math.prod(form.view.shape):
        width = width or _width(form)
        if form.joined or not _whole(moved, width):
            return "" if form.joined else f"{_words(op.name)} that leaves out channels"
        return form.then(view=View(tuple(out.shape), moved, width))
    return form.then(view=View(tuple(out.shape), moved if width else _ordered(moved), width))


def _width(form: Form) -> int:
    assert form.open.weights is not None
    positions = form.open.weights.shape[2] if form.open.rows is None else form.open.positions
    return math.prod(form.view.shape) // (form.open.weights.shape[0] * positions)


def _whole(where: torch.Tensor, width: int) -> bool:
    """True if the places that are left are all channels of some positions: padding of windows was cut off."""
    count = torch.bincount(where.reshape(-1) // width)
    return bool(((count == 0) | (count == width)).all())


def _ordered(where: torch.Tensor | None) -> torch.Tensor | None:
    """None for places that are in order."""
    if where is None:
        return None
    flat = where.reshape(-1)
    return None if flat.numel() == 0 or bool((flat == torch.arange(len(flat), device=flat.device)).all()) else where


def _normed(op: _Operation, t: Any, form: Form) -> Form | str:
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


def _projected(op: _Operation, t: Any, form: Form, out: torch.Tensor) -> Form | None:
    """The chain after a product with a matrix of the model."""
    weight: Any = None
    bias: Any = None
    if op.name == "linear":
        given = {**dict(zip(("input", "weight", "bias"), op.args, strict=False)), **op.kwargs}
        if given["input"] is t:
            weight, bias = given["weight"].T, given.get("bias")
    elif op.name == "addmm" and len(op.args) == 3 and op.args[1] is t:
        bias, _, weight = op.args
    elif op.name in _PRODUCT and len(op.args) == 2 and op.args[0] is t and op.args[1].ndim == 2:
        weight = op.args[1]
    view = form.view
    if op.name == "einsum" and len(op.args) == 3 and op.args[1] is t:
        weight, view = _contracted(op.args[0], op.args[2], view)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2:
        return None
    after = _after(view, weight.shape[1], out)
    return form.then(Linear(weight, bias), view=after) if after is not None else None


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
        places.view(out.shape) if view.width else _ordered(places.view(out.shape)),
        view.width and width,
    )


def _words(name: str) -> str:
    return f"the operation {name.strip('_')!r}"
