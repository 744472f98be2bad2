"""Names that help and shell completion show.

Those of methods are the registry's, which needs no torch. Others are written out, because asking the library for them
would import torch; ``tests/commands/test_names.py`` holds each against the library's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attnflow.scoring import registry

METHODS = registry.names()
OF_ATTENTION, REFERENCES = registry.names("attention"), registry.names("model")
SHOWN = registry.names("attention", shown=True)
"""Those that are shown where none are named."""
EDGES = ("attention", *registry.EDGES)
EXPERIMENTS = ("correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter")
ALL = "all"
CORRELATIONS = ("spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson", "spearman_dense")
NAMED = ("cls", "last", "mask")
"""Positions that have a name."""
RESIDUALS = ("none", "add", "measured")
HEADS = ("mean", "max", "min")
UNITS = ("token", "word")
VERBS = ".text, .gold, .tab, .tsv, .tsv.gz or .jsonl"
"""Endings of the files that the verb-number probe reads."""

Complete = Callable[[str], list[str]]


def one_of(names: Sequence[str]) -> Complete:
    """Shell completion of one name."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def some_of(names: Sequence[str]) -> Complete:
    """Shell completion of names separated by commas.

    >>> some_of(["raw", "rollout"])("flow,ro")
    ['flow,rollout']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def model_types(incomplete: str) -> list[str]:
    """Shell completion of model types, from the list that the package ships."""
    import json
    from importlib.resources import files

    known = json.loads(files("attnflow.models").joinpath("families.json").read_text(encoding="utf-8"))
    return [name for name in known["types"] if name.startswith(incomplete)]
