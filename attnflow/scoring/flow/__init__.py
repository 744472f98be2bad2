"""Attention flow (Abnar & Zuidema 2020): exact, certified, and fast.

>>> from attnflow import flow
>>> flow([[[0.0, 1.0], [1.0, 0.0]]]).scores
array([[[0.5, 0.5],
        [0.5, 0.5]]])
"""

from attnflow.scoring.flow.reference import to_networkx

__all__ = ["to_networkx"]
