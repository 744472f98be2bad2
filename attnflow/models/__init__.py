"""The package's own models and tokenizers, and how any model is loaded by name."""

from typing import TYPE_CHECKING

from attnflow.lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__)
