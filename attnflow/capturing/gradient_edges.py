"""Gradient edges: what each weight gave to one number of the output, E_h[(A ⊙ ∂y/∂A)⁺].

Chefer et al. (2021, equation 5) multiply the weights of each head by the gradient of the target with respect to them,
leave out what is negative and take the mean of the heads. Where a module's output is its weights times its values,

    ∂y/∂A_h[i, j] = ⟨∂y/∂o_h[i], v_h[j]⟩,

so that only the gradients of the outputs o are asked for, n · width numbers per layer: the model runs with fused
attention, and the weights are computed again from queries and keys, a block of rows at a time. Where a module does more
than that, its weights are kept in the graph and autograd is asked for their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from attnflow.capturing import plain
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.session import Call, Record, Session
from attnflow.capturing.survey import Site
from attnflow.errors import CaptureError, SelectionError
from attnflow.inputs.encode import Inputs
from attnflow.inputs.naming import plain_tokenizer
from attnflow.inputs.target import Target, full_output, has_logits, settle


@dataclass(eq=False)
class Mixture:
    """One call whose output is its weights times its values: ``output`` and what the weights are computed from."""

    output: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float | None


def attend(
    session: Session, site: Site, call: Call, query: Any, key: Any, value: Any, mask: Any, scaling: float | None
) -> torch.Tensor:
    """``[batch, queries, heads, width]``: the output of one call by fused attention, inside the autograd graph."""
    share = query.shape[1] // key.shape[1]
    keys, values = (key, value) if share == 1 else (t.repeat_interleave(share, 1) for t in (key, value))
    out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    if session.wants(call):
        record = Record(
            call, site, query.new_empty(query.shape[0], 0), query.shape[-2], key.shape[-2], "interface", query.dtype
        )
        record.mixture = Mixture(out, query.detach(), key.detach(), value.detach(), mask, scaling)
        session.keep(record)
    return out.transpose(1, 2).contiguous()


def fill(session: Session, values: torch.Tensor) -> None:
    """Give every record its gradient edges, without touching any ``.grad``."""
    records = list(session.records)
    sources = [r.live if r.mixture is None else r.mixture.output for r in records]
    inside = [s for s in sources if s is not None and s.requires_grad]
    if len(inside) < len(records):
        raise CaptureError("The attention weights are not in the autograd graph: this model cuts it.")
    found = torch.autograd.grad(values.sum(), inside, allow_unused=True)
    if all(g is None for g in found):
        raise CaptureError(
            "The target does not depend on any attention weight that was seen, so that all gradient edges would be 0: "
            "the target is a constant, or the model returns weights that it does not compute with. "
            "Use edges='attention', or another target."
        )
    with torch.no_grad():
        for record, gradient in _joined(records, found):
            _fill(record, gradient, session.reduction, session.block)
    session.records[:] = [r for r in records if r.mixture is None and r.live is None]
    idle = sorted({r.call.name for r, g in zip(records, found, strict=True) if g is None})
    if idle:
        session.notes.append(f"The target does not depend on {', '.join(idle)}: its gradient edges are 0.")


def _joined(
    records: list[Record], gradients: Sequence[torch.Tensor | None]
) -> Iterator[tuple[Record, torch.Tensor | None]]:
    """Each record with its gradient; calls of one module with the same weights, for parts of the values, as one.

    The gradient of weights that are used several times is a sum of ⟨∂y/∂o, v⟩: the product of all, side by side.
    The records of the further calls are left as they are.
    """
    done: list[Record] = []
    for record, gradient in zip(records, gradients, strict=True):
        if any(record is other for other in done):
            continue
        pairs = [(r, g) for r, g in zip(records, gradients, strict=True) if r is record or _twins(record, r)]
        done += [r for r, _ in pairs]
        given = [(r.mixture, g) for r, g in pairs if r.mixture is not None and g is not None]
        if len(pairs) > 1 and given and record.mixture is not None:
            record.mixture.value = torch.cat([m.value for m, _ in given], -1)
            gradient = torch.cat([g for _, g in given], -1)
        yield record, gradient


def _twins(one: Record, other: Record) -> bool:
    """True for two calls of one module, entered once, that compute the same weights."""
    mine, theirs = one.mixture, other.mixture
    if mine is None or theirs is None or one.site is not other.site:
        return False
    if (one.call.run, one.call.entry) != (other.call.run, other.call.entry):
        return False
    pairs = ((mine.query, theirs.query), (mine.key, theirs.key), (mine.mask, theirs.mask))
    return mine.scaling == theirs.scaling and all(
        a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b)) for a, b in pairs
    )


def _fill(record: Record, gradient: torch.Tensor | None, reduction: Reduction, block: int | None) -> None:
    if record.mixture is not None:
        mixture = record.mixture
        known = torch.zeros_like(mixture.output) if gradient is None else gradient
        record.weights = _of_mixture(mixture, known, reduction, block)
    elif record.live is not None:
        weights = record.live.detach()
        wide = weights.dtype if weights.dtype == torch.float64 else torch.float32
        product = torch.zeros_like(weights, dtype=wide) if gradient is None else weights.to(wide) * gradient.to(wide)
        shaped = product.clamp_(min=0).reshape(-1, record.heads or product.shape[1], *product.shape[-2:])
        record.weights = reduction.whole(shaped)
    record.mixture = record.live = None


def _of_mixture(mixture: Mixture, gradient: torch.Tensor, reduction: Reduction, block: int | None) -> torch.Tensor:
    """(A ⊙ ∂y/∂A)⁺ in blocks of rows; grouped heads share their values."""
    query, value = mixture.query, mixture.value
    batch, heads, rows, _ = query.shape
    groups, keys = value.shape[1], value.shape[2]
    kept = reduction.buffer(batch, heads, rows, keys, query.device)
    across = value.reshape(batch * groups, keys, value.shape[-1]).transpose(1, 2)
    for start, stop, first, last, weights in plain.blocks(query, mixture.key, mixture.mask, mixture.scaling, block, {}):
        part = gradient[:, :, start:stop].reshape(batch * groups, -1, gradient.shape[-1])
        weights.mul_(torch.bmm(part, across[..., first:last]).view(weights.shape)).clamp_(min=0)
        reduction.put(kept, weights, start, first)
    return kept


def explained(
    model: Any, tokenizer: Any, given: Inputs, target: Any, position: int | str | None, said: list[dict[str, Any]]
) -> Callable[[Any], torch.Tensor]:
    """The function of the model's outputs whose gradient is taken: one number for each example, ``[batch]``.

    ``said`` gets what each number is, as :func:`attnflow.gradient` says it. ``position`` counts only where the output
    has one row for each position. Padding counts for nothing: each example is read as if it were alone.
    """
    targets = list(target) if isinstance(target, list) else [target] * len(given)
    if len(targets) != len(given):
        raise SelectionError(f"target= names {len(targets)} targets for {len(given)} examples.")
    names = given.tokens if given.decoder_tokens is None else given.decoder_tokens
    kept = given.positions if given.decoder_positions is None else given.decoder_positions
    length = given.length if given.decoder_tokens is None else int(given.batch["decoder_input_ids"].shape[1])

    def function(outputs: Any) -> torch.Tensor:
        if callable(target):
            goal = settle(model, tokenizer, outputs, names[0], target)
            said.extend([_words(goal.settings())] * len(given))
            return goal.values(outputs)
        full = full_output(outputs)
        field = "logits" if has_logits(outputs) else "last_hidden_state"
        found = []
        for row, (one, own, places) in enumerate(zip(targets, names, kept, strict=True)):
            part = full[row : row + 1]
            if part.ndim == 3 and part.shape[1] == length:
                part = part[:, list(places)]
            at = position if part.ndim == 3 else None
            goal = settle(model, plain_tokenizer(tokenizer), {field: part}, own, _target(one), at, "logit")
            said.append(_words(goal.settings()))
            found.append(goal.values({field: part})[0])
        return torch.stack(found)

    return function


def _words(settings: dict[str, Any]) -> dict[str, Any]:
    """The goal's position is that of the target: scores may be read at another one."""
    return {("target_position" if name == "position" else name): value for name, value in settings.items()}


def _target(target: Any) -> Target:
    if target is None or isinstance(target, int | str | tuple):
        return target
    raise SelectionError(
        f"target={target!r} is not known. Use None (what the model predicted), a class or token, a pair of them, "
        "a list with one for each text, or a function of the model's outputs."
    )


def refuse(gradients: bool, alone: bool) -> None:
    """Say what gradient edges cannot be combined with, before anything runs."""
    if gradients:
        raise SelectionError(
            "edges='gradient' and gradients= were given: the edges are made of the gradients, which are then gone. Use "
            "edges='gradient', target=…, or keep them:  capture(model, tokenizer, text, gradients=…)"
        )
    if alone:
        raise SelectionError(
            "edges='gradient' needs a text or inputs=, because the gradient is taken right after the run:  "
            "capture(model, tokenizer, text, edges='gradient')"
        )
