"""What every run of a model starts from: texts as tensors, names of positions, what is explained, data sets."""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
