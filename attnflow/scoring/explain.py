"""One run of the model, several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from attnflow.attention import Attention
from attnflow.heads import Heads
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.inputs.target import Goal
from attnflow.relevance import Relevance
from attnflow.scoring.captures import Captures
from attnflow.scoring.network import Residual
from attnflow.scoring.registry import MethodCall, calls, names
from attnflow.scoring.source import scored
from attnflow.select import pick_position, read_position

# Tokens up to which all heads are kept for a page: 38 MB for 12 layers of 12 heads.
LONGEST = 256


def explain(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[str] | None = None,
    position: int | str | None = None,
    heads: Heads = "mean",
    residual: Residual = None,
    every_head: bool = False,
) -> list[Relevance]:
    """Scores of each method for one output position: attention at every layer, from one run per kind of edges.

    ``methods`` are names of :func:`attnflow.methods`; by default raw attention, rollout and flow. ``position=None``
    takes the position that classifiers read ("cls") where there is one, else the last. Methods that need the model
    score the inputs by what the model predicted, as :func:`attnflow.gradient` and :func:`attnflow.blankout` do, and
    gradient edges explain the same prediction. ``residual`` goes to the methods whose edges do not hold it.
    ``every_head`` keeps the attention of all heads with the results, for a page that can switch between them; of long
    texts it is not kept.
    """
    asked = calls("methods", names("attention", shown=True) if methods is None else methods)
    keep = every_head and len(tokenizer(text)["input_ids"]) <= LONGEST
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, text)

        @cache
        def goal() -> Goal:
            return example.predicted(position)

        captures = Captures(module, tokenizer, {"text": text}, goal, "all" if keep else heads)
        found = [
            _by_attention(call.offered(residual=residual), captures.of(call), heads, position)
            if call.method.needs == "attention"
            else call.run(example, goal())
            for call in asked
        ]
    # Two of them may be one function with other options: the name that was asked for tells them apart.
    return [replace(r, method=call.name) for call, r in zip(asked, found, strict=True)]


def _by_attention(call: MethodCall, attention: Attention, heads: Heads, position: int | str | None) -> Relevance:
    """The scores of one method; a function of the user's own gets one matrix per layer, as it knows of no heads."""
    place = _place(attention, position)
    asked = None if attention.residual_inside else heads  # such edges hold what all heads gave
    return scored(attention, asked, lambda one: call.run(None, None, one, place))


def _place(attention: Attention, position: int | str | None) -> int:
    """The row that is read: what classifiers read where there is such a position, else the last."""
    rows = (attention["decoder"] if "decoder" in attention.blocks else attention.only).queries
    return read_position(rows) if position is None else pick_position(position, rows)
