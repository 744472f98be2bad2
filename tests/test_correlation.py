"""Correlations against naive loops over pairs, hand-computed values and the published formula's defects."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.correlation import METHODS, coefficients, correlate, is_constant, tie_share
from attnflow.errors import SelectionError, ShapeError
from attnflow.relevance import Relevance
from attnflow.tokens import Tokens


def coefficient(a, b, method, k=5):
    return float(coefficients(a[None], b, method, k)[0])


def average_ranks(x):
    return [sum(v < u for v in x) + (sum(v == u for v in x) + 1) / 2 for u in x]


def naive_pearson(a, b):
    ma, mb = sum(a) / len(a), sum(b) / len(b)
    up = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    return up / math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))


def naive_spearman(a, b):
    return naive_pearson(average_ranks(a), average_ranks(b))


def sign(x):
    return int(x > 0) - int(x < 0)


def naive_kendall(a, b, weight=lambda i, j: 1.0):
    up = left = right = 0.0
    for i, j in itertools.combinations(range(len(a)), 2):
        w, s, t = weight(i, j), sign(a[i] - a[j]), sign(b[i] - b[j])
        up, left, right = up + w * s * t, left + w * s * s, right + w * t * t
    return up / math.sqrt(left * right)


def naive_weighted(a, b):
    """Vigna's additive hyperbolic weighting, once by the ranks of each side (ties by the other side), averaged."""

    def one(x, y):
        order = sorted(range(len(x)), key=lambda i: (x[i], y[i]), reverse=True)
        rank = {i: r for r, i in enumerate(order)}
        return naive_kendall(a, b, lambda i, j: 1 / (rank[i] + 1) + 1 / (rank[j] + 1))

    return (one(a, b) + one(b, a)) / 2


def naive_top_k(a, b, k):
    def cut(x):
        least = sorted(x)[-k] if k < len(x) else min(x)
        return [v if v >= least else -1e9 for v in x]

    return naive_kendall(cut(a), cut(b))


ORACLES = {
    "spearman": naive_spearman,
    "kendall": naive_kendall,
    "weighted_kendall": naive_weighted,
    "top_k_kendall": lambda a, b: naive_top_k(a, b, 3),
    "pearson": naive_pearson,
}


@pytest.mark.parametrize("method", ORACLES)
@pytest.mark.parametrize("levels", [3, 1000])
def test_agrees_with_a_naive_oracle_with_and_without_ties(method, levels):
    rng = np.random.default_rng(7)
    for _ in range(25):
        a, b = rng.integers(0, levels, (2, 9)).astype(float)
        assert coefficient(a, b, method, k=3) == pytest.approx(ORACLES[method](list(a), list(b)), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_is_symmetric_bounded_and_nan_exactly_where_a_side_is_constant(pairs):
    a, b = (np.array(x, float) for x in zip(*pairs, strict=True))
    for method in ORACLES:
        there, back = coefficient(a, b, method), coefficient(b, a, method)
        assert there == pytest.approx(back, abs=1e-9, nan_ok=True)
        if is_constant(a) or is_constant(b):
            assert math.isnan(there)
        else:
            assert -1 - 1e-9 <= there <= 1 + 1e-9


def test_top_k_looks_at_the_top_alone():
    a = np.array([9.0, 8.0, 1.0, 2.0, 3.0])
    b = np.array([9.0, 8.0, 3.0, 2.0, 1.0])
    assert coefficient(a, b, "top_k_kendall", k=2) == pytest.approx(1.0)
    assert coefficient(a, b, "kendall") < 1
    assert coefficient(a, b, "top_k_kendall", k=99) == pytest.approx(coefficient(a, b, "kendall"))
    assert coefficient(a, b, "top_k_kendall", k=1) == pytest.approx(1.0)


def test_dense_formula_gives_the_defects_that_make_it_legacy():
    ramp = np.arange(10.0)
    assert coefficient(np.zeros(10), ramp, "spearman_dense") == pytest.approx(-0.727, abs=1e-3)
    tied = np.array([0.0] * 9 + [1.0])
    assert coefficient(tied, ramp, "spearman_dense") < 0 < coefficient(tied, ramp, "spearman")
    distinct = np.random.default_rng(0).permutation(10).astype(float)
    assert coefficient(distinct, ramp, "spearman_dense") == pytest.approx(coefficient(distinct, ramp, "spearman"))
    assert math.isnan(coefficient(np.ones(1), np.ones(1), "spearman_dense"))


def test_constant_vectors_give_nan_and_are_counted():
    c = correlate(np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]), [1, 2, 3])
    assert c.nan == 1 and math.isnan(c.values[0]) and c.values[1] == pytest.approx(1)
    uniform = np.full(7, 1 / 7) + np.random.default_rng(0).normal(0, 1e-17, 7)
    assert math.isnan(float(correlate(uniform, np.arange(7))))
    assert math.isnan(float(correlate([1.0], [2.0])))


def test_ties_are_counted():
    assert tie_share(np.array([1.0, 1.0, 1.0])) == 1
    assert tie_share(np.array([1.0, 2.0])) == 0
    assert tie_share(np.array([1.0])) == 0
    c = correlate([1, 1, 2, 3], [1, 2, 2, 2])
    assert c.ties[0] == pytest.approx(1 / 6) and c.reference_ties == pytest.approx(0.5)


TOKENS = Tokens(["[CLS]", "the", "key", "[SEP]"], special=[True, False, False, True])


def relevance(scores, layers):
    return Relevance(np.array(scores, float), TOKENS, layers, "rollout")


def test_special_tokens_can_be_left_out():
    a = relevance([[9, 1, 2, 8], [0, 2, 1, 9]], (0, 1))
    b = relevance([[0, 1, 2, 0]], ("input",))
    c = correlate(a, b, special_tokens=False)
    assert c.n == 2 and c.values == pytest.approx([1, -1]) and c.layers == (0, 1)
    assert correlate(a, b).n == 4
    assert correlate(a, b, layer=-1, special_tokens=False).layers == (1,)
    with pytest.raises(SelectionError, match="plain numbers do not say which positions are special"):
        correlate([1, 2], [1, 2], special_tokens=False)


def test_positions_without_a_score_are_left_out():
    c = correlate([5.0, 1.0, 2.0], [np.nan, 1.0, 2.0])
    assert c.n == 2 and float(c) == pytest.approx(1)


def test_one_output_position_is_chosen():
    full = Relevance(np.arange(16.0).reshape(1, 4, 4), TOKENS, (0,), "raw")
    assert correlate(full, [1, 2, 3, 4], position="last").n == 4
    with pytest.raises(SelectionError, match=r"4 output positions.*correlate\(scores, reference, position='cls'\)"):
        correlate(full, [1, 2, 3, 4])


def test_errors_name_what_disagrees():
    with pytest.raises(SelectionError, match="Use one of: spearman, kendall, weighted_kendall"):
        correlate([1, 2], [1, 2], "pearsonn")
    with pytest.raises(ShapeError, match="scores have 3 positions, the reference 2"):
        correlate([1, 2, 3], [1, 2])
    with pytest.raises(ShapeError, match=r"The reference has shape \(2, 2\)"):
        correlate([1, 2], [[1, 2], [3, 4]])
    with pytest.raises(ShapeError, match="cannot be compared"):
        correlate(["a", "b"], [1, 2])
    with pytest.raises(ShapeError, match="2 layers have 2 coefficients"):
        float(correlate([[1, 2], [2, 1]], [1, 2]))
    with pytest.raises(SelectionError, match="k=0"):
        correlate([1, 2], [1, 2], "top_k_kendall", k=0)


def test_repr_is_short_and_every_method_is_reachable():
    for method in METHODS:
        assert repr(correlate([1, 2, 3], [1, 2, 3], method)) == f"Correlation({method}, n=3: 1.000)"


@pytest.mark.parametrize("n", [15, 300])
@pytest.mark.parametrize("method", ["spearman", "pearson", "kendall"])
def test_many_rows_at_once_equal_scipy_one_by_one(method, n):
    from scipy import stats

    rows, ref = np.random.default_rng(1).integers(0, 9, (20, n)).astype(float), np.arange(float(n)) ** 2
    each = {"spearman": stats.spearmanr, "pearson": stats.pearsonr, "kendall": stats.kendalltau}[method]
    assert coefficients(rows, ref, method) == pytest.approx([each(row, ref).statistic for row in rows], abs=1e-12)
