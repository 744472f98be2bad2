"""The one scorer: the inputs of one example, scored by methods and references, and correlated.

compare runs it over a data set, audit and probes over their own examples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.attention import SINK, Attention
from attnflow.correlation import coefficients, kendall_p_values, present, tie_share, tie_shares
from attnflow.errors import SelectionError, ShapeError
from attnflow.inputs.example import Example
from attnflow.inputs.target import Goal
from attnflow.relevance import Relevance
from attnflow.reprs import one_line
from attnflow.scoring.captures import Captures
from attnflow.scoring.registry import MethodCall
from attnflow.select import pick_layer
from attnflow.tokens import Tokens, group_words

Scores = npt.NDArray[np.float64]


@dataclass(eq=False)
class Costs:
    """Seconds by part."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time that the block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


@one_line
@dataclass(frozen=True, eq=False)
class Scored:
    """One example scored in one way: rows are layers, columns the compared units (tokens or words)."""

    rows: Scores
    layers: tuple[int | str, ...]
    result: Relevance | None = None

    @property
    def rounding(self) -> float | None:
        """What is left of sums that cancel, where the scores are rounding error; see :class:`attnflow.Relevance`."""
        return None if self.result is None else self.result.rounding


@one_line
@dataclass(eq=False)
class Scorer:
    """Scores one example by any number of methods; the model is run once for each kind of edges that they read.

    Attributes:
        example: what the model is given.
        goal: the number that is explained.
        position: the output position whose attention is read; by default the one that is explained.
        unit: "token" or "word".
        heads: how the heads are brought down to one matrix per layer.
        batch_size: the largest number of variants of the example in one forward pass.
        costs: what each part took.
    """

    example: Example
    goal: Goal
    position: int | str | None = None
    unit: str = "token"
    heads: Any = "mean"
    batch_size: int = 32
    costs: Costs = field(default_factory=Costs)

    @cached_property
    def captures(self) -> Captures:
        """The attention of the example, by kind of edges."""
        given = {"inputs": self.example.inputs}
        return Captures(self.example.model, self.example.tokenizer, given, lambda: self.goal, self.heads)

    @cached_property
    def place(self) -> int | str:
        """The row of attention that is read; a pooling layer has one row, whatever the position."""
        causal = all(block.causal for block in self.captures.any().blocks.values())
        return 0 if self.pooled else self.example.place(self.goal, self.position, causal)

    @property
    def pooled(self) -> bool:
        """True if the attention is that of a pooling layer: fewer queries than keys, and no stack to follow."""
        blocks = list(self.captures.any().blocks.values())
        return len(blocks) == 1 and any(w.shape[-2] == 1 < w.shape[-1] for w in blocks[0].weights)

    @cached_property
    def tokens(self) -> Tokens:
        """Names of the compared units."""
        return self.example.tokens if self.unit == "token" else group_words(self.example.tokens).tokens

    def score(self, call: MethodCall) -> Scored:
        """The scores of one method over the compared units."""
        call = call.offered(batch_size=self.batch_size, unit=self.unit)
        if call.method.needs == "attention":
            with self.costs.timed("capture" if call.edges == "attention" else f"capture {call.edges}"):
                attention: Attention = self.captures.of(call)
            place = self.place
            with self.costs.timed(call.name):
                found: Any = call.run(self.example, self.goal, attention, place)
                return self._by_attention(found)
        with self.costs.timed(call.name):
            found = call.run(self.example, self.goal)
            if isinstance(found, Relevance) and self.unit == "word" and "unit" not in call.method.options:
                found = found.words()
        return self._by_model(call.name, found)

    def _by_attention(self, found: Any) -> Scored:
        aligned = aligned_to(found, self.example.tokens)
        aligned = aligned.words() if self.unit == "word" else aligned
        return Scored(np.asarray(aligned.scores, np.float64), aligned.layers, aligned)

    def _by_model(self, name: str, found: Any) -> Scored:
        scores = found.scores if isinstance(found, Relevance) else np.asarray(found, np.float64)
        row = np.asarray(scores, np.float64).reshape(-1)
        if len(row) != len(self.tokens):
            raise ShapeError(f"The reference {name} scores {len(row)} inputs, the methods {len(self.tokens)}.")
        return Scored(row[None], ("input",), found if isinstance(found, Relevance) else None)


def at_layers(found: Scored, layers: Sequence[int] | None) -> Scored:
    """Only these layers, by true number (negatives from the top); None for all."""
    if layers is None or found.layers == ("input",):
        return found
    kept = [pick_layer(i, found.layers) for i in layers]
    return replace(found, rows=found.rows[kept], layers=tuple(found.layers[i] for i in kept))


def correlated(
    tokens: Tokens,
    methods: Mapping[str, Scored],
    references: Mapping[str, Scored],
    *,
    correlations: Sequence[str] = ("spearman",),
    special: Sequence[bool] = (False,),
    k: int = 5,
    p_values: bool = False,
) -> Iterator[dict[str, Any]]:
    """One record per method, layer, reference, correlation and choice about special tokens.

    All methods go against one reference at a time: one ranking serves all their layers. A position for which a method
    or the reference has no number is left out. ``p_values`` adds those of Kendall's τ.
    """
    names = [(method, layer) for method, found in methods.items() for layer in found.layers]
    stacked = np.concatenate([found.rows for found in methods.values()])
    plain = ~np.array(tokens.special, bool)
    for with_special in special:
        for reference, other in references.items():
            ref = other.rows[0]
            keep = present(stacked, ref) & (plain | with_special)
            rows, one = stacked[:, keep], ref[keep]
            ties = tie_shares(rows)
            shared = {"reference": reference, "special": with_special, "n": int(keep.sum()),
                      "reference_ties": tie_share(one), "reference_rounding": other.rounding}  # fmt: skip
            for kind in correlations:
                values = coefficients(rows, one, kind, k)
                chance = kendall_p_values(rows, one) if p_values else None
                for i, (method, layer) in enumerate(names):
                    record = {**shared, "method": method, "layer": layer, "correlation": kind,
                              "value": float(values[i]), "ties": float(ties[i]),
                              "rounding": methods[method].rounding}  # fmt: skip
                    yield record if chance is None else {**record, "p": float(chance[i])}


def aligned_to(found: Any, tokens: Tokens) -> Relevance:
    """The scores of a method over the tokens that the references score."""
    if not isinstance(found, Relevance) or found.scores.ndim != 2:
        raise SelectionError(
            f"A method gave {found!r}, and a Relevance of one position, [layers, keys], is needed:  "
            "methods={'mine': lambda attention, position: …}"
        )
    scores, names = found.scores, tuple(found.tokens)
    if len(names) == len(tokens) + 1 and names[-1] == SINK:
        scores, names = scores[:, :-1], names[:-1]
    if len(names) != len(tokens):
        where = {name: i for i, name in enumerate(names)}
        if len(where) != len(names) or not set(where) & set(tokens):
            raise ShapeError(f"The attention is over {len(names)} positions, the inputs have {len(tokens)}.")
        # Images: one side may not know of tokens that are no patches.
        blank = np.full((len(scores), 1), np.nan)
        padded = np.concatenate([scores, blank], 1)
        scores = padded[:, [where.get(t, -1) for t in tokens]]
    return replace(found, scores=scores, tokens=tokens)
