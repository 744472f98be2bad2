"""What every run of a model starts from: texts as tensors, names of positions, what is explained, data sets."""

from typing import TYPE_CHECKING

from attnflow.lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__)
