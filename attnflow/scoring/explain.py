"""One run of the model, several methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnflow.attention import Attention
from attnflow.errors import SelectionError
from attnflow.relevance import Relevance
from attnflow.scoring.network import Residual
from attnflow.scoring.source import Heads
from attnflow.select import pick_position
from attnflow.tokens import Tokens

METHODS = ("raw", "rollout", "flow", "gradient", "blankout")
# Tokens up to which all heads are kept for a page: 38 MB for 12 layers of 12 heads.
LONGEST = 256


def explain(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[str] = ("raw", "rollout", "flow"),
    position: int | str | None = None,
    heads: Heads = "mean",
    residual: Residual = 0.5,
    every_head: bool = False,
) -> list[Relevance]:
    """Scores of each method for one output position: attention at every layer, from one run of the model.

    ``position=None`` takes the position that classifiers read ("cls") where there is one, else the last. "gradient"
    and "blankout" score the inputs by what the model predicted, as :func:`attnflow.gradient` and
    :func:`attnflow.blankout` do. ``every_head`` keeps the attention of all heads with the results, for a page that can
    switch between them; of long texts it is not kept.
    """
    from attnflow.capturing.capture import capture

    keep = every_head and len(tokenizer(text)["input_ids"]) <= LONGEST
    attention = capture(model, tokenizer, text, heads="all" if keep else heads)
    rows = (attention["decoder"] if "decoder" in attention.blocks else attention.only).queries
    place = pick_position(_default_position(rows) if position is None else position, rows)
    by_attention = _by_attention(attention, heads, place, residual)
    by_model = _by_model(model, tokenizer, text, None if position is None else place)
    return [(by_attention | by_model)[name]() for name in methods]


def _by_attention(
    attention: Attention, heads: Heads, position: int, residual: Residual
) -> dict[str, Callable[[], Relevance]]:
    from attnflow.scoring.flow.flow import flow
    from attnflow.scoring.raw import raw
    from attnflow.scoring.rollout import rollout

    return {
        "raw": lambda: raw(attention, heads=heads, position=position),
        "rollout": lambda: rollout(attention, heads=heads, position=position, residual=residual),
        "flow": lambda: flow(attention, heads=heads, position=position, residual=residual),
    }


def _by_model(model: Any, tokenizer: Any, text: str, position: int | None) -> dict[str, Callable[[], Relevance]]:
    from attnflow.scoring.blankout import blankout
    from attnflow.scoring.gradient import gradient

    def run(method: Callable[..., Relevance]) -> Relevance:
        try:
            return method(model, tokenizer, text, position=position)
        except SelectionError:
            if position is None:
                raise
            # A classifier has one output, whatever position its attention is looked at from.
            return method(model, tokenizer, text)

    return {"gradient": lambda: run(gradient), "blankout": lambda: run(blankout)}


def _default_position(rows: Tokens) -> str:
    return "cls" if "cls" in rows.marks else "last"
