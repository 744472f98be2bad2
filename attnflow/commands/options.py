"""Options that several commands share: their help, their shell completion, and how their text is read.

Names of methods are the registry's, which needs no torch. Names that only torch could tell are written out;
``tests/commands/test_options.py`` holds each against the library's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from attnflow.errors import AttnFlowError
from attnflow.scoring import registry
from attnflow.select import NAMED

METHODS = registry.names()
OF_ATTENTION, REFERENCES = registry.names("attention"), registry.names("model")
SHOWN = registry.names("attention", shown=True)
"""Methods of attention that are shown where none are named."""
EDGES = ("attention", *registry.EDGES)
EXPERIMENTS = ("correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter")
ALL = "all"
CORRELATIONS = ("spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson", "spearman_dense")
RESIDUALS = ("none", "add", "measured")
HEADS = ("mean", "max", "min")
UNITS = ("token", "word")

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


Edges = Annotated[
    list[str] | None,
    typer.Option(
        "--edges",
        help=f"What a layer's matrix holds: {', '.join(EDGES)}; may be repeated.",
        autocompletion=one_of(EDGES),
    ),
]
"""``--edges``, for the methods that are not named with edges of their own (rollout:alti)."""
Untrained = Annotated[
    bool,
    typer.Option(
        "--untrained", help="Explain the model's answer also where its head was drawn at random when it was loaded."
    ),
]
"""``--untrained``, for a model whose saved weights lack a part."""
TextColumn = Annotated[str | None, typer.Option(help="Name of the text column (default: text or sentence).")]
TargetColumn = Annotated[
    str | None, typer.Option(help="Name of the column with the class or token to explain (default: what is predicted).")
]
Position = Annotated[
    str | None, typer.Option(help="Output position: a number, cls, last or mask.", autocompletion=one_of(NAMED))
]
Unit = Annotated[str, typer.Option(help="What one score stands for: token or word.", autocompletion=one_of(UNITS))]
Split = Annotated[str | None, typer.Option(help="The split, if DATA is the name of a dataset.")]
Limit = Annotated[int | None, typer.Option(help="Use only this many examples.")]
MaxLength = Annotated[int | None, typer.Option(help="Cut texts to this many tokens.")]
BatchSize = Annotated[int, typer.Option(help="Variants of an example per forward pass.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")]
Engine = Annotated[str, typer.Option(help="Where to compute: local, or ray for many machines.")]
Workers = Annotated[int | None, typer.Option(help="Number of workers with ray.")]
Progress = Annotated[bool, typer.Option("--progress/--no-progress", help="Show a progress bar.")]


def residual_of(value: str | None) -> float | str | None:
    """``--residual``: a number, or the name of a way.

    >>> residual_of("0.3"), residual_of("measured")
    (0.3, 'measured')
    """
    if value is None or value in RESIDUALS:
        return value
    try:
        return float(value)
    except ValueError:
        raise AttnFlowError(f"--residual {value} is not known. Use a number, none, add or measured.") from None


def position_of(value: str | None, words: bool = False) -> int | str | None:
    """``--position``: a number or the name of one; with ``words``, for one text, also a word of it.

    >>> position_of("-1"), position_of("mask"), position_of("bank", words=True)
    (-1, 'mask', 'bank')
    """
    if value is None or value in NAMED:
        return value
    try:
        return int(value)
    except ValueError:
        if words:
            return value
        raise AttnFlowError(f"--position {value} is not known. Use a number, cls, last or mask.") from None


def listed(value: str) -> list[str]:
    """Names separated by commas.

    >>> listed("raw, flow")
    ['raw', 'flow']
    """
    return [part.strip() for part in value.split(",") if part.strip()]


def numbers_of(option: str, value: str, number: Callable[[str], Any] = int, such_as: str = "0,5 or -1") -> list[Any]:
    """Numbers separated by commas; ``such_as`` shows in the error how they are written.

    >>> numbers_of("--layers", "0,-1"), numbers_of("--penalties", "0,0.5", float)
    ([0, -1], [0.0, 0.5])
    """
    try:
        return [number(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"{option} {value} is not known. Use numbers: {such_as}.") from None
