"""From scores to colours: one hue for what is positive, another for what is negative, paler towards zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Okabe & Ito's blue and vermilion: told apart with any colour vision.
PLUS, MINUS = (0, 114, 178), (213, 94, 0)
STRONGEST = 0.6


def weights(scores: npt.NDArray[Any]) -> list[float]:
    """Scores as parts of the highest magnitude, in [-1, 1]; NaN counts as 0.

    >>> weights(np.array([0.2, -0.4, np.nan]))
    [0.5, -1.0, 0.0]
    """
    clean = np.nan_to_num(np.asarray(scores, np.float64))
    top = float(np.abs(clean).max()) or 1.0
    return [float(s) / top for s in clean]


def tint(weight: float) -> tuple[tuple[int, int, int], float]:
    """The hue and its opacity."""
    return (PLUS if weight >= 0 else MINUS), STRONGEST * min(1.0, abs(weight))


def blend(weight: float) -> tuple[int, int, int]:
    """The tint on white.

    >>> blend(0.0), blend(1.0)
    ((255, 255, 255), (102, 170, 209))
    """
    hue, opacity = tint(weight)
    red, green, blue = (round(255 + opacity * (c - 255)) for c in hue)
    return red, green, blue
