"""What ``generate()`` returned: the rows of its runs, put together along each returned sequence.

Beam search runs more sequences than it returns, moves them about in the batch, and drops some. Which row of which run
computed a position is found by the ids: the row whose ids so far are the first ids of the sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnflow.capturing.session import Generation, Record, Run, Session
from attnflow.errors import CaptureError


@dataclass(frozen=True)
class _Piece:
    """Positions ``first`` to ``last`` of a returned sequence, computed by row ``row`` of run ``run``."""

    sequence: int
    run: int
    row: int
    first: int
    last: int


@dataclass
class _Plan:
    """How the rows of the runs make up the sequences; positions are those of the cache.

    ``before`` positions (embeddings that were given, learned prompts) stand in front of the first id; rows begin at
    ``start``, which is 0 unless the cache was filled before, and end for each sequence at ``ends``. ``past`` says how
    many positions stood before each run.
    """

    runs: list[int]
    before: int
    start: int
    past: dict[int, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    pieces: list[_Piece] = field(default_factory=list)
    growing: set[int] = field(default_factory=set)


def along(session: Session, generation: Generation, runs: Sequence[int]) -> tuple[list[Record], Run] | None:
    """(one record per layer, what each sequence was given); None if the runs do not make up what was returned."""
    plan = _plan(session, generation, list(runs))
    if plan is None:
        return None
    mask = _mask(session, generation, plan)
    records: dict[tuple[int, str, int, int], list[Record]] = defaultdict(list)
    for record in session.records:
        if record.call.run in plan.runs:
            key = (id(record.site.module), record.call.kind, record.call.entry, record.call.part)
            records[key].append(record)
    made = []
    for members in records.values():
        grows = id(members[0].site.module) in plan.growing
        made.append(_grown(members, plan, mask) if grows else _picked(members[0], session, generation, plan))
    return made, _given(session, generation, plan, mask)


def _plan(session: Session, generation: Generation, runs: list[int]) -> _Plan | None:
    """The pieces of every sequence, or None where ids and runs do not agree."""
    sequences = generation.sequences
    if sequences is None or any(session.given[r].history is None for r in runs):
        return None
    growing = _growing(session, runs)
    if not growing:
        return None
    first = session.given[runs[0]]
    own = [r for r in session.records if r.call.run in runs and id(r.site.module) in growing and r.call.kind == "self"]
    queries = {r.call.run: r.queries for r in own}
    if set(queries) != set(runs) or first.history is None:
        return None
    known = first.history.shape[1]
    past = {r: session.given[r].past for r in runs}
    plan = _Plan(runs, max(first.past + queries[runs[0]] - known, 0), first.past, past, growing=growing)
    for number, ids in enumerate(sequences):
        length = plan.before + _length(ids, known, generation.ends)
        at = plan.start
        for run in runs:
            piece = _piece(session, generation, plan, number, run, at, min(length, past[run] + queries[run]))
            if piece is not None:
                plan.pieces.append(piece)
                at = piece.last
        if at < plan.before + known:
            return None
        plan.ends.append(at)
    return plan


def _growing(session: Session, runs: list[int]) -> set[int]:
    """The modules whose rows go on from run to run; an encoder's or an image's are computed once."""
    seen: dict[int, set[int]] = defaultdict(set)
    for record in session.records:
        if record.call.run in runs:
            seen[id(record.site.module)].add(record.call.run)
    if len(runs) > 1:
        return {site for site, where in seen.items() if len(where) > 1}
    history = session.given[runs[0]].history
    rows, ids = (0, 0) if history is None else history.shape
    fits = {id(r.site.module) for r in session.records if r.call.run == runs[0] and r.weights.shape[0] == rows}
    sites = [r for r in session.records if r.call.run == runs[0] and id(r.site.module) in fits]
    return {id(r.site.module) for r in sites if r.queries == ids}


def _length(ids: torch.Tensor, known: int, ends: frozenset[int]) -> int:
    """How many ids stand before the end: what a batch goes on with behind it is padding."""
    for place in range(known, len(ids)):
        if int(ids[place]) in ends:
            return place
    return len(ids)


def _piece(
    session: Session, generation: Generation, plan: _Plan, number: int, run: int, at: int, last: int
) -> _Piece | None:
    """What a run adds to a sequence of which ``at`` positions are known."""
    given = session.given[run]
    if given.history is None or generation.sequences is None or last <= at or given.past > at:
        return None
    ids = generation.sequences[number]
    wide = min(given.history.shape[1], len(ids))
    same = (given.history[:, :wide] == ids[:wide]).long().cumprod(1).sum(1)
    example = _example(number, len(generation.sequences), generation.examples)
    mine = [b for b in range(len(same)) if _example(b, len(same), generation.examples) == example]
    best = max(mine, key=lambda b: int(same[b]))
    last = min(last, plan.before + int(same[best]))
    return _Piece(number, run, best, at, last) if last > at else None


def _example(row: int, rows: int, examples: int) -> int:
    return row * examples // rows


def _mask(session: Session, generation: Generation, plan: _Plan) -> torch.Tensor:
    """``[sequences, positions]``: 0 for padding before a prompt and behind a sequence that ended early."""
    mask = torch.zeros(len(plan.ends), max(plan.ends), dtype=torch.long)
    for number, end in enumerate(plan.ends):
        mask[number, :end] = 1
    given = session.given[plan.runs[0]].padding
    if given is not None:
        wide = min(given.shape[1], max(plan.ends) - plan.before)
        for number in range(len(plan.ends)):
            row = _row_of(number, len(plan.ends), given.shape[0], generation.examples)
            mask[number, plan.before : plan.before + wide] *= (given[row, :wide] != 0).long().cpu()
    return mask


def _row_of(number: int, sequences: int, rows: int, examples: int) -> int:
    """A row of a batch of examples, each repeated the same number of times, that is of a sequence's example."""
    return _example(number, sequences, examples) * rows // examples


def _grown(members: list[Record], plan: _Plan, mask: torch.Tensor) -> Record:
    """The rows of one layer along the sequences."""
    first = members[0]
    cross = first.call.kind == "cross"
    end = max(plan.ends)
    keys, rows = first.keys if cross else end, end - plan.start
    extra = first.weights.shape[-1] - first.keys
    weights = first.weights.new_zeros(len(plan.ends), *first.weights.shape[1:-2], rows, keys + extra)
    mixing = None if first.mixing is None else first.mixing.new_zeros(len(plan.ends), rows)
    by_run = {r.call.run: r for r in members}
    for piece in plan.pieces:
        record, past = by_run.get(piece.run), plan.past[piece.run]
        if record is None:
            continue
        here = slice(piece.first - plan.start, piece.last - plan.start)
        own = slice(piece.first - past, piece.last - past)
        part = record.weights[piece.row][..., own, :]
        known = record.keys if cross else past + record.queries
        wide = min(record.keys, known)
        begin = 0 if cross or record.keys >= known else known - record.keys
        stop = min(keys, begin + wide)
        weights[piece.sequence][..., here, begin:stop] = part[..., : stop - begin]
        if extra:
            weights[piece.sequence][..., here, keys:] = part[..., record.keys :]
        if mixing is not None and record.mixing is not None:
            mixing[piece.sequence, here] = record.mixing[piece.row, own]
        unfilled = part[..., stop - begin : record.keys]
        real = mask[piece.sequence, piece.first : piece.last].bool().to(part.device)
        if unfilled.numel() and bool((unfilled != 0).any(-1)[..., real].any()):
            raise CaptureError(f"{record.call.name} attends to places of its cache that were not filled yet.")
    call = replace(first.call, run=plan.runs[0])
    return replace(first, call=call, weights=weights, queries=rows, keys=keys, gradient=None, mixing=mixing)


def _picked(record: Record, session: Session, generation: Generation, plan: _Plan) -> Record:
    """What was computed once for each example, for each of its sequences."""
    batch, rows = record.weights.shape[0], 1
    history = session.given[plan.runs[0]].history
    if batch == 1:
        return record
    rows = len(history) if history is not None and batch % len(history) == 0 else generation.examples
    if batch % rows:
        raise CaptureError(
            f"{record.call.name} was run on a batch of {batch}, and generate() on {generation.examples} examples."
        )
    parts = batch // rows
    chosen = [_row_of(n, len(plan.ends), rows, generation.examples) for n in range(len(plan.ends))]
    at = torch.tensor([row * parts + i for row in chosen for i in range(parts)], device=record.weights.device)
    mixing = None if record.mixing is None else record.mixing[at]
    return replace(record, weights=record.weights[at], mixing=mixing, gradient=None)


def _given(session: Session, generation: Generation, plan: _Plan, mask: torch.Tensor) -> Run:
    """The ids of the sequences, and what else names positions, for each of them."""
    inputs: dict[str, Any] = {}
    count = len(plan.ends)
    for name, value in session.given[plan.runs[0]].inputs.items():
        rows = [_row_of(n, count, len(value), generation.examples) for n in range(count)] if value.ndim else []
        whole = rows and (len(value) == 1 or len(value) % generation.examples == 0)
        inputs[name] = value[[r if len(value) > 1 else 0 for r in rows]] if whole else value
    assert generation.sequences is not None
    ids = generation.sequences[:, : max(plan.ends) - plan.before]
    decodes = "decoder_input_ids" in inputs
    inputs["decoder_input_ids" if decodes else "input_ids"] = ids
    inputs["decoder_attention_mask" if decodes else "attention_mask"] = mask[:, plan.before :]
    return Run(inputs, plan.start)
