from __future__ import annotations

import math

import pytest

from attnflow.probes.rates import Mean, Rate, rates


def test_wilsons_interval_against_the_closed_form():
    n, p, z = 50, 0.8, 1.959964
    root = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((p + z * z / (2 * n) + sign * root) / (1 + z * z / n) for sign in (-1, 1))
    assert Rate("x", 40, n).interval == pytest.approx((low, high))
    assert Rate("x", 0, 10).interval[0] == pytest.approx(0, abs=1e-12)
    assert Rate("x", 10, 10).interval[1] == pytest.approx(1)


def test_nothing_has_no_share():
    assert math.isnan(Rate("x", 0, 0).share) and math.isnan(Rate("x", 0, 0).interval[0])
    assert math.isnan(Mean.of([]).mean) and math.isnan(Mean.of([float("nan")]).half_width)


def test_groups_are_counted_apart_and_none_is_in_none():
    found = rates([1, 2, 3, 4], lambda x: None if x == 4 else x % 2, lambda x: x > 1)
    assert [(r.name, r.right, r.count) for r in found] == [("all", 3, 4), ("0", 1, 1), ("1", 1, 2)]


def test_mean_leaves_out_and_counts_what_has_no_value():
    m = Mean.of([1.0, 3.0, float("nan")])
    assert (m.mean, m.std, m.count, m.missing) == (2, pytest.approx(2**0.5), 2, 1)
    assert m.half_width == pytest.approx(1.959964)
    assert Mean.of([1.0]).std == 0
