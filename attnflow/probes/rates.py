"""Shares and means with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
_Z = 1.959964  # two-sided 95 %


@dataclass(frozen=True)
class Rate:
    """A share: ``right`` out of ``count``.

    >>> Rate("all", 90, 100)
    Rate(all: 0.900 [0.826, 0.945], n=100)
    """

    name: str
    right: float
    count: int

    @property
    def share(self) -> float:
        """The share; NaN if ``count`` is 0."""
        return self.right / self.count if self.count else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, which stays inside [0, 1] for small counts and extreme shares."""
        if not self.count:
            return float("nan"), float("nan")
        n, p = self.count, self.share
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * float(np.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)))
        return max(0.0, middle - half), min(1.0, middle + half)

    def __repr__(self) -> str:
        low, high = self.interval
        return f"Rate({self.name}: {self.share:.3f} [{low:.3f}, {high:.3f}], n={self.count})"


def rates(items: Sequence[T], group: Callable[[T], Any], right: Callable[[T], float]) -> list[Rate]:
    """One rate for all items and one for each group, in the order of their names; None is in no group."""
    groups: dict[str, list[T]] = {"all": list(items)}
    for item in items:
        name = group(item)
        if name is not None and name != "":
            groups.setdefault(str(name), []).append(item)
    names = ["all", *sorted(g for g in groups if g != "all")]
    return [Rate(name, float(sum(map(right, groups[name]))), len(groups[name])) for name in names]


@dataclass(frozen=True)
class Mean:
    """Mean and standard deviation over examples, and how well the mean is known; NaN values are left out and counted.

    >>> Mean.of([0.5, 0.7, float("nan")])
    Mean(0.60 ± 0.14, n=2, 1 without a value)
    """

    mean: float
    std: float
    count: int
    missing: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Mean:
        """From the values of all examples."""
        array: npt.NDArray[np.float64] = np.asarray(list(values), np.float64)
        kept = array[~np.isnan(array)]
        if not len(kept):
            return cls(float("nan"), float("nan"), 0, len(array))
        std = float(kept.std(ddof=1)) if len(kept) > 1 else 0.0
        return cls(float(kept.mean()), std, len(kept), len(array) - len(kept))

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the mean."""
        return _Z * self.std / float(np.sqrt(self.count)) if self.count else float("nan")

    def __repr__(self) -> str:
        missing = f", {self.missing} without a value" if self.missing else ""
        return f"Mean({self.mean:.2f} ± {self.std:.2f}, n={self.count}{missing})"
