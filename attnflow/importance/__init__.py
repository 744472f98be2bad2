"""Importance of inputs by the model's own reaction: gradients (Captum) and blank-out."""

from attnflow.importance.blankout import blankout
from attnflow.importance.gradient import gradient

__all__ = ["blankout", "gradient"]
