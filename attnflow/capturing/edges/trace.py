"""Following what each call of attention gives, operation by operation, until it is part of the residual stream.

A ``TorchFunctionMode`` sees every operation of the run. Tensors get numbers and remember from which others they were
made, so that three questions have an answer without any knowledge of the model: which additions join attention to the
residual stream (the other addend is what the queries were made of), which parts of the layer stand beside attention
(the other addend is not), and where the stream goes on (the joined tensor, or its norm, is added to something that was
made of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnflow.capturing.edges.follow import (
    ADD,
    DIVIDE,
    IN_ORDER,
    MOVED,
    MULTIPLY,
    NODE,
    SAME,
    SUBTRACT,
    Form,
    Node,
    Open,
    Operation,
    fits,
    follow_weights,
    moved,
    normed,
    ordered,
    projected,
    words,
)
from attnflow.capturing.edges.steps import Add, Centre, Linear, Scale, Step, View
from attnflow.capturing.plain import Again
from attnflow.capturing.session import Call, Computed, Projection, Session
from attnflow.capturing.survey import Site

Numbered = list[tuple[Any, Node]]
# Sets that every operation is looked up in, so made once.
ALIASES = frozenset(SAME) | frozenset(IN_ORDER) | frozenset(MOVED)
MULTIPLES = frozenset(MULTIPLY) | frozenset(DIVIDE)


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
        name = getattr(func, "__name__", "")
        got = func(*args, **kwargs) if name == "__get__" else None
        if name == "__get__" and not isinstance(got, torch.Tensor):
            return got  # shape, dtype, device: most of what a model asks for
        nodes, followed = self._nodes(args, kwargs)
        if followed:
            return self._operate(Operation(name, func, args, kwargs, got, nodes))
        # Most operations have to do with no call of attention that is open: for them no more is done than needs be.
        out = func(*args, **kwargs) if got is None else got
        if isinstance(out, torch.Tensor):
            self._number(name, args, nodes, out)
        elif isinstance(out, tuple | list) and nodes:
            for part in out:
                if isinstance(part, torch.Tensor):
                    self._number(name, args, nodes, part)
        return out

    def _operate(self, op: Operation) -> Any:
        """An operation on what a call of attention gave, or on its weights; ``op.out`` is its result, if it was run."""
        live = [(t, node) for t, node in op.nodes if node.form is not None and not node.form.open.closed]
        args = op.args
        if live:
            op = self._before(op, live)
        if op.out is None:
            op.out = op.func(*args, **op.kwargs)
        parts = op.out if isinstance(op.out, tuple | list) else (op.out,)
        for number, part in enumerate(parts):
            node = self._number(op.name, op.args, op.nodes, part) if isinstance(part, torch.Tensor) else None
            if node is not None:
                self._follow(op, part, node, None if parts is not op.out else number)
        return op.out

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for t in self._inputs:
            if hasattr(t, NODE):
                delattr(t, NODE)
        self._inputs.clear()
        for opened in self.opened:
            opened.shut()

    def _nodes(self, args: Any, kwargs: dict[str, Any]) -> tuple[Numbered, bool]:
        """The tensors of an operation with what is known of them, and whether one of them is followed.

        One that comes from outside gets a number, a buffer of the model has none.
        """
        nodes: Numbered = []
        followed = False
        nested = bool(kwargs)
        for a in args:
            nested = nested or type(a) is list or type(a) is tuple
        for t in _tensors(args, kwargs) if nested else args:
            if type(t) is not torch.Tensor:
                continue
            node: Node | None = getattr(t, NODE, None)
            if node is None:
                if id(t) in self._constants or not t.is_floating_point():
                    continue
                node = self._node(())
                setattr(t, NODE, node)
                self._inputs.append(t)
            nodes.append((t, node))
            followed = followed or node.form is not None or node.weighs is not None
        return nodes, followed

    # What capture tells.

    def begin(self, call: Call, site: Site, given: Computed, kept: torch.Tensor | None = None, past: int = 0) -> None:
        """Follow the output [B, n, H, width] of one call: weights [B, H, n, m] × values, where nothing else is done."""
        weights, values, out, query = given.weights, given.values, given.out, given.query
        opened = self._open(call, site, query, past)
        opened.weights, opened.values, opened.out, opened.kept = weights, values, out, kept
        opened.mixes, opened.rows, opened.held = given.mixes, given.rows, given.held
        batch, heads = weights.shape[:2]
        opened.positions = n = weights.shape[2] if given.rows is None else query.shape[-2]
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
        view = View(tuple(given.out.shape), ordered(given.where))
        self._mark(given.out, [given.query], opened, Form(opened, (Linear(given.matrix, given.bias),), view))

    def begin_weights(
        self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor, kept: torch.Tensor | None = None
    ) -> None:
        """Follow ``weights`` of any layout of ``four`` [B, H, n, m] to the values with which they are multiplied."""
        opened = self._open(call, site, weights, 0)
        opened.weights, opened.kept = four, kept
        self._mark(weights, [weights], opened, None)
        getattr(weights, NODE).weighs = (opened, View(tuple(weights.shape)))

    def finish(self) -> None:
        """The run is over: chains that are complete without a further addition are closed."""
        for opened in self.opened:
            if not opened.closed and opened.last is not None:
                self._close(*opened.last)

    def _open(self, call: Call, site: Site, query: torch.Tensor, past: int) -> Open:
        node = getattr(query, NODE, None)
        opened = Open(call, site, 1 << len(self.opened), node.serial if node is not None else 0, past)
        self.opened.append(opened)
        return opened

    def _mark(self, out: torch.Tensor, made_of: list[torch.Tensor], opened: Open, form: Form | None) -> None:
        nodes = [n for t in made_of if (n := getattr(t, NODE, None)) is not None]
        node = self._node(tuple(n.serial for n in nodes))
        for other in nodes:
            node.roots |= other.roots
        node.roots |= opened.bit
        node.form = form
        setattr(out, NODE, node)

    # Numbers of tensors.

    def _node(self, parents: tuple[int, ...]) -> Node:
        self._serial += 1
        if parents:
            self._parents[self._serial] = parents
        return Node(self._serial)

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

    def _aliases(self, node: Node) -> set[int]:
        """A tensor and those of which it is a multiple or another view."""
        found, at = {node.serial}, node.alias
        while at:
            found.add(at)
            at = self._alias_of.get(at, 0)
        return found

    def _number(self, name: str, args: Any, nodes: Numbered, out: torch.Tensor) -> Node | None:
        """Number a result; None for one that stays as it is: the very tensor that came in, perhaps the model's own."""
        if type(out) is not torch.Tensor:
            return None
        if getattr(out, NODE, None) is None:
            for t in args:
                if t is out:
                    return None
        if len(nodes) == 1:  # most have one parent: no loop for these
            other = nodes[0][1]
            node = self._node((other.serial,))
            node.roots = other.roots
        else:
            node = self._node(tuple([n.serial for _, n in nodes]))
            for _, other in nodes:
                node.roots |= other.roots
        if nodes:
            first = nodes[0][1].serial
            if name in ALIASES or (name in MULTIPLES and len(nodes) == 1):
                node.alias = self._alias_of[node.serial] = first
            if name == "mean":
                node.mean_of = first
        setattr(out, NODE, node)
        return node

    # Chains.

    def _before(self, op: Operation, live: list[tuple[Any, Node]]) -> Operation:
        """Before an addition: close the chains of streams that go on in it; save what is overwritten in place."""
        if op.name not in ADD or len(op.args) != 2:
            return op
        for t, node in live:
            form = node.form
            assert form is not None
            other = op.args[1] if t is op.args[0] else op.args[0]
            theirs = getattr(other, NODE, None)
            if theirs is None:
                continue
            made_of_it = bool(theirs.roots & form.open.bit)
            apart = theirs.form is None or theirs.form.open is not form.open
            if (form.joined and full(other, t)) or (made_of_it and apart):
                self._close(t, form)
        if op.name in ("add_", "__iadd__"):
            saved = tuple(_copy(a) for a in op.args)
            return replace(op, args=saved, nodes=_nodes(saved))
        return op

    def _follow(self, op: Operation, out: torch.Tensor, node: Node, number: int | None) -> None:
        for t, other in op.nodes:
            if other.weighs is not None and not other.weighs[0].closed:
                follow_weights(op, t, other, out, node)
        live = [(t, n) for t, n in op.nodes if n.form is not None and not n.form.open.closed]
        if not live:
            return
        unjoined = [(t, n) for t, n in live if n.form is not None and not n.form.joined]
        if op.name in ("cat", "concat") and len(unjoined) > 1 and self._packed(op, unjoined, out, node):
            return
        if len({id(n.form.open) for _, n in unjoined if n.form is not None}) > 1:
            for _, n in unjoined:
                self._lose(n.form, "the sum of two calls of attention" if op.name in ADD else op.name)
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

    def _packed(self, op: Operation, found: list[tuple[Any, Node]], out: torch.Tensor, node: Node) -> bool:
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

    def _next(self, op: Operation, t: Any, node: Node, form: Form, out: Any, number: int | None) -> Form | str:
        """The chain after one operation; words if it cannot be followed; "" if nothing is lost by that."""
        name = op.name
        if name in SAME or (name in ("cat", "concat") and len(op.args[0]) == 1):
            return form.then()
        if name in IN_ORDER or name in MOVED:
            return moved(op, form, out, number)
        if name in ADD:
            return self._added(op, t, form)
        if name in SUBTRACT:
            return self._subtracted(op, t, node, form)
        if name in MULTIPLY | DIVIDE:
            return self._scaled(op, t, form)
        if name == "neg":
            return form.then(Scale(-1.0, form.view))
        if name in ("layer_norm", "rms_norm"):
            return normed(op, t, form)
        if form.joined or out.ndim == 0 or out.shape[-1] == 1 or out.dtype == torch.bool:
            return ""  # a statistic, or the next part of the layer
        if out.ndim < t.ndim and out.numel() < t.numel():
            return ""
        return projected(op, t, form, out) or words(name)

    def _added(self, op: Operation, t: Any, form: Form) -> Form | str:
        if len(op.args) != 2 or op.kwargs:
            return "an addition with a factor"
        other = op.args[1] if t is op.args[0] else op.args[0]
        if not isinstance(other, torch.Tensor):
            return form.then(Add("bias", torch.tensor(float(other)), t, form.view))
        theirs = getattr(other, NODE, None)
        if theirs is None:
            return form.then(Add("bias", other, t, form.view)) if not full(other, t) else "an addition of a parameter"
        if form.joined:
            return ""
        if not full(other, t):
            return (
                "an addition of another shape"
                if other.numel() > t.numel()
                else form.then(Add("bias", other, t, form.view))
            )
        if theirs.roots & form.open.bit:
            return "an addition of what was made of attention"
        residual = bool(form.open.query) and self._made_of(form.open.query, self._aliases(theirs))
        return form.then(Add("residual" if residual else "beside", other, t, form.view), joined=residual)

    def _subtracted(self, op: Operation, t: Any, node: Node, form: Form) -> Form | str:
        if len(op.args) != 2 or op.args[0] is not t:
            return "a subtraction from something"
        theirs = getattr(op.args[1], NODE, None)
        if theirs is not None and theirs.mean_of == node.serial:
            return form.then(Centre())
        return "a subtraction"

    def _scaled(self, op: Operation, t: Any, form: Form) -> Form | str:
        if len(op.args) != 2 or (op.name in DIVIDE and op.args[0] is not t) or op.kwargs:
            return "a division by attention"
        other = op.args[1] if t is op.args[0] else op.args[0]
        theirs = getattr(other, NODE, None)
        if other is t:
            return ""  # a square, on the way to a statistic
        if theirs is not None and theirs.roots & form.open.bit and other.shape[-1] != 1:
            return "a product with what was made of attention"
        if isinstance(other, torch.Tensor) and not fits(other, t):
            return "a product of another shape"
        return form.then(Scale(1 / other if op.name in DIVIDE else other, form.view))

    def _close(self, t: torch.Tensor, form: Form) -> None:
        self.paused, form.open.closed = True, True
        try:
            self.close(form.open, form.steps, t, form.view)
        finally:
            self.paused = False
            form.open.shut()


def _tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    for a in args:
        if type(a) is torch.Tensor:
            yield a
        elif type(a) in (list, tuple):
            yield from (b for b in a if type(b) is torch.Tensor)
    for a in kwargs.values():
        if type(a) is torch.Tensor:
            yield a


def _nodes(args: Any) -> list[tuple[Any, Node]]:
    return [(a, node) for a in args if (node := getattr(a, NODE, None)) is not None]


def _copy(a: Any) -> Any:
    """A tensor that is about to be overwritten, with its number."""
    if type(a) is not torch.Tensor:
        return a
    copy = a.clone()
    node = getattr(a, NODE, None)
    if node is not None:
        setattr(copy, NODE, node)
    return copy


def full(other: torch.Tensor, t: torch.Tensor) -> bool:
    """True if ``other`` has a vector for each position, as a stream does."""
    if not isinstance(other, torch.Tensor) or other.ndim < 2:
        return False
    return other.numel() == t.numel() or (fits(other, t) and other.shape[-2:] == t.shape[-2:])


def _diagonal(matrices: list[torch.Tensor | Again | None]) -> torch.Tensor:
    """``[..., n, m]`` along the diagonal: sequences that do not see each other."""
    given = [m.rows(0, m.shape[2]) if isinstance(m, Again) else m for m in matrices if m is not None]
    rows, columns = sum(m.shape[-2] for m in given), sum(m.shape[-1] for m in given)
    out = given[0].new_zeros(*given[0].shape[:-2], rows, columns)
    row = column = 0
    for m in given:
        out[..., row : row + m.shape[-2], column : column + m.shape[-1]] = m
        row, column = row + m.shape[-2], column + m.shape[-1]
    return out
