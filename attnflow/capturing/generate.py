"""Runs that continue one another through a key-value cache, put together into one matrix per layer.

``generate()`` runs the model once on the prompt and then once per token: each further run has one row, which sees all
keys so far. Put under one another, the rows are the causal matrix of the whole sequence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from attnflow.capturing import sequences
from attnflow.capturing.session import Record, Run, Session
from attnflow.errors import CaptureError


def groups(session: Session) -> Iterator[tuple[list[int], list[Record], Run]]:
    """(runs that belong together, one record per layer, what the whole sequence was given), in the order of the runs.

    What ``generate()`` ran is put together along the sequences that it returned; other runs row under row.
    """
    for chain in chains(session):
        number = session.given[chain[0]].generation
        found = None if number is None else sequences.along(session, session.generations[number], chain)
        if found is not None:
            yield chain, *found
            continue
        for part in _continued(session, chain):
            yield part, *stitch(session, part)


def chains(session: Session) -> list[list[int]]:
    """Numbers of the runs that belong together, in order: of one ``generate()``, or continuing one cache."""
    found: list[list[int]] = []
    for number, run in [(n, session.given[n]) for n in sorted({r.call.run for r in session.records})]:
        before = session.given[found[-1][-1]].generation if found else None
        goes_on = run.past > 0 if run.generation is None else run.generation == before
        if found and goes_on:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _continued(session: Session, chain: Sequence[int]) -> list[list[int]]:
    """A chain, parted where a run has nothing in its cache."""
    found: list[list[int]] = []
    for number in chain:
        if found and session.given[number].past > 0:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def stitch(session: Session, chain: Sequence[int]) -> tuple[list[Record], Run]:
    """(one record per layer, what the whole sequence was given) of the runs of one chain."""
    records = [r for r in session.records if r.call.run in chain]
    if len(chain) == 1:
        return records, session.given[chain[0]]
    orders = _orders(session, chain)
    sites: dict[tuple[int, str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        key = (id(record.site.module), record.call.kind, record.call.entry, record.call.part)
        sites[key].append(record)
    offset = session.given[chain[0]].past
    made = [_joined(members, chain, orders, offset) for members in sites.values()]
    return made, _given(session, chain, orders)


def _orders(session: Session, chain: Sequence[int]) -> list[torch.Tensor | None]:
    """For each run but the first, where its rows were in the batch before: beam search moves them."""
    orders: list[torch.Tensor | None] = []
    total = session.given[chain[0]].past
    going_on = {id(r.site.module) for r in session.records if r.call.run == chain[1]}
    for before, after in pairwise(chain):
        total += max(
            r.queries
            for r in session.records
            if r.call.run == before and r.call.kind == "self" and id(r.site.module) in going_on
        )
        if session.given[after].past != total:
            raise CaptureError(
                f"Run {after} continues a cache of {session.given[after].past} positions, and the runs before it had "
                f"{total}: the cache was cut or filled elsewhere, so the rows cannot be put together."
            )
        orders.append(_order(session.given[before].left, session.given[after].found))
    return orders


def _order(old: torch.Tensor | None, new: torch.Tensor | None) -> torch.Tensor | None:
    """Row *b* of the new batch was row ``order[b]`` of the old one; None if none moved."""
    if old is None or new is None or (old.shape == new.shape and torch.equal(old, new)):
        return None
    same = (new[:, None] == old[None]).all(-1) if old.shape[1:] == new.shape[1:] else torch.zeros(1, 1)
    if not bool(same.any(1).all()):
        raise CaptureError(
            "The keys in the cache are not those of the run before: the cache was changed between two runs, so the "
            "rows of generated tokens cannot be put together."
        )
    # Among rows that are alike, staying in place is right.
    stay = torch.arange(new.shape[0], device=new.device)
    inside = stay < old.shape[0]
    kept = torch.zeros_like(inside)
    kept[inside] = same[stay[inside], stay[inside]]
    return torch.where(kept, stay, same.int().argmax(1))


def _joined(members: list[Record], chain: Sequence[int], orders: list[Any], offset: int) -> Record:
    first = members[0]
    if len(members) == 1:
        return replace(first, call=replace(first.call, run=chain[0]), weights=_moved(first, chain, orders))
    rows = sum(r.queries for r in members)
    cross = first.call.kind == "cross"
    keys = first.keys if cross else offset + rows
    extra = first.weights.shape[-1] - first.keys
    out = first.weights.new_zeros(*first.weights.shape[:-2], rows, keys + extra)
    at = 0
    for record in members:
        moved = _moved(record, chain, orders)
        known = keys if cross else offset + at + record.queries
        width = min(record.keys, known)
        start = 0 if cross or record.keys >= known else known - record.keys
        if record.keys > known and bool((moved[..., known : record.keys] != 0).any()):
            raise CaptureError(f"{record.call.name} attends to places of its cache that were not filled yet.")
        out[..., at : at + record.queries, start : start + width] = moved[..., :width]
        if extra:
            out[..., at : at + record.queries, -extra:] = moved[..., -extra:]
        at += record.queries
    ratios = [_moved(replace(r, weights=r.mixing), chain, orders) for r in members if r.mixing is not None]
    return replace(
        first, call=replace(first.call, run=chain[0]), weights=out, queries=rows, keys=keys, gradient=None,
        mixing=torch.cat(ratios, 1) if ratios else None,
    )  # fmt: skip


def _moved(record: Record, chain: Sequence[int], orders: list[Any]) -> torch.Tensor:
    """The record's weights in the order that the batch has in the end."""
    weights = record.weights
    for order in orders[chain.index(record.call.run) :]:
        if order is not None and weights.shape[0] > int(order.max()):
            weights = weights[order.to(weights.device)]
    return weights


def _given(session: Session, chain: Sequence[int], orders: list[Any]) -> Run:
    """Ids of the whole sequence and its last mask."""
    out = Run(dict(session.given[chain[0]].inputs), session.given[chain[0]].past)
    for name in ("input_ids", "decoder_input_ids"):
        parts: torch.Tensor | None = None
        for i, number in enumerate(chain):
            ids = session.given[number].inputs.get(name)
            if ids is None:
                continue
            if parts is not None and i and orders[i - 1] is not None:
                parts = parts[orders[i - 1].to(parts.device)]
            # An encoder-decoder model names its encoder's ids once; a decoder's go on from run to run.
            parts = ids if parts is None else torch.cat([parts, ids], 1)
        if parts is not None:
            out.inputs[name] = parts
    for name in ("attention_mask", "decoder_attention_mask"):
        last = session.given[chain[-1]].inputs.get(name)
        if last is not None:
            out.inputs[name] = last
    return out
