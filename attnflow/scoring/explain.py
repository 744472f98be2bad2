"""One run of the model, several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnflow.attention import Attention
from attnflow.capturing.capture import capture
from attnflow.heads import Heads
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.relevance import Relevance
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
    residual: Residual = 0.5,
    every_head: bool = False,
) -> list[Relevance]:
    """Scores of each method for one output position: attention at every layer, from one run of the model.

    ``methods`` are names of :func:`attnflow.methods`; by default raw attention, rollout and flow. ``position=None``
    takes the position that classifiers read ("cls") where there is one, else the last. Methods that need the model
    score the inputs by what the model predicted, as :func:`attnflow.gradient` and :func:`attnflow.blankout` do.
    ``every_head`` keeps the attention of all heads with the results, for a page that can switch between them; of long
    texts it is not kept.
    """
    asked = calls("methods", names("attention", shown=True) if methods is None else methods)
    keep = every_head and len(tokenizer(text)["input_ids"]) <= LONGEST
    attention = capture(model, tokenizer, text, heads="all" if keep else heads)
    rows = (attention["decoder"] if "decoder" in attention.blocks else attention.only).queries
    place = read_position(rows) if position is None else pick_position(position, rows)
    by_model = _by_model(model, tokenizer, text, asked, None if position is None else place)
    found = [
        _by_attention(call.offered(residual=residual), attention, heads, place)
        if call.method.needs == "attention"
        else by_model[call.name]
        for call in asked
    ]
    # Two of them may be one function with other options: the name that was asked for tells them apart.
    return [replace(r, method=call.name) for call, r in zip(asked, found, strict=True)]


def _by_attention(call: MethodCall, attention: Attention, heads: Heads, position: int) -> Relevance:
    """The scores of one method; a function of the user's own gets one matrix per layer, as it knows of no heads."""
    return scored(attention, heads, lambda one: call.run(None, None, one, position))


def _by_model(
    model: Any, tokenizer: Any, text: str, asked: Sequence[MethodCall], position: int | None
) -> dict[str, Relevance]:
    """The scores of the methods that need the model, of what it predicted at ``position``."""
    wanted = [call for call in asked if call.method.needs == "model"]
    if not wanted:
        return {}
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, text)
        goal = example.predicted(position)
        return {call.name: call.run(example, goal) for call in wanted}
