"""Holm's correction and the test of sign flips against the definitions, written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test, ttest_rel

from attnflow.significance import holm, of_seeds, sign_flips


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


def naive_flips(apart: list[int]) -> float:
    """The definition: every choice of signs, one after the other."""
    sums = [abs(sum(sign * d for sign, d in zip(signs, apart, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(apart))]  # fmt: skip
    return sum(one >= abs(sum(apart)) for one in sums) / len(sums)


@given(st.lists(st.integers(-5, 5), max_size=9))
def test_sign_flips_equal_the_definition(apart):
    assert sign_flips(apart) == pytest.approx(naive_flips(apart))


def test_sign_flips_of_right_and_wrong_are_the_exact_mcnemar_test():
    apart = [1] * 16 + [-1] * 5 + [0] * 40
    assert sign_flips(apart) == pytest.approx(binomtest(16, 21).pvalue)
    assert sign_flips([0, 0]) == sign_flips([]) == 1.0


def test_sign_flips_go_by_the_mean_where_ranks_would_go_the_other_way():
    """Many small gains and fewer large losses: the mean is lower, and the share of gains is not."""
    apart = np.r_[np.ones(240), np.full(100, -5), np.zeros(1436)].astype(int)
    assert apart.mean() < 0 and sign_flips(apart) < 1e-3
    assert sign_flips(np.r_[np.ones(50), np.full(10, -5)].astype(int)) == 1.0


def test_many_texts_do_not_make_up_for_seeds_that_contradict_each_other():
    """Two of five seeds gain much and three lose a little: over all texts that is a gain, and not over the seeds."""
    apart = np.zeros((5, 1000), int)
    apart[:2, :60], apart[2:, 60:70] = 1, -1
    assert sign_flips(apart.sum(0)) < 1e-6
    expected = ttest_rel([0.06, 0.06, 0, 0, 0], [0, 0, 0.01, 0.01, 0.01]).pvalue
    assert expected > 0.05 and of_seeds(apart) == pytest.approx(expected)


def test_seeds_that_agree_leave_it_to_the_texts():
    rng = np.random.default_rng(0)
    apart = (rng.random((5, 400)) < 0.06).astype(int) - (rng.random((5, 400)) < 0.02)
    assert of_seeds(apart) == sign_flips(apart.sum(0)) < 0.05
    assert of_seeds(apart[:1]) == sign_flips(apart[0])
    same = np.tile(apart[0], (3, 1))
    assert of_seeds(same) == pytest.approx(sign_flips(apart[0])) and of_seeds(np.zeros((3, 9), int)) == 1.0


def test_sign_flips_agree_with_scipy_on_many_texts():
    rng = np.random.default_rng(0)
    apart = rng.choice([-3, -1, 0, 0, 0, 1, 2], 300)
    known = permutation_test((apart,), np.mean, permutation_type="samples", n_resamples=20_000, rng=rng)
    assert sign_flips(apart) == pytest.approx(known.pvalue, abs=0.015)
