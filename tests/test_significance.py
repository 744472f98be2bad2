"""Holm's correction and McNemar's exact test against the definitions, written out."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnflow.significance import holm, mcnemar


def naive(p_values):
    """Step down: the smallest p times m, the next times m − 1, …, none below the one before it."""
    left = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out, before = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(left):
        before = max(before, min(1.0, (len(p_values) - rank) * p_values[i]))
        out[i] = before
    return out


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_the_definition(p_values):
    np.testing.assert_allclose(holm(p_values), naive(p_values), atol=1e-15)


def test_holm_leaves_missing_values_out():
    found = holm([0.01, float("nan"), 0.04])
    assert found[0] == 0.02 and math.isnan(found[1]) and found[2] == 0.04


def test_mcnemar_counts_only_where_the_models_differ():
    one, two = [True] * 6 + [False] * 4, [False] * 6 + [False] * 4
    assert mcnemar(one, two) == (6, 0, 2 * 0.5**6)
    assert mcnemar(one, one) == (0, 0, 1.0)
