"""Submodules that are imported on first use, so that ``import attnflow`` is quick and ``attnflow.audit.run`` is there.

A package that is not always needed ends with ``__getattr__ = submodules(__name__)`` (PEP 562), hidden from type
checkers, to which any attribute would exist otherwise.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def submodules(package: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package`` that imports the submodule of the name that is asked for.

    >>> submodules("attnflow")("errors").__name__
    'attnflow.errors'
    """

    def attribute(name: str) -> Any:
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
