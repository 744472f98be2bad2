"""The registry of experiments: what each asks, whether it trains, and which options of a run it takes.

An experiment enters by the decorator :func:`experiment` above its function, and by the line in
``attnflow/audit/__init__.py`` that imports it. The runner, the report and the command line read the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from attnflow.audit.finding import Finding
from attnflow.errors import SelectionError

ALL = "all"
Options = Callable[[Mapping[str, Any], Mapping[str, Finding]], dict[str, Any]]
"""(options of the run, findings so far) → the keyword arguments of an experiment."""
_Function = TypeVar("_Function", bound=Callable[..., Finding])


@dataclass(frozen=True)
class Experiment:
    """One experiment of the debate.

    Attributes:
        name: the name of its function.
        number: its number in its paper, by which a report is ordered.
        question: what it asks, as the report puts it.
        trains: False: it takes a model, its tokenizer and texts; True: a factory of models and ``Splits``.
        function: what runs it.
        options: which of a run's options it takes.
    """

    name: str
    number: str
    question: str
    trains: bool
    function: Callable[..., Finding]
    options: Options


_REGISTRY: dict[str, Experiment] = {}


def takes(*names: str) -> Options:
    """The options of the run that have these names, as they are."""
    return lambda run, findings: {name: run[name] for name in names if name in run}


def experiment(
    number: str, question: str, *, trains: bool, options: Options | None = None
) -> Callable[[_Function], _Function]:
    """Enter a function into the registry; the function stays as it is."""

    def enter(function: _Function) -> _Function:
        name = function.__name__
        _REGISTRY[name] = Experiment(name, number, question, trains, function, options or takes())
        return function

    return enter


def experiments() -> dict[str, Experiment]:
    """All experiments by name: first those that read a model (Jain & Wallace 2019), then those that train.

    >>> list(experiments())
    ['correlation', 'permutation', 'adversary', 'uniform', 'seeds', 'guide', 'imposter']
    """
    return dict(sorted(_REGISTRY.items(), key=lambda item: (item[1].trains, item[1].number)))


def named(names: str | tuple[str, ...] | list[str]) -> list[Experiment]:
    """The experiments of these names, in their order; all of them for "all".

    >>> [e.name for e in named(["uniform", "adversary"])]
    ['adversary', 'uniform']
    """
    known = experiments()
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in (*known, ALL):
            raise SelectionError(f"{name!r} is no experiment. Use one of: {', '.join((*known, ALL))}.")
    return [e for e in known.values() if e.name in wanted or ALL in wanted]
