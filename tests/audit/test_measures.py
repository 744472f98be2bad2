"""Distances of distributions: exact at zeros, differentiable, and the two conventions of TVD."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from attnflow.audit.measures import LN2, furthest, jsd, kl, scalar_tvd, tvd


def distributions(n: int = 5) -> st.SearchStrategy[np.ndarray]:
    numbers = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1)), min_size=n, max_size=n).filter(any)
    return numbers.map(lambda x: np.array(x) / sum(x))


@settings(max_examples=60, deadline=None)
@given(distributions(), distributions())
def test_against_scipy_and_within_bounds(p, q):
    assert tvd(p, q) == pytest.approx(sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2, abs=1e-12)
    assert kl(p, q) == pytest.approx(entropy(p, q), abs=1e-12)
    assert jsd(p, q) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-9)
    assert -1e-12 <= jsd(p, q) <= LN2 + 1e-12
    assert jsd(p, q) == pytest.approx(jsd(q, p), abs=1e-12)
    assert jsd(p, q) <= furthest(p) + 1e-12


def test_zeros_are_exact():
    assert jsd([1.0, 0.0], [0.0, 1.0]) == LN2 == math.log(2)
    assert kl([0.0, 1.0], [0.0, 1.0]) == 0 and kl([0.5, 0.5], [0.0, 1.0]) == math.inf
    assert tvd([1.0, 0.0], [0.0, 1.0]) == 1


def test_gradients_are_finite_at_zeros():
    p = torch.tensor([0.0, 0.4, 0.6], requires_grad=True)
    jsd(p, torch.tensor([0.5, 0.0, 0.5])).backward()
    assert p.grad.isfinite().all()


def test_jsd_gradient_is_right():
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    z = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: jsd(z.softmax(-1), q), (z,))


def test_the_scalar_convention_is_half_of_the_total_variation():
    a, b = 0.9, 0.35
    assert scalar_tvd(a, b) == pytest.approx(tvd([a, 1 - a], [b, 1 - b]) / 2)


@settings(max_examples=40, deadline=None)
@given(distributions(), st.lists(st.booleans(), min_size=5, max_size=5))
def test_furthest_by_trying_every_corner(p, free):
    best = 0.0
    for j in np.flatnonzero(free):
        corner = np.where(free, 0.0, p)
        corner[j] += p[np.array(free)].sum()
        best = max(best, float(jsd(p, corner)))
    assert furthest(p, free) == pytest.approx(best, abs=1e-12)


def test_tensors_give_tensors_and_axes_are_kept():
    p = torch.full((2, 3, 4), 0.25)
    assert isinstance(jsd(p, p), torch.Tensor) and jsd(p, p).shape == furthest(p).shape == (2, 3)
    assert tvd(np.full((2, 4), 0.25), np.full((2, 4), 0.25)).shape == (2,)
