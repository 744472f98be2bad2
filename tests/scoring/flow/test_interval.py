import numpy as np
import pytest

from attnflow.scoring.flow.interval import bracket
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import instances


@pytest.mark.parametrize("tolerance", [1e-9, 1e-3, 0.2])
def test_interval_holds_on_all_families(tolerance):
    for name, stack in instances(np.random.default_rng(2), 4, 7):
        exact = solve(stack).scores
        lower, upper, _ = bracket(stack, tolerance)
        assert (lower.scores <= exact + 1e-15).all() and (exact <= upper + 1e-15).all(), name
        assert (upper - lower.scores <= tolerance + 1e-12).all(), name
