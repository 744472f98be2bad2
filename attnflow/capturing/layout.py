"""One matrix per head from the softmaxes of one attention module whose layout is not known, or a refusal.

The axes are those of the product with the values (:mod:`attnflow.capturing.trail`). Queries and keys are checked
against the lengths of the module's inputs, heads × batch against the number of texts. Whatever does not fit, or fits in
two ways, is refused with the shapes that were seen.
"""

from __future__ import annotations

import torch

from attnflow.capturing.trail import Seen
from attnflow.errors import CaptureError


def settled(parts: list[Seen], batch: int, lengths: set[int], past: int) -> torch.Tensor:
    """``[batch, heads, queries, keys]`` of one entry of a module."""
    used = [s for s in parts if s.products]
    if not used:
        raise refusal(parts, "its product with the values was not seen")
    if any(s.mixed for s in used):
        raise refusal(parts, f"{len(used)} softmaxes are combined before they meet the values")
    fours = [_four(s, batch, lengths, past) for s in used]
    first = fours[0]
    if len(fours) == 1:
        # A pooling layer has one row, over all positions.
        pools = first.shape[2] == 1 and first.shape[3] in lengths
        if first.shape[2] not in lengths and not pools:
            raise refusal(
                parts, f"it has {first.shape[2]} queries, and the module was given {_said(lengths)} positions"
            )
        return first
    return _together(parts, used, fours, lengths)


def _together(parts: list[Seen], used: list[Seen], fours: list[torch.Tensor], lengths: set[int]) -> torch.Tensor:
    """One softmax per head, or one per chunk of queries, put together as the module puts their results together."""
    joins = [s.join for s in used]
    if any(j is None for j in joins) or len({j[0] for j in joins if j is not None}) != 1:
        raise refusal(parts, f"{len(used)} softmaxes are neither one per head nor one per chunk of queries")
    places = [j[2] for j in joins if j is not None]
    along = {j[1] for j in joins if j is not None}
    order = sorted(range(len(places)), key=lambda i: places[i])
    ordered = [fours[i] for i in order]
    shapes = {(f.shape[0], f.shape[1], f.shape[3]) for f in ordered}
    rows = [f.shape[2] for f in ordered]
    if len(set(places)) == len(places) and len(shapes) == 1:
        # Results that are put behind one another as texts are may be texts.
        heads = ordered[0].shape[1] == 1 and (0 not in along or ordered[0].shape[0] == 1)
        if heads and all(n in lengths for n in rows) and len(set(rows)) == 1:
            return torch.cat(ordered, 1)
        if sum(rows) in lengths and max(rows) < sum(rows):
            return torch.cat(ordered, 2)
    raise refusal(parts, f"chunks of {_said(set(rows))} queries do not make up {_said(lengths)} positions")


def _four(seen: Seen, batch: int, lengths: set[int], past: int) -> torch.Tensor:
    weights = _effective(seen)
    keys = weights.shape[seen.columns]
    rows = [a for a in (seen.rows, *seen.loose) if weights.shape[a] in lengths]
    row = rows[0] if rows else seen.rows
    if len(rows) > 1:
        raise refusal(
            [seen], f"{len(rows)} axes have {weights.shape[row]} entries, and any of them could be the queries"
        )
    if keys not in lengths and keys != weights.shape[row] + past:
        raise refusal([seen], f"it goes over {keys} keys, and the module was given {_said(lengths)} positions")
    rest = [a for a in range(weights.ndim) if a not in (row, seen.columns)]
    sizes = [int(weights.shape[a]) for a in rest]
    if len(rest) == 1 and sizes[0] not in (1, batch) and batch > 1:
        return _unfolded(seen, weights.permute(rest[0], row, seen.columns), batch)
    at = _batch_axis(seen, rest, sizes, batch)
    lead = [at] if at is not None else []
    heads = [a for a in rest if a != at]
    moved = weights.permute(*lead, *heads, row, seen.columns)
    return moved.reshape(batch, -1, weights.shape[row], keys)


def _batch_axis(seen: Seen, rest: list[int], sizes: list[int], batch: int) -> int | None:
    """The axis of the texts; None where there is one text and no axis for it."""
    fits = [a for a, size in zip(rest, sizes, strict=True) if size == batch]
    if batch == 1:
        return fits[0] if fits else None
    if len(fits) == 1:
        return fits[0]
    if fits and len(rest) == len(fits) == 1:
        return fits[0]
    why = "no axis is that of the" if not fits else f"{len(fits)} axes could be that of the"
    raise refusal([seen], f"{why} {batch} texts; run one text at a time, or another number of them")


def _unfolded(seen: Seen, folded: torch.Tensor, batch: int) -> torch.Tensor:
    size = folded.shape[0]
    if size % batch or not seen.order:
        raise refusal(
            [seen], f"whether {size} = batch · heads goes by texts or by heads is not seen; run one text at a time"
        )
    if seen.order == "b h":
        return folded.reshape(batch, size // batch, *folded.shape[1:])
    return folded.reshape(size // batch, batch, *folded.shape[1:]).transpose(0, 1)


def _effective(seen: Seen) -> torch.Tensor:
    """What was multiplied with the values, if it is the softmax itself, a part of it, or it made smaller."""
    used = seen.used
    assert used is not None
    same = used.untyped_storage().data_ptr() == seen.weights.untyped_storage().data_ptr()
    if seen.products > 1 and not (same and used.numel() == seen.weights.numel()):
        raise refusal([seen], f"it goes into {seen.products} products")
    values = used.detach()
    sums = values.sum(seen.columns)
    if bool((values < 0).any()) or float(sums.max()) > 1.01:
        raise refusal([seen], "it is changed before it meets the values, to what is no probabilities")
    whole = bool(sums.isfinite().all()) and bool((((sums - 1).abs() < 0.01) | (sums == 0)).all())
    if not whole and _permuted(values, seen.weights.detach()):
        raise refusal([seen], "the product with the values sums over another axis than the softmax")
    return values


def _permuted(values: torch.Tensor, weights: torch.Tensor) -> bool:
    """True if the same numbers stand in another order, or in the same."""
    if values.numel() != weights.numel():
        return False
    return torch.allclose(values.flatten().sort()[0].to(weights.dtype), weights.flatten().sort()[0], atol=1e-3)


def refusal(parts: list[Seen], why: str) -> CaptureError:
    """The error for a module whose attention cannot be recognised."""
    seen = parts[0]
    shapes = ", ".join(sorted({"×".join(map(str, s.weights.shape)) for s in parts}))
    return CaptureError(
        f"{seen.site.name} ({type(seen.site.module).__name__}) computes its own softmax, and its attention cannot be "
        f"told from it: {why}. Seen: {len(parts)} softmaxes of {shapes}, over axis {seen.axis}. "
        "If the model itself returns the right weights:  route='output_attentions'"
    )


def _said(lengths: set[int]) -> str:
    return " or ".join(map(str, sorted(lengths)))
