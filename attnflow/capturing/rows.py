"""Weights of some output positions only: the model's own kernel computes the output, as it was loaded.

For a long input the matrices of all positions are what does not fit. Where a model attends through transformers'
interface with sdpa, the kernel stays, no mask of n × n is made for it that it would not make by itself, and beside it
the model's own eager function is called with the queries of the wanted rows. Rows are queries, columns keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnflow.capturing import plain
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.session import Call, Computed, Lazy, Record, Session, watching
from attnflow.capturing.survey import Eager, Site, Survey, class_of, is_plain, own_eager
from attnflow.capturing.towers import beside_text
from attnflow.errors import InputError, SelectionError
from attnflow.numbers import wholes

KERNEL = "sdpa"
"""The one implementation of transformers' that computes the output by itself and leaves the rows to us."""


def kept_by(found: Survey, loaded: Sequence[str | None], session: Session) -> bool:
    """True if the model may keep its kernel: every module asks the interface, and nothing needs more than rows."""
    every = all(s.eager is not None and not s.taps for s in found.sites.values())
    plain_run = session.replace is None and not session.gradients and session.route in ("auto", "interface")
    return every and plain_run and session.rows is not None and not session.whole_rows and KERNEL in loaded


def beside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as always, with the rows taken beside it."""

    # The names are those of transformers' own functions: some models give the mask by name.
    @functools.wraps(function)
    def dispatch(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        session = watching(module)
        site = session.survey.sites.get(id(module)) if session is not None else None
        if session is None or site is None or session.quiet:
            return function(module, query, key, value, attention_mask, *args, **kwargs)
        with session.hushed():
            made = function(module, query, key, value, attention_mask, *args, **kwargs)
            eager = own_eager(class_of(module))
            assert eager is not None  # else the model does not keep its kernel
            take(session, site, eager, made[0], module, query, key, value, attention_mask, kwargs)
            return made

    return dispatch


def limited(session: Session, site: Site, query: Any) -> bool:
    """True for calls of which only some rows are wanted: those whose queries are the positions that ``rows`` count."""
    if session.rows is None or session.lazy is not None or session.whole_rows:
        return False
    if not isinstance(query, torch.Tensor) or query.ndim != 4:
        return False
    return query.shape[-2] == session.row_length and not beside_text(site.tower, session.two_towers)


def take(
    session: Session, site: Site, eager: Eager, out: Any, module: Any,
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, kwargs: dict[str, Any],
) -> None:  # fmt: skip
    """Record one call whose output ``out`` is there already; ``mask`` is the one that the kernel was given."""
    call = session.call(site)
    causal = mask is None and query.shape[-2] > 1 and masks_itself(module, kwargs)
    if session.lazy is not None:
        session.hear(site)
        # A plain function only mixes the values, so one number of each will do to have its weights.
        least = value[..., :1].clone() if is_plain(eager) else value
        session.lazy.append(Lazy(call, eager, module, query, key, least, mask, dict(kwargs), causal))
        return
    if not session.wants(call):
        session.hear(site)
        return
    some = limited(session, site, query)
    rows = session.rows if some and session.rows is not None else tuple(range(query.shape[-2]))
    weights = weights_of(eager, module, query, key, value, mask, kwargs, rows, causal)
    record(session, site, call, weights, value, out, query, rows if some else None)


def record(
    session: Session, site: Site, call: Call, weights: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    query: torch.Tensor, rows: tuple[int, ...] | None,
) -> None:  # fmt: skip
    """Hand the weights ``[batch, heads, rows, keys]`` of one call on."""
    if session.watch is not None:
        session.hear(site)
        session.watch.attended(call, site, Computed(weights, value, out, query, rows))
        return
    kept = session.reduction.whole(weights)
    session.keep(Record(call, site, kept, query.shape[-2], weights.shape[-1], "interface", query.dtype, rows=rows))


def weights_of(
    eager: Eager, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any,
    kwargs: dict[str, Any], rows: Sequence[int], causal: bool,
) -> torch.Tensor:  # fmt: skip
    """``[batch, heads, rows, keys]`` by the model's own function, or where that is plain softmax, by the same in place.

    ``mask`` is that of the kernel: booleans that say what is seen, or numbers to add; ``causal`` where there is none.
    """
    n, index = query.shape[-2], torch.as_tensor(list(rows), device=query.device)
    part = query[:, :, index] if len(rows) != n else query
    seen = _mask(mask, index, query, key, causal)
    options = {name: _rows(v, index, n) if name == "position_bias" else v for name, v in kwargs.items()}
    if plain.usable(eager, module, part, key, value, seen, (), options):
        every = Reduction("all", query.dtype)
        found = plain.attention(part, key, value[..., :1], seen, options.get("scaling"), every, None, {})[1]
    else:
        found = eager(module, part, key, value, seen, **options)[1]
    assert found is not None
    return found.detach()


def _mask(mask: Any, index: torch.Tensor, query: torch.Tensor, key: torch.Tensor, causal: bool) -> Any:
    """The mask of some rows as eager functions want it: numbers to add."""
    n, least = query.shape[-2], torch.finfo(query.dtype).min
    if causal:
        return causal_mask(index, key, query.dtype)
    part = _rows(mask, index, n)
    if isinstance(part, torch.Tensor) and part.dtype == torch.bool:
        return torch.zeros(part.shape, dtype=query.dtype, device=part.device).masked_fill_(~part, least)
    return part


def causal_mask(index: torch.Tensor, key: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``[1, 1, rows, keys]``: numbers to add, by which the queries of ``index`` see no later key.

    As sdpa does, it aligns queries and keys at the first position.
    """
    hidden = torch.arange(key.shape[-2], device=index.device)[None] > index[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=index.device)
    return mask.masked_fill_(hidden, torch.finfo(dtype).min)[None, None]


def _rows(tensor: Any, index: torch.Tensor, n: int) -> Any:
    if isinstance(tensor, torch.Tensor) and tensor.ndim >= 3 and tensor.shape[-2] == n and len(index) != n:
        return tensor[..., index, :]
    return tensor


def masks_itself(module: Any, kwargs: dict[str, Any]) -> bool:
    """True for a call in which sdpa hides later keys by itself, where it is given no mask."""
    given = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", True) if given is None else given)


def row_numbers(rows: int | Sequence[int], length: int) -> tuple[int, ...]:
    """The rows that were asked for, counted from 0; negative numbers count from the end.

    >>> row_numbers([0, -1], 5)
    (0, 4)
    """
    listed = wholes(rows, "rows")
    wrong = [r for r in listed if not -length <= r < length]
    if wrong or not listed:
        what = f"rows={rows!r}" if not wrong else f"row {wrong[0]} was asked for"
        raise SelectionError(
            f"{what}, but there are {length} output positions: use 0 to {length - 1}, or -1 and below."
        )
    found = tuple(r % length for r in listed)
    if len(set(found)) < len(found):
        raise SelectionError(f"rows={rows!r} name a position twice: give each once.")
    return found


def refuse(texts: int, alone: bool, differentiates: bool, replaces: bool) -> None:
    """What cannot be had together with ``rows``."""
    if alone:
        raise InputError(
            "rows= was given without a text, but rows are counted in one. Pass it:  "
            "capture(model, tokenizer, text, rows=[-1])"
        )
    if differentiates or replaces:
        what = "gradients=" if differentiates else "replace="
        raise SelectionError(f"rows= was given and so was {what}, which needs the weights of all rows. Leave one out.")
    if texts > 1:
        raise InputError(
            f"rows= was given for a batch of {texts} in one dict, but rows are counted in one text. Give a list of "
            "texts, or one row of the batch at a time."
        )
