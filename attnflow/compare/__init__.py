"""Methods against references over a data set: rank correlations layer by layer, resumable, on one machine or many."""

from attnflow.compare.comparison import Comparison
from attnflow.compare.run import compare

__all__ = ["Comparison", "compare"]
