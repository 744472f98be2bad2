"""Attention flow (Abnar & Zuidema 2020): exact, certified, and fast.

>>> from attnflow import flow
>>> flow([[[0.0, 1.0], [1.0, 0.0]]]).scores
array([[[0.5, 0.5],
        [0.5, 0.5]]])
"""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use
from attnflow.scoring.flow.reference import to_networkx

__all__ = ["to_networkx"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
