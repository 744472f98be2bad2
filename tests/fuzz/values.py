"""Values that a user could pass, and values that nobody should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from tests.conftest import random_attention

MARKUP = "<img src=x onerror=alert(1)>"
GOOD = ["the key", "the key to the table", "the author talked about the book", "a dull film", "the [MASK] table"]
TEXTS = ["", " ", "the key", "the key to the table", MARKUP, "$$", "$x", "\\frac", "a\ud800", "\udcff", "a\0b",
         "é" * 40,
         "\u202eabc", "\U0001f600", "%s {0}", "../../x", "\n\r\t", "NaN", "[MASK]", "the [MASK] table"]  # fmt: skip
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2**31, 2**63, -(2**70), 10**30, 0.0, 0.5, 1.0, -0.5, 1e308, 5e-324, float("nan"),
    float("inf"), float("-inf"), 1j, b"x", object(), [], {}, (), set(), {1, 2}, [[]], [None], [1, "a"], {"a": 1},
    {"input_ids": [1]}, range(3), int, len, Path("x"), ..., np.int64(1), np.uint8(255), np.float32("nan"), np.array(3),
    np.array([]), np.array(["a"]), np.array([1, 2]), np.array([None]), np.zeros((2, 0)), np.datetime64("2020-01-01"),
    torch.tensor(1), torch.tensor([]), torch.tensor([True]), torch.zeros(2, 2), torch.ones(3, requires_grad=True),
    torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, 2).to_sparse(), torch.empty(2, device="meta"),
    "mean", "cls", "last", "none", "raw", *TEXTS,
]  # fmt: skip
odd = st.sampled_from(range(len(ODD))).map(lambda i: ODD[i])


def whole_weights(layers: int, n: int, heads: int | None, seed: int) -> np.ndarray:
    """True attention of some size."""
    return random_attention(seed, layers, n, causal=bool(seed % 2), heads=heads)


good_weights = st.builds(
    whole_weights, st.integers(1, 3), st.integers(1, 5), st.sampled_from([None, 1, 2]), st.integers(0, 9)
)


def _spoilt(weights: np.ndarray, how: str, seed: int) -> Any:
    """True attention with one thing wrong with it."""
    rng = np.random.default_rng(seed)
    at = tuple(int(rng.integers(s)) for s in weights.shape)
    out = weights.copy()
    if how in ("nan", "inf", "-inf", "1e308", "-1", "5"):
        out[at] = float(how)
        return out
    return {
        "int": lambda: np.eye(3, dtype=int)[None],
        "bool": lambda: weights > 0.5,
        "object": lambda: weights.astype(object),
        "str": lambda: weights.astype(str),
        "complex": lambda: weights + 1j,
        "list": lambda: weights.tolist(),
        "ragged": lambda: [*weights.tolist(), [[1.0]]],
        "ranks": lambda: [*weights, weights[None]],
        "tuple": lambda: tuple(weights),
        "generator": lambda: (w for w in weights),
        "batches": lambda: (np.ones((2, 1, 2, 2)) / 2, np.ones((3, 1, 2, 2)) / 2),
        "batch": lambda: tuple(torch.tensor(weights[:, None] if weights.ndim == 3 else weights)[None].transpose(0, 1)),
        "rank5": lambda: weights[None, None, None],
        "rank1": lambda: weights.ravel(),
        "empty": lambda: weights[:0],
        "flat": lambda: weights[..., :0],
        "wide": lambda: np.concatenate([weights, weights], -1),
        "tall": lambda: np.concatenate([weights, weights], -2),
        "half": lambda: weights.astype(np.float16),
        "bfloat16": lambda: torch.tensor(weights).bfloat16(),
        "grad": lambda: torch.tensor(weights, requires_grad=True),
        "small": lambda: weights * 0.5,
        "zero": lambda: weights * 0,
        "dict": lambda: {"attentions": tuple(weights)},
        "towers": lambda: {name: (torch.full((1, 2, 3, 3 + i), 1 / 3),)
                           for i, name in enumerate(["encoder_attentions", "decoder_attentions", "cross_attentions"])},
        "fortran": lambda: np.asfortranarray(weights),
        "big-endian": lambda: weights.astype(">f8"),
        "masked": lambda: np.ma.masked_array(weights),
    }[how]()  # fmt: skip


HOW = ["nan", "inf", "-inf", "1e308", "-1", "5", "int", "bool", "object", "str", "complex", "list", "ragged", "ranks",
       "tuple", "generator", "batches", "batch", "rank5", "rank1", "empty", "flat", "wide", "tall", "half", "bfloat16",
       "grad", "small", "zero", "dict", "towers", "fortran", "big-endian", "masked"]  # fmt: skip
bad_weights = st.builds(_spoilt, good_weights, st.sampled_from(HOW), st.integers(0, 99))
