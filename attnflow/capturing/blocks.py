"""From records of calls to :class:`Attention`: towers, the model's own layer numbers, padding, sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attnflow.attention import RESIDUAL_INSIDE, Attention, Block, is_causal, with_sink
from attnflow.capturing.session import Record
from attnflow.capturing.survey import Survey
from attnflow.capturing.towers import Tower, beside_text, towers
from attnflow.errors import CaptureError, WeightsError
from attnflow.inputs.naming import image_tokens
from attnflow.reprs import one_line
from attnflow.rows import divided, slack_of, with_rest
from attnflow.tokens import Tokens, join


@one_line
@dataclass(frozen=True)
class Frame:
    """What is known about the positions of one run, whoever ran the model.

    ``tokens`` and ``positions`` are those of the main sequence, of padded length ``length``; the decoder's
    likewise. Lengths of 0 say that nothing is known. ``rows``, for one example: the only output positions wanted.
    """

    batch: int
    tokens: tuple[Tokens, ...] = ()
    positions: tuple[tuple[int, ...], ...] = ()
    length: int = 0
    decoder_tokens: tuple[Tokens, ...] = ()
    decoder_positions: tuple[tuple[int, ...], ...] = ()
    decoder_length: int = 0
    pixels: tuple[int, ...] = ()
    config: Any = None
    survey: Survey | None = None
    rows: tuple[int, ...] | None = None

    def skipped(self, tower: Tower) -> set[int]:
        """Layers of a tower that do attend, whether or not they were asked for."""
        paths = {r.call.tower for r in tower.records}
        sites = [s for s in self.survey.sites.values() if s.tower in paths] if self.survey is not None else []
        return {n for s in sites for n in (s.shared or (s.layer,))}


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
    return [Attention(b, kept, route, model, said, dict(settings), edges, inside, certificate) for b in blocks]


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
        rows, columns = _axes(tower, first, frame, example, parts)
        if frame.rows is not None and _counts(tower, frame, first, parts):
            rows = rows.only(frame.rows)
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
        if _merged(tower, first, frame) or "Merged" in type(first.site.module).__name__:
            notes.append(
                f"{tower.name}: one softmax over the decoder's own positions (first {len(rows.tokens)} columns)"
                " and the encoder's (the rest); the rows sum to one over both."
            )
        missing = sorted(set(block.missing) - frame.skipped(tower))
        if missing and not tower.stage:
            notes.append(f"{tower.name}: layers {', '.join(map(str, missing))} have no attention.")
        yield tower.name, example, block


@dataclass(frozen=True)
class _Axis:
    tokens: Tokens
    kept: tuple[int, ...] | None
    some: tuple[int, ...] | None = None

    def only(self, rows: tuple[int, ...]) -> _Axis:
        """These of its positions."""
        kept = rows if self.kept is None else tuple(self.kept[r] for r in rows)
        return _Axis(self.tokens.take(rows), kept, rows)


def _axes(tower: Tower, record: Record, frame: Frame, example: int, parts: int) -> tuple[_Axis, _Axis]:
    """Names of the rows and columns, and which of them are not padding."""
    own = getattr(record.site.module, "query_tokens", None)
    if isinstance(own, Tokens) and len(own) == record.queries:
        # The queries are the module's own (a learned vector that pools the sequence), not positions of the text.
        return _Axis(own, None), _axis(tower, frame, example, record.keys, parts, tower.decodes)
    rows = _axis(tower, frame, example, record.queries, parts, tower.decodes)
    if tower.kind == "cross":
        if parts == 1 and _merged(tower, record, frame):
            # One softmax over the decoder's own positions and, behind them, the encoder's.
            own, other = frame.decoder_positions[example], frame.positions[example]
            kept = (*own, *(frame.decoder_length + p for p in other))
            return rows, _Axis(join(frame.decoder_tokens[example], frame.tokens[example]), kept)
        return rows, _axis(tower, frame, example, record.keys, parts, False)
    if record.keys == record.queries:
        return rows, rows
    return rows, _axis(tower, frame, example, record.keys, parts, tower.decodes)


def _counts(tower: Tower, frame: Frame, record: Record, parts: int) -> bool:
    """Whether the rows of a tower are the output positions that ``frame.rows`` are of."""
    length = frame.decoder_length or frame.length or record.queries
    return parts == 1 and record.queries == length and not beside_text(record.call.tower, frame.decoder_length > 0)


def _merged(tower: Tower, record: Record, frame: Frame) -> bool:
    """True for a decoder that has its own positions and the encoder's in one softmax."""
    both = frame.decoder_length + frame.length
    return tower.kind == "cross" and tower.decodes and frame.decoder_length > 0 and record.keys == both


def _axis(tower: Tower, frame: Frame, example: int, length: int, parts: int, decodes: bool) -> _Axis:
    if parts > 1:
        inner = _names_of(tower, frame, length)
        return _Axis(Tokens(f"{i}: {t}" for i in range(parts) for t in inner), None)
    if decodes and frame.decoder_length == length:
        return _Axis(frame.decoder_tokens[example], frame.decoder_positions[example])
    if not decodes and frame.length == length and tower.reads_text:
        return _Axis(frame.tokens[example], frame.positions[example])
    return _Axis(_names_of(tower, frame, length), None)


def _names_of(tower: Tower, frame: Frame, length: int) -> Tokens:
    if frame.pixels and (not tower.text or not frame.length):
        return image_tokens(frame.config, frame.pixels, length)
    return Tokens.numbered(length)


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
