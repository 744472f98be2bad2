"""The measures for one text and scores that are at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.correlation import tie_share
from attnflow.errors import SelectionError, ShapeError
from attnflow.faithfulness.case import Case, Floats
from attnflow.faithfulness.erasure import deletion_curve, insertion_curve
from attnflow.faithfulness.plan import BLANKS, several
from attnflow.faithfulness.registry import DEFAULT, find_measures
from attnflow.faithfulness.variants import Variants, group
from attnflow.faithfulness.worker import goal_of
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.numbers import at_least, word
from attnflow.relevance import Relevance
from attnflow.scoring.blankout import settle_blank
from attnflow.select import pick_layer

if TYPE_CHECKING:
    import pandas as pd

Scores = Relevance | Sequence[float] | Floats


def measure(
    model: Any,
    tokenizer: Any,
    text: Any,
    scores: Scores | Mapping[str, Scores],
    *,
    measures: str | Sequence[str] = DEFAULT,
    blank: str | int | Sequence[str | int] = BLANKS,
    target: Any = None,
    position: int | str | None = None,
    layer: int = -1,
    draws: int = 10,
    steps: int = 10,
    seed: int = 0,
    batch_size: int = 64,
) -> pd.DataFrame:
    """How faithful scores of one text are: one row per method, measure and kind of blank.

    Args:
        model, tokenizer, text, target, position: as in :func:`attnflow.blankout`.
        scores: a :class:`Relevance` of the text, one number per token, or a dict of several by name.
        measures: names of :func:`measures` that need a blank.
        blank: one or several kinds of blanks.
        layer: of a :class:`Relevance` with several layers, by the model's own number.
        draws, steps, seed: as in :func:`attnflow.rank`.

    >>> from attnflow import demo, rollout
    >>> r = rollout(demo.model(), demo.tokenizer(), demo.SENTENCE, position="last")
    >>> found = measure(demo.model(), demo.tokenizer(), demo.SENTENCE, r, measures="deletion")
    >>> found[["method", "measure", "kind"]].values.tolist()
    [['rollout', 'deletion', 'auto'], ['rollout', 'deletion', 'delete']]
    """
    import pandas as pd

    _check(draws, steps, batch_size)
    chosen = find_measures(measures)
    unfit = next((m for m in chosen if m.needs != "blank"), None)
    if unfit is not None:
        wanted = "the inputs that must matter" if unfit.needs == "truth" else "the method"
        raise SelectionError(f"{unfit.name!r} needs {wanted}, and scores alone are given. Use rank(…) for it.")
    given = dict(scores) if isinstance(scores, Mapping) else {_name(scores): scores}
    blanks = several(blank)
    rows: list[list[Any]] = []
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, text)
        variants = Variants(example, goal_of(example, target, position), group(example, "token"), batch_size)
        cases = {n: Case(_row(s, layer, len(example.tokens), n)[variants.units], variants, draws=draws, seed=seed,
                         steps=steps) for n, s in given.items()}  # fmt: skip
        settled = {str(b): settle_blank(example, b) for b in blanks}

        def judged() -> list[list[Any]]:
            return [
                [name, m.name, kind, _at(m.function, case, value), tie_share(case.scores[~np.isnan(case.scores)])]
                for name, case in cases.items()
                for m in chosen
                for kind, value in settled.items()
            ]

        with variants.planning():
            judged()
        rows = judged()
    return pd.DataFrame(rows, columns=["method", "measure", "kind", "value", "ties"])


def curve(
    model: Any,
    tokenizer: Any,
    text: Any,
    scores: Scores,
    *,
    kind: str = "deletion",
    blank: str | int = "auto",
    target: Any = None,
    position: int | str | None = None,
    layer: int = -1,
    draws: int = 10,
    steps: int = 10,
    seed: int = 0,
    batch_size: int = 64,
) -> tuple[Floats, Floats]:
    """(share of units, value): what the model says as inputs go ("deletion") or come ("insertion"), best first.

    >>> from attnflow import demo, rollout
    >>> r = rollout(demo.model(), demo.tokenizer(), demo.SENTENCE, position="last")
    >>> x, y = curve(demo.model(), demo.tokenizer(), demo.SENTENCE, r, steps=5)
    >>> x.tolist(), y.shape
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], (6,))
    """
    if word(kind, "kind") not in ("deletion", "insertion"):
        raise SelectionError(f"kind={kind!r} is not known. Use 'deletion' or 'insertion'.")
    _check(draws, steps, batch_size)
    with undisturbed(model) as module:
        example = one_example(module, tokenizer, text)
        variants = Variants(example, goal_of(example, target, position), group(example, "token"), batch_size)
        row = _row(scores, layer, len(example.tokens), _name(scores))[variants.units]
        case = Case(row, variants, settle_blank(example, blank), draws, seed, steps)
        return deletion_curve(case) if kind == "deletion" else insertion_curve(case)


def _check(draws: int, steps: int, batch_size: int) -> None:
    for name, value in (("draws", draws), ("steps", steps), ("batch_size", batch_size)):
        at_least(value, 1, name)


def _at(function: Callable[[Case], float] | None, case: Case, blank: str | int) -> float:
    from dataclasses import replace

    assert function is not None
    return function(replace(case, blank=blank))


def _name(scores: Any) -> str:
    return scores.method if isinstance(scores, Relevance) else "scores"


def _row(scores: Scores, layer: int, count: int, name: str) -> Floats:
    """``[tokens]``: the scores of one layer."""
    if isinstance(scores, Relevance):
        if scores.scores.ndim != 2:
            raise ShapeError(
                f"{name} has scores for all output positions, and one is judged:  {name}(…, position='cls')"
            )
        at = 0 if scores.layers == ("input",) else pick_layer(layer, scores.layers)
        found = np.asarray(scores.scores[at], np.float64)
    else:
        try:
            found = np.asarray(scores, np.float64)
        except (TypeError, ValueError):
            raise ShapeError(
                f"{name} is a {type(scores).__name__}: give a Relevance, or one number per token."
            ) from None
    if found.shape != (count,):
        raise ShapeError(f"{name} has {list(found.shape)} scores, and the text has {count} tokens: give one for each.")
    return found
