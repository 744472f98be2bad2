"""Predictions, attention rows and metrics of a trained classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnflow.audit.measures import jsd, scalar_tvd, tvd
from attnflow.audit.splits import Batch, Split, Splits
from attnflow.capturing import Call, live
from attnflow.capturing.capture import capture
from attnflow.capturing.session import Replace
from attnflow.errors import CaptureError, SelectionError
from attnflow.inputs.encode import device_of
from attnflow.numbers import wholes
from attnflow.reprs import one_line
from attnflow.select import pick_layer

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AttentionRow:
    """Which attention of a model is compared: one distribution over the tokens for each text.

    Attributes:
        layers: the model's own numbers, negative ones from the top; of several the mean is used.
        position: the row: "cls" (the first token), "last", or a number. Attention with one row has only that one. In a
            causal model the first token sees itself alone, so that experiments read "last" where no row is given.
    """

    layers: tuple[int, ...] = (-1,)
    position: int | str = "cls"

    def __post_init__(self) -> None:
        if not wholes(self.layers, "layers"):
            raise SelectionError("layers is empty: choose at least one,  AttentionRow(layers=(-1,))")
        if isinstance(self.position, str) and self.position not in ("cls", "last"):
            raise SelectionError(f"position={self.position!r} is not known. Use 'cls', 'last' or a number.")

    def describe(self) -> str:
        """What is compared, for the settings."""
        return f"mean over heads of layers {list(self.layers)}, row {self.position!r}; a pooling attention as it is"


def is_causal(model: Any, inputs: Mapping[str, Any]) -> bool:
    """True if no position of the model looks at a later one, so that only the last has seen the whole text."""
    found: Any = capture(model, None, inputs=inputs)
    one = found[0] if isinstance(found, list) else found
    return all(block.causal for block in one.blocks.values())


def row_of(given: AttentionRow | None, model: Any, data: Splits) -> AttentionRow:
    """The attention that is compared: the one given; else the row of the first token, or the last of a causal model."""
    if given is not None:
        return given
    ids = torch.tensor([next((x for x in data.train.ids if len(x) > 1), data.train.ids[0])], device=device_of(model))
    causal = is_causal(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return AttentionRow(position="last") if causal else AttentionRow()


class RowWatch:
    """The attention of the latest run of a model that is watched."""

    def __init__(self, model: Any, attention_row: AttentionRow, change: Replace | None) -> None:
        self.model, self.attention_row, self.change = model, attention_row, change
        self.seen: dict[tuple[str, int], Tensor] = {}

    def note(self, call: Call, weights: Tensor) -> Tensor | None:
        """See one call, and change it where that is asked for."""
        changed = None if self.change is None else self.change(call, weights)
        if call.kind == "self":
            self.seen[call.tower, call.layer] = weights if changed is None else changed
        return changed

    def rows(self, mask: Tensor) -> Tensor:
        """``[batch, n]``: how much the watched row attended to each token, in the autograd graph."""
        if not self.seen:
            raise CaptureError(
                f"{type(self.model).__name__} was run and no attention was seen: 0 calls. Models that compute it in a "
                "compiled kernel do not show it; load it with attn_implementation='eager'."
            )
        # The tower that ran last is the one whose output is read.
        tower = next(reversed(self.seen))[0]
        have = sorted(layer for name, layer in self.seen if name == tower)
        layers = [have[pick_layer(layer, have)] for layer in self.attention_row.layers]
        found = torch.stack(
            [_row(self.seen[tower, layer], mask, self.attention_row.position) for layer in layers]
        ).mean(0)
        self.seen.clear()
        return found


@contextmanager
def watched(model: Any, attention_row: AttentionRow, change: Replace | None = None) -> Iterator[RowWatch]:
    """A model whose attention is seen, and changed by ``change``, also while it trains."""
    watch = RowWatch(model, attention_row, change)
    with live(model, watch.note):
        yield watch


def _row(weights: Tensor, mask: Tensor, position: int | str) -> Tensor:
    mean = weights.mean(1)
    if mean.shape[1] == 1:
        return mean[:, 0]
    count = mask.shape[1]
    if position == "cls":
        at = mask.argmax(1)
    elif position == "last":
        at = count - 1 - mask.flip(1).argmax(1)
    else:
        at = torch.full((len(mask),), int(position), device=mask.device)
        if not 0 <= int(position) < count:
            raise SelectionError(f"position={position}, but a text has {count} tokens: use 0 to {count - 1}.")
    return mean[torch.arange(len(mask), device=mask.device), at]


def uniform_weights(call: Call, weights: Tensor) -> Tensor:
    """The same weight for every token that a row can see, whatever the model computed."""
    seen = (weights.detach() > 0).to(weights.dtype)
    return seen / seen.sum(-1, keepdim=True)


@one_line
@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model makes of a split.

    Attributes:
        probabilities: ``[texts, classes]``.
        attention: for each text one weight per token.
    """

    probabilities: Tensor
    attention: tuple[Tensor, ...]

    def padded(self, index: Sequence[int] | npt.NDArray[np.int64], width: int) -> Tensor:
        """The attention of some texts, ``[texts, width]``, zero behind their last token."""
        return pad_rows([self.attention[i] for i in index], width)


def pad_rows(rows: Sequence[Tensor], width: int) -> Tensor:
    """``[texts, width]`` of vectors of different length, filled up with zeros.

    >>> pad_rows([torch.ones(1), torch.ones(2)], 3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    out = torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


Forward = Callable[[Batch], Tensor]


def plain_logits(model: Any, batch: Batch) -> Tensor:
    """``[batch, classes]``: the logits of a batch."""
    logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask).logits
    return logits


@torch.no_grad()
def predictions(split: Split, pad: int, forward: Forward, device: Any = "cpu", size: int = 64) -> Tensor:
    """``[texts, classes]``: the probabilities of the logits that ``forward`` gives for each batch, in order."""
    said = torch.empty(0)
    for batch in split.batches(size, pad):
        p = forward(batch.to(device)).float().softmax(-1).cpu()
        said = said if len(said) else torch.empty(len(split), p.shape[-1])
        said[torch.from_numpy(batch.index)] = p
    return said


def outcome(model: Any, split: Split, pad: int, attention_row: AttentionRow, change: Replace | None = None) -> Outcome:
    """Run a model over a split, with its attention changed by ``change`` where that is given."""
    rows: list[Tensor] = [torch.empty(0)] * len(split)

    def forward(batch: Batch) -> Tensor:
        logits = plain_logits(model, batch)
        for i, row in zip(batch.index, watch.rows(batch.mask).cpu(), strict=True):
            rows[i] = row[: len(split.ids[i])].float()
        return logits

    model.eval()
    with watched(model, attention_row, change) as watch:
        said = predictions(split, pad, forward, device_of(model))
    return Outcome(said, tuple(rows))


def quality(model: Any, split: Split, pad: int) -> float:
    """How good a model is on a validation set: see :func:`rank_quality`."""
    return rank_quality(predictions(split, pad, partial(plain_logits, model), device_of(model)), split.labels)


def rank_quality(probabilities: Tensor, labels: npt.NDArray[np.int64]) -> float:
    """Area under the ROC curve of class 1 of two, ties counted half; the accuracy with more classes or with one label.

    >>> rank_quality(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]), np.array([0, 1, 0]))
    1.0
    """
    from scipy.stats import rankdata

    positive = int((labels == 1).sum())
    if probabilities.shape[-1] != 2 or positive in (0, len(labels)):
        return float((probabilities.argmax(-1).numpy() == labels).mean())
    ranks = rankdata(probabilities[:, 1].numpy())
    least = positive * (positive + 1) / 2
    return float((ranks[labels == 1].sum() - least) / (positive * (len(labels) - positive)))


def f1(predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], classes: int) -> float:
    """F1 of class 1 where there are two classes, else the mean over the classes (macro).

    >>> round(f1(np.array([1, 1, 0]), np.array([1, 0, 0]), 2), 3)
    0.667
    """

    def one(c: int) -> float:
        hits = float(((predicted == c) & (labels == c)).sum())
        total = float((predicted == c).sum() + (labels == c).sum())
        return 2 * hits / total if total else 0.0

    return one(1) if classes == 2 else float(np.mean([one(c) for c in range(classes)]))


def grades(probabilities: Tensor, split: Split) -> dict[str, float]:
    """F1 and accuracy, as they stand in a table."""
    predicted = probabilities.argmax(-1).numpy()
    return {
        "F1": f1(predicted, split.labels, probabilities.shape[-1]),
        "accuracy": float((predicted == split.labels).mean()),
    }


def over_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over runs of several seeds, and the standard deviation of F1 (0 for one seed)."""
    means = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    scores = [run["F1"] for run in runs]
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return {"F1": means.pop("F1"), "F1 std": spread, **means}


def compared(ours: Outcome, theirs: Outcome) -> dict[str, Any]:
    """JSD of two models' attention, and the distance of their predictions in both conventions, per text."""
    p, q = ours.probabilities, theirs.probabilities
    return {
        "jsd": [float(jsd(a, b)) for a, b in zip(ours.attention, theirs.attention, strict=True)],
        "tvd": tvd(p, q).numpy(),
        "tvd_scalar": scalar_tvd(p[:, -1], q[:, -1]).numpy(),
    }
