"""Texts with some units blanked, each run once: what all measures of one example share.

A measure asks what the model says when these units are kept and those are blanked. Many measures of many methods ask
for the same text, so the answers are kept. A first pass over all measures notes what is asked; it is then run in large
batches; and a second pass reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnflow.errors import InputError, WeightsError
from attnflow.inputs.embedding import find, repeated, run
from attnflow.inputs.example import Example
from attnflow.inputs.target import Goal
from attnflow.scoring.blankout import goal_without, settle_blank, stacked, without
from attnflow.tokens import Grouping, group_words

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.bool_]
Key = tuple[str | int, bytes]


def group(example: Example, unit: str) -> Grouping:
    """The units of an example: its tokens or its words."""
    if unit == "word":
        return group_words(example.tokens)
    return Grouping(tuple((i,) for i in range(len(example.tokens))), example.tokens)


@dataclass(eq=False)
class Variants:
    """What the model says about variants of one example.

    Attributes:
        example: what the model is given.
        goal: the number that is explained.
        groups: which positions make up which unit.
        batch_size: the largest number of variants in one forward pass.
        passes: how many forward passes were made so far.
        ran: how many variants were run so far.
    """

    example: Example
    goal: Goal
    groups: Grouping
    batch_size: int = 64
    passes: int = 0
    ran: int = 0
    known: dict[Key, float] = field(default_factory=dict)
    asked: dict[Key, None] | None = None

    def __post_init__(self) -> None:
        if self.example.patches is not None or "decoder_input_ids" in self.example.inputs or self.example.mirrored:
            raise InputError(
                f"{self.example.name} takes an image or has a decoder beside its encoder, and faithfulness is measured "
                "on texts of classifiers, masked and causal language models. Use compare(…) for this model."
            )

    @cached_property
    def units(self) -> npt.NDArray[np.int64]:
        """The units that are blanked: neither special tokens nor the position at which the model predicts."""
        read = self.goal.position
        kept = [
            g
            for g, members in enumerate(self.groups.members)
            if not self.groups.tokens.special[g] and (read is None or read not in members)
        ]
        if len(kept) < 2:
            raise InputError(one_unit(self.groups.tokens, kept))
        return np.asarray(kept, np.int64)

    @cached_property
    def whole(self) -> float:
        """What the model says about the example as it is."""
        return float(self.goal.values(self.example.outputs).detach()[0])

    def values(self, blank: str | int, kept: Masks) -> Floats:
        """``[variants]`` for ``kept`` ``[variants, units]``: True where a unit stays, False where it is blanked.

        While :meth:`planning`, what is asked is noted, and the answer is the value of the whole example.
        """
        keys: list[Key] = [(blank, np.packbits(row).tobytes()) for row in kept]
        if self.asked is not None:
            self.asked.update(dict.fromkeys(k for k in keys if k not in self.known))
            return np.full(len(kept), self.whole)
        self._run([k for k in dict.fromkeys(keys) if k not in self.known])
        return np.array([self.known[k] for k in keys])

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Note what is asked inside the block, and run it at its end, in as few passes as may be."""
        self.asked = {}
        try:
            yield
            wanted, self.asked = list(self.asked), None
            self._run(wanted)
        finally:
            self.asked = None

    def one_out(self, blank: str | int) -> Floats:
        """``[units]``: how much the value falls when each unit alone is blanked."""
        return self.whole - self.values(blank, ~np.eye(len(self.units), dtype=bool))

    def _run(self, keys: Sequence[Key]) -> None:
        """Run variants that are not known; those of one kind and length together, none padded."""
        if not keys:
            return
        buckets: dict[Any, list[tuple[Key, tuple[int, ...]]]] = defaultdict(list)
        for key in keys:
            members = self._members(key[1])
            if not members:
                self.known[key] = self.whole
                continue
            buckets[(key[0], len(members) if key[0] == "delete" else 0)].append((key, members))
        with torch.inference_mode(False), torch.no_grad():
            for (blank, _), bucket in buckets.items():
                for start in range(0, len(bucket), self.batch_size):
                    chunk = bucket[start : start + self.batch_size]
                    self._keep(chunk, self._outputs(blank, [members for _, members in chunk]))

    def _keep(self, chunk: Sequence[tuple[Key, tuple[int, ...]]], found: Tensor) -> None:
        values = found.detach().double().cpu().numpy()
        if not np.isfinite(values).all():
            raise WeightsError(
                f"With inputs blanked out the output is {values[~np.isfinite(values)][0]}: the model overflowed (try "
                "it in float32)."
            )
        self.passes, self.ran = self.passes + 1, self.ran + len(chunk)
        self.known.update(zip([key for key, _ in chunk], values.tolist(), strict=True))

    def _members(self, packed: bytes) -> tuple[int, ...]:
        """The positions that are blanked."""
        kept = np.unpackbits(np.frombuffer(packed, np.uint8), count=len(self.units)).astype(bool)
        return tuple(sorted(m for g in self.units[~kept] for m in self.groups.members[int(g)]))

    def _outputs(self, blank: str | int, members: Sequence[tuple[int, ...]]) -> Tensor:
        lean = self.example.lean(self.goal)
        if blank == "delete":
            variants = [without(lean, gone) for gone in members]
            if all(v is not None for v in variants):
                at = [goal_without(self.example, self.goal, gone) for gone in members]
                return self._deleted([v for v in variants if v is not None], [g for g in at if g is not None])
            # Nothing would be left of the text: a text of blanks takes its place.
            blank = settle_blank(self.example, "auto")
        rows = torch.arange(len(members)).repeat_interleave(torch.tensor([len(m) for m in members]))
        columns = torch.tensor([m for gone in members for m in gone])
        if blank == "mean-embedding":
            embedder = find(self.example.model, self.example.inputs)
            (point,) = embedder.embeddings(self.example.model, self.example.inputs)
            changed = point.repeat(len(members), 1, 1)
            changed[rows, columns] = embedder.mean(0)[0]
            return self.goal.values(embedder.run(self.example.model, lean, (changed,)))
        ids = self.example.inputs["input_ids"].repeat(len(members), 1)
        ids[rows, columns] = int(blank)
        return self.goal.values(run(self.example.model, {**repeated(lean, len(members)), "input_ids": ids}))

    def _deleted(self, variants: Sequence[dict[str, Any]], goals: Sequence[Goal]) -> Tensor:
        """Variants of one length; where the position that is read moved differently, each is read at its own."""
        outputs = run(self.example.model, stacked(variants))
        if len({g.position for g in goals}) == 1:
            return goals[0].values(outputs)
        return torch.stack([goal.values(outputs)[i] for i, goal in enumerate(goals)])


def one_unit(tokens: Sequence[str], kept: Sequence[int]) -> str:
    """The error for an example with too few units to rank."""
    return (
        f"{len(kept)} of its {len(tokens)} positions ({' '.join(tokens[:12])}) can be blanked, and a ranking needs "
        "two: special tokens and the position at which the model predicts stay. Leave such short texts out."
    )
