"""The command line: one file per command."""

from typing import TYPE_CHECKING

from attnflow.lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__)
