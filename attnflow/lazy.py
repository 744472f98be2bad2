"""Names that are imported on first use, so that ``import attnflow`` is quick and ``attnflow.audit.run`` is there.

A package that is not always needed ends with ``__getattr__ = on_first_use(__name__)`` (PEP 562), hidden from type
checkers, to which any attribute would exist otherwise.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def on_first_use(package: str, **homes: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package``: it imports the name that is asked for from its home, else the submodule.

    >>> attribute = on_first_use("attnflow", compare="attnflow.comparing.compare")
    >>> attribute("compare").__module__, attribute("errors").__name__
    ('attnflow.comparing.compare', 'attnflow.errors')
    """

    def attribute(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_"):
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{package}.{name}":
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return attribute
