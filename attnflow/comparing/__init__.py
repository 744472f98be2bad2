"""Methods against references over a data set: rank correlations layer by layer, resumable, on one machine or many."""

from typing import TYPE_CHECKING

from attnflow.comparing.comparison import Comparison
from attnflow.lazy import on_first_use

__all__ = ["Comparison"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
