from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

from attnflow.divergence import DISTANCES, jsd, kl, tvd


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def test_by_hand():
    p, q = logits([0.5, 0.5]), logits([0.75, 0.25])
    assert tvd(p, q).item() == pytest.approx(0.25)
    assert kl(p, q).item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


def test_against_scipy():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(7), size=(2, 20))
    a, b = torch.tensor(p).log(), torch.tensor(q).log()
    assert np.allclose(kl(a, b), entropy(p, q, axis=-1))
    assert np.allclose(jsd(a, b), jensenshannon(p, q, axis=-1) ** 2)
    assert np.allclose(tvd(a, b), np.abs(p - q).sum(-1) / 2)


def test_what_shares_nothing_is_as_far_as_can_be():
    p, q = torch.tensor([[0.0, -1e4]]), torch.tensor([[-1e4, 0.0]])
    assert jsd(p, q).item() == pytest.approx(math.log(2))
    assert tvd(p, q).item() == pytest.approx(1)


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_outputs_are_at_distance_zero(name):
    p = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(DISTANCES[name](p, p), torch.zeros(3), atol=1e-6)
