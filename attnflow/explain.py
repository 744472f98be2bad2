"""One run of the model, several methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnflow.attention import Attention
from attnflow.network import Residual
from attnflow.relevance import Relevance
from attnflow.sources import Heads


def explain(
    model: Any,
    tokenizer: Any,
    text: str,
    methods: Sequence[str] = ("raw", "rollout", "flow"),
    position: int | str | None = None,
    heads: Heads = "mean",
    residual: Residual = 0.5,
) -> list[Relevance]:
    """Scores of each method for one output position at every layer, from one run of the model.

    ``position=None`` takes the position that classifiers read ("cls") where there is one, else the last.
    """
    from attnflow.capture import capture

    attention = capture(model, tokenizer, text, heads=heads)
    place = _default_position(attention) if position is None else position
    return [_run(name, attention, place, residual) for name in methods]


def _run(name: str, attention: Attention, position: int | str, residual: Residual) -> Relevance:
    from attnflow.flow import flow
    from attnflow.raw import raw
    from attnflow.rollout import rollout

    if name == "raw":
        return raw(attention, position=position)
    return {"rollout": rollout, "flow": flow}[name](attention, position=position, residual=residual)


def _default_position(attention: Attention) -> str:
    rows = attention["decoder"] if "decoder" in attention.blocks else attention.only
    return "cls" if "cls" in rows.queries.marks else "last"
