"""The image that a vision model looked at, and the grid of its patches."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import ShapeError
from attnflow.tokens import Tokens


def pixels(image: Any) -> npt.NDArray[np.uint8]:
    """``[height, width, 3]`` bytes of a PIL image or an array, channels first or last.

    Numbers that are no bytes are stretched from their lowest to their highest: those of a model are normalised.
    """
    array = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3):
        raise ShapeError(f"An image of shape {array.shape} is neither [h, w], [h, w, 3] nor [3, h, w].")
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        array = ((array - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))


def patches(tokens: Tokens, grid: tuple[int, int] | None = None) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Rows and columns of the patches, and the input position of each in reading order.

    Without ``grid`` they are read from the names ("patch 1,2") that :func:`attnflow.capture` gives, else a square.

    >>> patches(Tokens(["[CLS]", "patch 0,0", "patch 0,1"], special=[True, False, False]))
    ((1, 2), (1, 2))
    """
    where = tuple(j for j, special in enumerate(tokens.special) if not special)
    rows, columns = grid or _named(tokens, where) or (int(np.sqrt(len(where))),) * 2
    if rows * columns != len(where):
        raise ShapeError(
            f"A grid of {rows} × {columns} has {rows * columns} patches, but {len(where)} tokens are not special. "
            "Give the rows and columns:  flow_graph(attention, image=…, grid=(rows, columns))"
        )
    return (rows, columns), where


def _named(tokens: Tokens, where: tuple[int, ...]) -> tuple[int, int] | None:
    last = re.fullmatch(r"patch (\d+),(\d+)", tokens[where[-1]]) if where else None
    return (int(last[1]) + 1, int(last[2]) + 1) if last else None
