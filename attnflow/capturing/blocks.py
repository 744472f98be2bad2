"""From records of calls to :class:`Attention`: towers, the model's own layer numbers, padding, sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attnflow.attention import RESIDUAL_INSIDE, Attention, Block, is_causal, with_sink
from attnflow.capturing.axes import Frame, axes, counts, merged, seen
from attnflow.capturing.session import Record
from attnflow.capturing.towers import Tower, towers
from attnflow.errors import CaptureError, WeightsError
from attnflow.row_sums import divided, slack_of, with_rest
from attnflow.tokens import Tokens


def assemble(
    records: Sequence[Record],
    frame: Frame,
    *,
    sinks: str,
    heads: Any,
    model: str,
    settings: Mapping[str, Any],
    notes: Sequence[str] = (),
    edges: str = "attention",
    generates: bool = False,
) -> list[Attention]:
    """One :class:`Attention` per example, from the records of one run, whose matrices hold ``edges``."""
    notes = list(notes)
    if all(r.weights.shape[0] == 1 for r in records):
        # Packed inputs have no axis of examples: patches of all images stand in one row.
        frame = replace(frame, batch=1)
    found = towers(records, notes)
    if not found:
        raise CaptureError("No attention was recorded in this run.")
    blocks: list[dict[str, Block]] = [{} for _ in range(frame.batch)]
    for tower in found:
        for name, example, block in _blocks(tower, frame, sinks, notes, edges):
            blocks[example][name] = block
    if not all(blocks):
        raise CaptureError(f"{len(found)} towers attended, but none for each of the {frame.batch} examples.")
    route = "+".join(sorted({r.source for r in records}))
    kept = heads if isinstance(heads, str | int) else tuple(heads)
    said = tuple(dict.fromkeys(notes))
    inside, certificate = edges in RESIDUAL_INSIDE, _certificate(found)
    known = (edges, inside, certificate, generates)
    return [Attention(b, kept, route, model, said, dict(settings), *known) for b in blocks]


def _certificate(found: Sequence[Tower]) -> dict[str, float] | None:
    """For each tower the largest error of its layers."""
    errors = {t.name: [r.error for r in t.records if r.error is not None] for t in found}
    return {name: max(of) for name, of in errors.items() if of} or None


def _blocks(tower: Tower, frame: Frame, sinks: str, notes: list[str], edges: str) -> Iterable[tuple[str, int, Block]]:
    first = tower.records[0]
    parts = first.weights.shape[0] // frame.batch
    if first.weights.shape[0] == 1 and frame.batch > 1:
        parts = 1
    elif first.weights.shape[0] != parts * frame.batch or parts == 0:
        notes.append(
            f"{tower.name}: a batch of {first.weights.shape[0]} does not divide among {frame.batch} examples; left out."
        )
        return
    for example in range(frame.batch):
        rows, columns = axes(tower, first, frame, example, parts)
        if parts == 1:
            rows, columns = seen(tower, frame, example, rows, columns, notes, residual=edges in RESIDUAL_INSIDE)
        if frame.rows is not None and counts(frame, first, parts):
            rows = rows.at(frame.rows)
        matrices, gradients, ratios = [], [], []
        for record in tower.records:
            if record.mixing is not None:
                ratios.append(_rows_of(record.mixing, example, parts, rows.kept, record))
            matrices.append(_cut(record.weights, example, parts, rows.kept, columns.kept, record))
            if record.gradient is not None:
                gradients.append(_cut(record.gradient, example, parts, rows.kept, columns.kept, record))
        if edges == "attention":
            weights, keys = _settle(matrices, columns.tokens, tower, sinks, notes)
        else:
            # A sink has no value, so it gives nothing.
            weights, keys = _finite(matrices, tower), columns.tokens
        block = Block(
            tuple(weights), tuple(tower.layers), rows.tokens, keys, False,
            tuple(r.call.name for r in tower.records), tower.depth,
            tuple(gradients) if len(gradients) == len(matrices) else None,
            tuple(ratios) if len(ratios) == len(matrices) else None, rows.some,
        )  # fmt: skip
        block = replace(block, causal=tower.kind == "self" and is_causal(block))
        if merged(tower, first, frame) or "Merged" in type(first.site.module).__name__:
            notes.append(
                f"{tower.name}: one softmax over the decoder's own positions (first {len(rows.tokens)} columns)"
                " and the encoder's (the rest); the rows sum to one over both."
            )
        missing = sorted(set(block.missing) - frame.skipped(tower))
        if missing and not tower.stage:
            notes.append(f"{tower.name}: layers {', '.join(map(str, missing))} have no attention.")
        yield tower.name, example, block


def _cut(
    weights: torch.Tensor, example: int, parts: int, rows: Any, columns: Any, record: Record
) -> np.ndarray[Any, Any]:
    """One example's matrix, without padding; windows, tiles and images of a pair side by side."""
    weights = weights.detach().cpu()
    extra = weights.shape[-1] - record.keys
    if parts > 1:
        own = range(example * parts, (example + 1) * parts)
        places = [(record.call.origin or range(own.stop))[i] - own.start for i in own]
        return _apart(weights[own.start : own.stop].numpy(), extra, places)
    one = weights[example if weights.shape[0] > 1 else 0].numpy()
    if rows is not None and record.rows is None and len(rows) != record.queries:
        one = one[..., list(rows), :]
    if columns is not None and len(columns) != record.keys:
        one = one[..., [*columns, *range(record.keys, record.keys + extra)]]
    return one


def _rows_of(ratios: torch.Tensor, example: int, parts: int, rows: Any, record: Record) -> np.ndarray[Any, Any]:
    """One example's number for each output position, without padding."""
    one = ratios.detach().cpu()
    if parts > 1:
        return one[example * parts : (example + 1) * parts].reshape(-1).numpy()
    row = one[example if len(one) > 1 else 0].numpy()
    return row[list(rows)] if rows is not None and record.rows is None and len(rows) != record.queries else row


def _apart(parts: np.ndarray[Any, Any], extra: int, places: Sequence[int]) -> np.ndarray[Any, Any]:
    """``[parts, ..., q, k]`` → ``[..., parts·q, parts·k]``: part *i* sees only part ``places[i]``."""
    count, queries, keys = parts.shape[0], parts.shape[-2], parts.shape[-1] - extra
    out = np.zeros((*parts.shape[1:-2], count * queries, count * keys + extra), parts.dtype)
    for i, place in enumerate(places):
        rows = slice(i * queries, (i + 1) * queries)
        out[..., rows, place * keys : (place + 1) * keys] = parts[i][..., :keys]
        if extra:
            out[..., rows, -extra:] = parts[i][..., keys:]
    return out


def _settle(
    matrices: list[np.ndarray[Any, Any]], keys: Tokens, tower: Tower, sinks: str, notes: list[str]
) -> tuple[list[np.ndarray[Any, Any]], Tokens]:
    """Check the numbers, and treat rows that sum to less than one as ``sinks`` says."""
    extreme = matrices[0].shape[-1] == len(keys) + 1
    sums = []
    for record, matrix in zip(tower.records, matrices, strict=True):
        total = matrix.sum(-1, dtype=np.float64 if matrix.dtype == np.float64 else np.float32)
        if np.isnan(total).any():
            raise WeightsError(
                f"{record.call.name} has NaN weights: the attention mask leaves a row with nothing to attend to, "
                f"or {record.precision} overflowed."
            )
        if matrix.min() < 0:
            raise WeightsError(f"{record.call.name} has a negative weight ({matrix.min():.3g}): no probabilities.")
        sums.append(total)
    if extreme:
        return _settle_extremes(matrices, keys, tower, sinks, notes)
    slack = _slack(tower)
    low, high = min(float(s.min()) for s in sums), max(float(s.max()) for s in sums)
    if high > 1 + slack:
        raise WeightsError(f"{tower.name}: rows sum to {low:.3f} … {high:.3f}, and attention rows sum to 1.")
    if low >= 1 - slack:
        return matrices, keys
    _say_sink(tower, sinks, low, high, notes)
    if sinks == "renormalise":
        return [_divide(m, s) for m, s in zip(matrices, sums, strict=True)], keys
    return [with_rest(m, s) for m, s in zip(matrices, sums, strict=True)], with_sink(keys)


def _finite(matrices: list[np.ndarray[Any, Any]], tower: Tower) -> list[np.ndarray[Any, Any]]:
    """Edges that are no attention weights are numbers, whatever their rows sum to."""
    for record, matrix in zip(tower.records, matrices, strict=True):
        if not np.isfinite(matrix).all():
            raise WeightsError(f"{record.call.name} has edges that are not finite: {record.precision} overflowed.")
    return matrices


def _settle_extremes(
    matrices: list[np.ndarray[Any, Any]], keys: Tokens, tower: Tower, sinks: str, notes: list[str]
) -> tuple[list[np.ndarray[Any, Any]], Tokens]:
    """Maxima and minima do not sum to one: their rows are divided by their sums, the sink's part included."""
    taken = max(float(m[..., -1].max()) for m in matrices)
    if taken > _slack(tower):
        _say_sink(tower, sinks, 1 - taken, 1.0, notes)
        if sinks == "keep":
            return [_divide(m, m.sum(-1)) for m in matrices], with_sink(keys)
    cut = [m[..., :-1] for m in matrices]
    return [_divide(m, m.sum(-1)) for m in cut], keys


def _say_sink(tower: Tower, sinks: str, low: float, high: float, notes: list[str]) -> None:
    if sinks == "error":
        raise WeightsError(
            f"{tower.name}: rows sum to {low:.3f} … {high:.3f}, because a learned sink takes the rest. Pass "
            "sinks='keep' to give it a column of its own, or sinks='renormalise' to divide by the sums."
        )
    done = "it has a column of its own" if sinks == "keep" else "rows were divided by their sums"
    notes.append(f"{tower.name}: a learned sink takes part of the attention (rows sum to {low:.2f} or more); {done}.")


def _divide(matrix: np.ndarray[Any, Any], sums: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(divided(matrix, sums), matrix.dtype)


def _slack(tower: Tower) -> float:
    return max(slack_of(r.weights.dtype, r.precision) for r in tower.records)
