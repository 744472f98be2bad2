"""Methods against references over a data set: the layer-wise correlations of Abnar & Zuidema (2020), Tables 1–3."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from attnflow.comparing.comparison import Comparison
from attnflow.comparing.plan import identity, make_plan
from attnflow.comparing.runs import Run, check_engine
from attnflow.errors import InputError
from attnflow.inputs.datasets import open_data
from attnflow.inputs.running import arguments
from attnflow.numbers import at_least, seed_of, truths
from attnflow.scoring.registry import Spec, names


def compare(
    model: Any,
    tokenizer: Any = None,
    dataset: Any = None,
    *,
    methods: Spec | None = None,
    references: Spec | None = None,
    correlation: str | Sequence[str] = "spearman",
    layers: int | Sequence[int] | None = None,
    position: int | str | None = None,
    special_tokens: bool | None = None,
    unit: str = "token",
    k: int = 5,
    text_column: str | None = None,
    target_column: str | None = None,
    split: str | None = None,
    streaming: bool = False,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    on_error: str = "raise",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    show_progress: bool = False,
    engine: str = "local",
    workers: int | None = None,
    bootstrap: int = 1000,
    seed: int = 0,
    untrained: bool = False,
) -> Comparison:
    """The rank correlation of each attention method with each reference, layer by layer, over a data set.

    For each example the model is run once for its attention; raw attention, rollout and flow are read at the
    position that is explained, and correlated over the input positions with gradients and blank-out
    (Abnar & Zuidema 2020, Tables 1–3; Jain & Wallace 2019, Algorithm 1; Neely et al. 2022).

    Args:
        model, tokenizer: as everywhere; the model may be a name or folder.
        dataset: a list of texts, a ``datasets.Dataset`` (also streaming), the name of one, or a file (.csv, .tsv,
            .json, .jsonl, .parquet, .txt).
        methods: methods that need attention, by their names in :func:`attnflow.methods` (by default raw attention,
            rollout and flow); or a dict of options or functions:
            ``{"rollout 0.2": {"method": "rollout", "residual": 0.2}, "mine": my_function}``.
        references: methods that need the model, by their names (by default gradient and blank-out); or a dict as for
            ``methods``.
        correlation: one or several of "spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson" and the
            legacy "spearman_dense"; see :func:`attnflow.correlate`.
        layers: only these, by the model's own numbers (negative ones count from the top); None for all.
        position: the output position that is explained and whose attention is read; by default the mask, the last
            position of a causal model, or [CLS].
        special_tokens: True with, False without [CLS] and its like; None records both.
        unit: "token" or "word".
        k: for "top_k_kendall".
        text_column, target_column, split, streaming, limit: which data; see :func:`attnflow.inputs.datasets.open_data`.
            The target is the class or token that is explained; without one, what the model predicts.
        max_length: cut texts to this many tokens; without it, a text that is too long is an error.
        batch_size: the largest number of variants of an example per forward pass.
        on_error: "raise", or "skip" to note examples that cannot be scored in ``failed``.
        out: a folder for the records, written as they are made. A run killed at any moment goes on with
            ``resume=True``, which refuses to mix settings.
        show_progress: show a bar with rate and remaining time.
        engine: "local", or "ray" for many machines (``pip install "attnflow[ray]"``), with the same records.
        workers: the number of workers with Ray; by default one for every two processors.
        bootstrap, seed: resamples for the confidence intervals.
        untrained: True compares also where the model's head was drawn at random when it was loaded.

    >>> from attnflow import demo
    >>> c = compare(demo.model(), demo.tokenizer(), ["the key to the doors", "the author of the books"],
    ...             references="blankout", layers=[0, -1])
    >>> c
    Comparison(2 examples × 3 methods × 1 references × 2 layers)
    >>> list(c.to_frame().columns)[5:]
    ['mean', 'std', 'low', 'high', 'n', 'nan', 'ties']
    """
    check_engine(engine, workers)
    if dataset is None:
        raise InputError(
            "dataset is None: give texts, a datasets.Dataset or a file:  compare(model, tokenizer, ['a text', 'more'])"
        )
    truths(streaming=streaming, resume=resume, show_progress=show_progress, untrained=untrained)
    bootstrap, seed = at_least(bootstrap, 0, "bootstrap"), seed_of(seed)
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(model, str):  # a name is loaded later, by each worker
        model, tokenizer, _ = arguments(model, tokenizer, None, "compare")
    rest: dict[str, Any] = {"position": position, "unit": unit, "k": k, "max_length": max_length}
    plan = make_plan(
        names("attention", shown=True) if methods is None else methods,
        names("model", shown=True) if references is None else references,
        correlation,
        special_tokens,
        layers,
        batch_size=batch_size,
        on_error=on_error,
        untrained=untrained,
        **rest,
    )
    columns: dict[str, Any] = {"text_column": text_column, "target_column": target_column}
    data = open_data(dataset, split=split, streaming=streaming, limit=limit, **columns)
    settings = {"model": identity(model, tokenizer, out is not None), **plan.settings(), **columns}
    run = Run(plan, model, tokenizer, data, settings)
    table, costs = run.go(out, resume, show_progress=show_progress, engine=engine, workers=workers)
    return Comparison(table, run.settings, costs, bootstrap, seed)
