"""The two tasks on which attention flow was introduced: verb number and pronoun resolution.

``attnflow.probes.verb_number``  does the model know the number of the verb, and which words did it draw on?
``attnflow.probes.pronouns``     which of two referents does the model choose, and to which does its attention point?
``attnflow.probes.data``         examples from files and from ``datasets``
``attnflow.probes.grammar``      examples that the package makes itself
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("data", "grammar", "pronouns", "verb_number")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"attnflow.probes.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
