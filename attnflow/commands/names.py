"""Names that help and shell completion show, written out: asking the library for them would import torch.

``tests/commands/test_names.py`` holds each against the library's own list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

METHODS = (
    "raw", "rollout", "flow", "direct", "chefer", "gradient", "gradient-paper", "input_x_gradient",
    "integrated_gradients", "input_x_gradient-signed", "integrated_gradients-signed", "gradient_shap", "blankout",
    "blankout-signed", "blankout-mask", "blankout-unk", "blankout-pad", "blankout-delete", "blankout-mean-embedding",
)  # fmt: skip
"""As ``attnflow.scoring.registry.names()`` gives them."""
OF_ATTENTION = ("raw", "rollout", "flow", "direct", "chefer")
REFERENCES = tuple(name for name in METHODS if name not in OF_ATTENTION)
SHOWN = ("raw", "rollout", "flow")
"""Those that are shown where none are named."""
BEST = "integrated_gradients-signed"
"""What the league says to look at."""
EDGES = ("attention", "norm", "alti", "value_zeroing", "gradient")
EXPERIMENTS = ("correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter")
ALL = "all"
CORRELATIONS = ("spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson", "spearman_dense")
NAMED = ("cls", "last", "mask")
"""Positions that have a name."""
RESIDUALS = ("none", "add", "measured")
HEADS = ("mean", "max", "min")
UNITS = ("token", "word")
VERBS = ".text, .gold, .tsv, .tsv.gz or .jsonl"
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
