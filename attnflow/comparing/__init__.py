"""Methods against references over a data set: rank correlations layer by layer, resumable, on one machine or many."""

from attnflow.comparing.comparison import Comparison

__all__ = ["Comparison"]
