"""One run of the model, several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from attnflow.attention import Attention, outputs_of
from attnflow.errors import SelectionError
from attnflow.heads import Heads
from attnflow.inputs.example import Example, examples
from attnflow.inputs.prediction import prediction_of
from attnflow.inputs.running import arguments, undisturbed
from attnflow.inputs.target import Goal
from attnflow.relevance import Relevance
from attnflow.scoring.captures import Captures
from attnflow.scoring.explanation import Explanation
from attnflow.scoring.network import Residual
from attnflow.scoring.registry import MethodCall, calls, names
from attnflow.scoring.source import scored
from attnflow.select import pick_position, read_position

# Tokens up to which all heads are kept for a page: 38 MB for 12 layers of 12 heads.
LONGEST = 256
# Steps × tokens² up to which other outputs are looked at too: milliseconds, also for flow.
AT_ONCE = 400_000


def explain(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    methods: Sequence[str] | None = None,
    position: int | str | None = None,
    heads: Heads = "mean",
    residual: Residual = None,
    every_head: bool = False,
    layer: int = -1,
    **options: Any,
) -> Explanation:
    """What the model predicted for one text, and which inputs each method says it drew on, with the check.

    Attention is read at every layer, from one run per kind of edges; ``scores[l, j]`` of each result is how much the
    output position draws on input *j* at layer *l*. Methods that need the model score the inputs by what it predicted,
    as :func:`attnflow.gradient` and :func:`attnflow.blankout` do, and gradient edges explain the same prediction.

    Args:
        model: a model, a pipeline, or the name of one.
        tokenizer: its own; a pipeline and a name have theirs.
        text: one text, or ids.
        methods: names of :func:`attnflow.methods`; by default raw attention, rollout, flow, gradient and blank-out.
        position: the output position: a number, "cls", "last", "mask", or a word of the text. By default the position
            that classifiers read ("cls") where there is one; in a causal model, and without one, the last.
        heads: how heads are brought down to one matrix.
        residual: goes to the methods whose edges do not hold it.
        every_head: keep the attention of all heads with the results, for a page that can switch between them; of long
            texts it is not kept.
        layer: the layer that table and page show first.
        options: of the encoding of the text: ``text_pair``, ``max_length``, ``truncation``.

    >>> from attnflow import demo
    >>> e = explain(demo.model(), demo.tokenizer(), "the keys to the cabinet", methods=("raw", "gradient"))
    >>> e.prediction.label
    'plural'
    >>> e["raw"].scores.shape, e["gradient"].scores.shape
    ((6, 7), (1, 7))
    """
    asked = calls("methods", names(shown=True) if methods is None else methods)
    model, tokenizer, text = arguments(model, tokenizer, text, "explain")
    with undisturbed(model) as module:
        example = _one(module, tokenizer, text, options)

        @cache
        def goal() -> Goal:
            return example.predicted(position)

        predicted = _predicted(example, goal)
        if methods is None and predicted is None:
            # A tagger or masked model that was not told where to look predicts at every position.
            asked = tuple(call for call in asked if call.method.needs == "attention" or _settles(goal))
        keep = every_head and len(example.tokens) <= LONGEST
        source = {"text": text, **options}
        captures = Captures(module, tokenizer, source, goal, "all" if keep else heads)
        found = [
            _by_attention(call.offered(residual=residual), captures.of(call), heads, position)
            if call.method.needs == "attention"
            else call.run(example, goal())
            for call in asked
        ]
    line = None if predicted is None else predicted.line
    # Two of them may be one function with other options: the name that was asked for tells them apart.
    results = [replace(r, method=call.name, predicted=line) for call, r in zip(asked, found, strict=True)]
    return Explanation(tuple(results), predicted, text, layer)


def _one(module: Any, tokenizer: Any, text: Any, options: dict[str, Any]) -> Example:
    found, single = examples(module, tokenizer, text, **options)
    if not single and len(found) > 1:
        raise SelectionError(
            f"explain takes one text, and {len(found)} were given. Take each:  "
            "[explain(model, tokenizer, one) for one in texts]"
        )
    return found[0]


def _predicted(example: Example, goal: Any) -> Any:
    return prediction_of(example, goal()) if _settles(goal) else None


def _settles(goal: Any) -> bool:
    """Whether there is one prediction to speak of: a masked model without a mask has one at every position."""
    try:
        goal()
    except SelectionError:
        return False
    return True


def _by_attention(call: MethodCall, attention: Attention, heads: Heads, position: int | str | None) -> Relevance:
    """The scores of one method; a function of the user's own gets one matrix per layer, as it knows of no heads."""
    place = _place(attention, position)
    asked = None if attention.residual_inside else heads  # such edges hold what all heads gave

    def at(p: int) -> Relevance:
        return scored(attention, asked, lambda one: call.run(None, None, one, p))

    found = at(place)
    others = [at(p).scores[-1] for p in _elsewhere(attention, place)]
    if not others:
        return found
    from attnflow.informative import row_agreement

    rows = np.stack([found.scores[-1], *others]).astype(np.float64)
    return replace(found, row_agreement=row_agreement(np.abs(rows)))


def _elsewhere(attention: Attention, place: int) -> list[int]:
    """Two other outputs, with which the ranking of the inputs is compared; none where that would take long."""
    block = outputs_of(attention)
    n = len(block.queries)
    if len(block.layers) * n * n > AT_ONCE or any(w.shape[-2] != n for w in block.weights):
        return []
    return [p for p in dict.fromkeys([n - 1, n - 2, n // 2, 1, 0]) if p != place and 0 <= p < n][:2]


def _place(attention: Attention, position: int | str | None) -> int:
    """The row that is read: what classifiers read where there is such a position, else the last."""
    block = outputs_of(attention)
    return read_position(block.queries, block.causal) if position is None else pick_position(position, block.queries)
