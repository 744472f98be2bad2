"""Which method to believe for a model and data: the league of all methods over all measures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from attnflow.comparing.plan import identity
from attnflow.comparing.runs import Run, check_engine
from attnflow.errors import InputError
from attnflow.faithfulness.league import League
from attnflow.faithfulness.plan import BLANKS, make_plan
from attnflow.faithfulness.tasks import task_rows
from attnflow.inputs.datasets import Data, Rows, open_data
from attnflow.inputs.running import unpack
from attnflow.inputs.untrained import accepting, check_trained
from attnflow.numbers import at_least, seed_of, truths
from attnflow.scoring.registry import Spec


def rank(
    model: Any,
    tokenizer: Any = None,
    data: Any = None,
    *,
    methods: Spec | None = None,
    measures: str | Sequence[str] | None = None,
    blank: str | int | Sequence[str | int] = BLANKS,
    task: str | None = None,
    layers: int | Sequence[int] | None = -1,
    position: int | str | None = None,
    unit: str = "token",
    draws: int = 10,
    steps: int = 10,
    randomised: int = 16,
    text_column: str | None = None,
    target_column: str | None = None,
    truth_column: str | None = None,
    split: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 64,
    on_error: str = "raise",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    show_progress: bool = False,
    engine: str = "local",
    workers: int | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    untrained: bool = False,
) -> League:
    """Rank methods by measures of faithfulness over a data set, beside a random ranking.

    Each text is scored by every method; then units are blanked, by two kinds of blanks at least, and the measures tell
    how well each score foretold what the model loses. The same blanked text is run once, whatever the number of
    methods and measures that ask for it. :meth:`League.verdict` says which method to use and how sure that is.

    Args:
        model, tokenizer: a classifier, a masked or a causal language model, as everywhere; the model may be a name or
            folder.
        data: as in :func:`attnflow.compare`; None with a ``task`` that has its own.
        methods: names of :func:`attnflow.methods`, or a dict of options or functions as in :func:`attnflow.compare`. A
            random ranking, the length of the tokens and raw attention of the last layer are always there.
        measures: names of :func:`attnflow.faithfulness.measures`; by default comprehensiveness, sufficiency, deletion,
            insertion and leave_one_out, and where the truth is known those that need it.
        blank: at least two kinds of blanks, each as in :func:`attnflow.blankout`.
        task: "verb-number": which method points to the subject; ``data`` are then examples of
            :mod:`attnflow.probes.data`, by default sentences of the package's own grammar, of which those count
            that the model gets right.
        layers: the layers at which attention methods are read; the last by default, None for all.
        position, unit, text_column, target_column, split, streaming, limit, max_length, on_error, out, resume,
            show_progress, engine, workers: as in :func:`attnflow.compare`.
        draws: how often ties are broken at random, at least 10.
        steps: steps of the deletion and insertion curves.
        randomised: the measure "randomisation" is computed for this many examples, from the first on.
        truth_column: the column with what must matter: a word of the text, the number of a word, or several of them.
        batch_size: the largest number of variants of an example per forward pass.
        bootstrap, seed: resamples for the intervals; the seed also decides how ties are broken.
        untrained: True ranks also where the model's head was drawn at random when it was loaded.

    >>> from attnflow import demo
    >>> league = rank(demo.model(), demo.tokenizer(), ["the key to the doors", "the author of the books"],
    ...               methods=["rollout", "gradient"], measures="comprehensiveness")
    >>> league
    League(2 examples × 5 methods × 1 measures)
    """
    check_engine(engine, workers)
    truths(streaming=streaming, resume=resume, show_progress=show_progress, untrained=untrained)
    bootstrap, seed = at_least(bootstrap, 0, "bootstrap"), seed_of(seed)
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    rest: dict[str, Any] = {"position": position, "unit": unit, "draws": draws, "steps": steps, "seed": seed}
    rest |= {"randomised": randomised, "max_length": max_length, "batch_size": batch_size, "on_error": on_error}
    rest["untrained"] = untrained
    plan = make_plan(methods, measures, blank, layers, task is not None or truth_column is not None, **rest)
    columns: dict[str, Any] = {"text_column": text_column, "target_column": target_column, "truth_column": truth_column}
    known = identity(model, tokenizer, out is not None)
    loaded, words = _loaded(model, tokenizer)
    with accepting(untrained):
        check_trained(loaded, "Ranking")
    rows: Data | Rows
    if task is not None:
        rows, note = task_rows(task, loaded, words, data, limit, seed)
        columns |= {"task": task, "examples": note}
    elif data is None:
        raise InputError(
            "data is None: give texts, a datasets.Dataset or a file, or a task with its own:  task='verb-number'"
        )
    else:
        rows = open_data(data, split=split, streaming=streaming, limit=limit, **columns)
    plan.check(loaded, words, rows)
    run = Run(plan, model if engine == "ray" else loaded, words, rows, {"model": known, **plan.settings(), **columns})
    table, costs = run.go(out, resume, show_progress=show_progress, engine=engine, workers=workers)
    return League(table, run.settings, costs, bootstrap, seed)


def _loaded(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """A model given by name is loaded at once: what it cannot do is then known before anything runs."""
    if not isinstance(model, str):
        return unpack(model, tokenizer)
    from attnflow.models.loading import load

    loaded, own = load(model)
    return loaded, own if tokenizer is None else tokenizer
