"""Token weights from a trained model, for a guide: raw attention, rollout, flow, gradients; kept on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow import files
from attnflow.audit.outcomes import AttentionRow, device_of, outcome
from attnflow.audit.splits import PARTS, Batch, Progress, Split, Splits
from attnflow.errors import FileError
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.scoring.registry import MethodCall, find

Weights = dict[str, tuple[Tensor, ...]]
"""For each part of the data one vector per text: a weight for each token, summing to one, zero at special tokens."""

_BATCH = 32


def guide_weights(
    method: str,
    model: Any,
    data: Splits,
    attention_row: AttentionRow,
    path: Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> Weights:
    """How ``model`` weighs the tokens of every text by ``method``; read from ``path`` if they are there.

    ``method``: "raw" (the attention row), or another method of :func:`attnflow.methods`: one that needs
    attention is read at the top layer, in the row of the same position.
    """
    call = MethodCall(method, find(method, argument="guide"))
    name = f"{method} {attention_row} of {identity}"
    if path is not None and path.is_file():
        return _read(path, name, data)
    found: Weights = {}
    for part in PARTS:
        split: Split = getattr(data, part)
        rows = (
            _raw(model, split, data, attention_row)
            if method == "raw"
            else _scored(call, model, split, data, attention_row, progress)
        )
        found[part] = settled(rows, split, data)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {part: torch.cat(rows).numpy() for part, rows in found.items()}
        files.save(path, "guide", arrays, {"name": name}, overwrite=True)
    return found


def uniform_rows(data: Splits) -> Weights:
    """The same weight for every word of a text."""
    return {
        part: settled([torch.ones(len(x)) for x in getattr(data, part).ids], getattr(data, part), data)
        for part in PARTS
    }


def settled(rows: Sequence[Tensor], split: Split, data: Splits) -> tuple[Tensor, ...]:
    """Special tokens dropped and the rest divided by its sum; uniform over the words where nothing is left of it."""
    out = []
    for row, ids in zip(rows, split.ids, strict=True):
        tokens = torch.tensor([ids])
        words = data.text_tokens(tokens, torch.ones_like(tokens))[0]
        kept = torch.where(words, row.clamp(min=0), 0.0)
        total = float(kept.sum())
        out.append(kept / total if total > 0 else words.float() / words.sum())
    return tuple(out)


def _raw(model: Any, split: Split, data: Splits, attention_row: AttentionRow) -> Sequence[Tensor]:
    return outcome(model, split, data.pad, attention_row).attention


def _scored(
    call: MethodCall, model: Any, split: Split, data: Splits, attention_row: AttentionRow, progress: Progress | None
) -> Sequence[Tensor]:
    rows: list[Tensor] = [torch.empty(0)] * len(split)
    done = 0
    for batch in split.batches(_BATCH, data.pad):
        for i, scores in zip(
            batch.index, _batch_scores(call, model, batch.to(device_of(model)), attention_row), strict=True
        ):
            rows[i] = torch.from_numpy(np.ascontiguousarray(scores)).float()
        done += len(batch.index)
        if progress is not None:
            progress(done, len(split))
    return rows


def _batch_scores(call: MethodCall, model: Any, batch: Batch, attention_row: AttentionRow) -> list[Any]:
    """Scores of the top layer (one vector per text) of a batch."""
    from attnflow.capturing.capture import capture

    if call.method.needs == "model":
        lengths = batch.mask.sum(1).tolist()
        return [_alone(call, model, batch.ids[i, :n].tolist()) for i, n in enumerate(lengths)]
    given = {"input_ids": batch.ids, "attention_mask": batch.mask}
    found: Any = capture(model, None, given, **call.captured)
    place = {"cls": 0, "last": -1}.get(str(attention_row.position), attention_row.position)
    listed = found if isinstance(found, list) else [found]
    return [call.run(None, None, one, place).scores[-1] for one in listed]


def _alone(call: MethodCall, model: Any, ids: list[int]) -> Any:
    with undisturbed(model) as module:
        example = one_example(module, None, ids)
        goal, _ = example.goal(None, None, None)
        return call.run(example, goal).scores[-1]


def _read(path: Path, name: str, data: Splits) -> Weights:
    arrays, header = files.load(path, "guide")
    lengths = {part: [len(x) for x in getattr(data, part).ids] for part in PARTS}
    if header.get("name") != name or any(len(arrays[part]) != sum(lengths[part]) for part in PARTS):
        raise FileError(
            f"{path} holds the weights {header.get('name')!r}, and {name!r} were asked for, on these data. Give "
            "another folder=, or delete this file."
        )
    return {part: torch.split(torch.from_numpy(arrays[part]), lengths[part]) for part in PARTS}
