"""The package's own models and tokenizers, and how any model is loaded by name."""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
