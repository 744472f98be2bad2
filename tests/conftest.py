"""Random attention of every kind that the methods must take."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The models here are tiny: threads that wait for one another cost more than they bring, most of all beside other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts jobs in the background lets them ignore Ctrl-C, and tests send it to themselves and to programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest

from tests.probe_models import *  # noqa: F403 - the fixtures of small models that probes and commands share


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def random_attention(seed: int, layers: int, n: int, causal: bool = False, heads: int | None = None) -> np.ndarray:
    shape = (layers, n, n) if heads is None else (layers, heads, n, n)
    scores = 3 * np.random.default_rng(seed).standard_normal(shape)
    if causal:
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
    return softmax(scores)


@pytest.fixture
def attention() -> np.ndarray:
    """Four layers over five tokens."""
    return random_attention(0, 4, 5)
