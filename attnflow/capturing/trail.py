"""What becomes of a softmax in code that nobody has checked: the product with the values says which axis is which.

Modelling files that come with a model fold heads into the batch, take one softmax per head or per chunk of queries, or
change the weights after the softmax. From the softmax on, every function of torch that is given the weights is
followed, up to the product with the values and to what joins the products. What is used there are the weights; its axis
that the product sums over are the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from attnflow.capturing.survey import Site

_MATMULS = {
    torch.matmul, torch.bmm, torch.mm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm, torch.Tensor.mm,
}  # fmt: skip
_JOINS = {torch.cat, torch.concat, torch.concatenate, torch.stack, torch.hstack, torch.dstack}
_SPLITS = {torch.chunk, torch.split, torch.Tensor.chunk, torch.Tensor.split, torch.tensor_split}
_OWN = ("transformers.", "torch.", "attnflow.")


def foreign(site: Site) -> bool:
    """True for a module whose class is neither transformers', torch's nor this package's."""
    return not type(site.module).__module__.startswith(_OWN)


@dataclass(eq=False)
class Seen:
    """One softmax and what became of it.

    Attributes:
        site, call: where it was.
        weights: as they came out of the softmax.
        axis: the axis that they sum to one over.
        used: what was multiplied with the values; None until it was.
        rows, columns: axes of ``used``: of the product's rows, and the one that it sums over.
        shared: the other axes of ``used``; ``loose`` are those of them along which the values are the same.
        products: how many products it went into.
        mixed: True if it was combined with another softmax on the way.
        order: "b h" or "h b" where the product's result was unfolded so.
        width: of the product's result.
        join: which call put the results together, along which axis, and this one's place in it.
    """

    site: Site
    call: Any
    weights: torch.Tensor
    axis: int
    used: torch.Tensor | None = None
    rows: int = 0
    columns: int = 0
    shared: tuple[int, ...] = ()
    loose: tuple[int, ...] = ()
    products: int = 0
    mixed: bool = False
    order: str = ""
    width: int = 0
    join: tuple[int, int, Any] | None = None


@dataclass(eq=False)
class Trail:
    """The softmaxes of one attention module that are being followed."""

    batch: int = 0
    seen: list[Seen] = field(default_factory=list)
    _weights: dict[int, tuple[torch.Tensor, list[Seen]]] = field(default_factory=dict)
    _results: dict[int, tuple[torch.Tensor, list[Seen]]] = field(default_factory=dict)
    _calls: int = 0

    def begin(self, seen: Seen) -> None:
        """Follow a softmax."""
        self.seen.append(seen)
        self._weights[id(seen.weights)] = (seen.weights, [seen])

    def fused(self, seen: Seen, result: torch.Tensor) -> None:
        """A softmax inside ``scaled_dot_product_attention``, whose axes are known."""
        self.seen.append(seen)
        last = seen.weights.ndim - 1
        seen.used, seen.rows, seen.columns, seen.shared = seen.weights, last - 1, last, tuple(range(last - 1))
        seen.products, seen.width = 1, result.shape[-1]
        self._results[id(result)] = (result, [seen])

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """One function of torch, after it was run."""
        given = list(_tensors((args, kwargs.values())))
        parents = _merged(self._weights, given)
        if parents:
            if func in _MATMULS or func is torch.einsum:
                self._product(func, args, parents, out)
            else:
                for made in _tensors((out,)):
                    self._weights[id(made)] = (made, parents)
            return
        results = _merged(self._results, given)
        if results:
            self._result(func, args, kwargs, given, results, out)

    def _product(self, func: Any, args: Any, parents: list[Seen], out: Any) -> None:
        operands = list(_tensors(args))
        at = [i for i, t in enumerate(operands) if id(t) in self._weights]
        roles = None
        if len(operands) == 2 and len(at) == 1:
            used, other = operands[at[0]], operands[1 - at[0]]
            equation = args[0] if func is torch.einsum else None
            roles = _roles(used, other, at[0] == 0, equation)
        for seen in parents:
            seen.products += 1
            seen.mixed = seen.mixed or len(parents) > 1
            if roles is None:
                seen.mixed = True
            else:
                seen.used, (seen.rows, seen.columns, seen.shared, seen.loose) = used, roles
        if isinstance(out, torch.Tensor):
            self._results[id(out)] = (out, parents)
            for seen in parents:
                seen.width = out.shape[-1]

    @property
    def open(self) -> bool:
        """True while some softmax has not met the values."""
        return any(not s.products for s in self.seen)

    def _result(
        self, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor], results: list[Seen], out: Any
    ) -> None:  # fmt: skip
        if func in _JOINS or func is torch.Tensor.__setitem__:
            self._calls += 1
            placed = func is torch.Tensor.__setitem__
            number = id(args[0]) if placed else self._calls
            axis = 0 if placed and _first_is_number(args[1]) else 1 if placed else _join_axis(args, kwargs, given, func)
            for place, tensor in enumerate(given):
                for seen in self._results.get(id(tensor), (None, ()))[1]:
                    spot = _start(args[1]) if placed else place
                    seen.join = seen.join or (number, axis, spot)
            return
        for seen in results:
            seen.order = seen.order or _order(seen, self.batch, func in _SPLITS, out)
        for made in _tensors((out,)):
            self._results[id(made)] = (made, results)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple | type({}.values())):
            yield from _tensors(value)


def _merged(known: dict[int, tuple[torch.Tensor, list[Seen]]], given: list[torch.Tensor]) -> list[Seen]:
    found: dict[int, Seen] = {}
    for tensor in given:
        for seen in known.get(id(tensor), (None, ()))[1]:
            found[id(seen)] = seen
    return list(found.values())


Roles = tuple[int, int, tuple[int, ...], tuple[int, ...]]


def _roles(used: torch.Tensor, other: torch.Tensor, first: bool, equation: Any) -> Roles | None:
    """(rows, columns, shared axes, those along which the values are the same) of the weights in a product."""
    if equation is not None:
        return _einsum_roles(used, other, first, equation)
    if used.ndim < 2 or other.ndim < 2:
        return None
    rows, columns = (used.ndim - 2, used.ndim - 1) if first else (used.ndim - 1, used.ndim - 2)
    shared = tuple(range(used.ndim - 2))
    gap = used.ndim - other.ndim
    loose = tuple(a for a in shared if a - gap < 0 or (other.shape[a - gap] == 1 and used.shape[a] > 1))
    return rows, columns, shared, loose


def _einsum_roles(used: torch.Tensor, other: torch.Tensor, first: bool, equation: Any) -> Roles | None:
    if not isinstance(equation, str) or "->" not in equation or equation.count(",") != 1:
        return None
    left, result = equation.replace(" ", "").split("->")
    mine, theirs = left.split(",") if first else left.split(",")[::-1]
    dots = max(used.ndim - len(mine.replace("...", "")), other.ndim - len(theirs.replace("...", "")), 0)
    wide = "".join(chr(0x391 + i) for i in range(dots))  # letters that no equation has
    own = used.ndim - len(mine.replace("...", ""))
    mine = mine.replace("...", wide[dots - own :] if own else "")
    theirs, result = theirs.replace("...", wide), result.replace("...", wide)
    summed = [c for c in mine if c in theirs and c not in result]
    rows = [c for c in mine if c not in theirs and c in result]
    if len(summed) != 1 or len(set(mine)) != len(mine) or any(c not in result for c in mine if c != summed[0]):
        return None
    shared = tuple(i for i, c in enumerate(mine) if c in theirs and c in result)
    if len(rows) == 1:
        return mine.index(rows[0]), mine.index(summed[0]), shared, ()
    if not rows:
        return None
    # The values have no heads of their own: all these axes could be the queries.
    axes = [mine.index(c) for c in rows]
    return axes[-1], mine.index(summed[0]), (*shared, *axes[:-1]), tuple(axes[:-1])


def _first_is_number(index: Any) -> bool:
    return isinstance(index[0] if isinstance(index, tuple) and index else index, int)


def _join_axis(args: Any, kwargs: Any, given: list[torch.Tensor], func: Any) -> int:
    """The axis along which results are put together, counted from the front."""
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
    count = given[0].ndim + (func is torch.stack)
    return dim % count if isinstance(dim, int) else 0


def _start(index: Any) -> tuple[int, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(p.start or 0 if isinstance(p, slice) else p for p in parts if isinstance(p, slice | int))


def _order(seen: Seen, batch: int, split: bool, out: Any) -> str:
    """How one axis of batch and heads was unfolded behind the product."""
    if seen.used is None or len(seen.shared) != 1:
        return ""
    heads = seen.used.shape[seen.shared[0]] // max(batch, 1)
    if batch == heads:
        return ""
    if split and isinstance(out, list | tuple) and out:
        return "h b" if len(out) == heads and out[0].shape[0] == batch else "b h" if len(out) == batch else ""
    if not isinstance(out, torch.Tensor):
        return ""
    if out.ndim >= 4 and out.shape[-1] == seen.width and tuple(out.shape[:2]) in ((batch, heads), (heads, batch)):
        return "b h" if out.shape[0] == batch else "h b"
    # Time first: [queries, batch · heads, width] seen as [queries, batch, heads · width].
    flat = out.ndim == 3 and out.shape[1] == batch and out.shape[2] == heads * seen.width
    return "b h" if flat and heads > 1 else ""
