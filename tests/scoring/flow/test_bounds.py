import numpy as np
import pytest

from attnflow.scoring.flow.bounds import hub, known_by_hubs
from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.solver import HUB, solve
from tests.scoring.flow.networks import instances, softmax_network


@pytest.mark.parametrize("shape", [(8, 16), (9, 17), (12, 20)], ids=str)
def test_every_pair_that_a_hub_settles_is_solved_again(shape):
    steps, n = shape
    settled = 0
    for name, stack in instances(np.random.default_rng(n), *shape):
        fast = solve(stack, [steps])
        full = certify(stack, [steps]).solution
        assert (fast.units == full.units).all(), name
        settled += (fast.proofs == HUB).sum()
    assert settled > 1000


def test_the_bound_of_any_hub_is_below_the_flow():
    r = np.random.default_rng(0)
    for name, stack in instances(r, 5, 6):
        caps = integers(stack)
        exact = solve(caps, [5]).units[0]
        for height, node in zip(r.integers(1, 5, 4), r.integers(0, 6, 4), strict=True):
            assert (exact >= hub(caps, int(height), int(node), range(6)).T).all(), name


def test_a_hub_by_hand():
    # everything passes node 0 at height 2, through pipes of 0.5 above and 0.25 below
    above, below = np.zeros((2, 2, 2, 2))
    above[0], above[1, :, 0] = np.array([[1, 0], [0, 0]]), 0.5
    above[0] *= 0.5
    below[:] = 0.125
    caps = integers(np.concatenate([below, above]))
    np.testing.assert_allclose(caps.floats(hub(caps, 2, 0, [0, 1])), [[0.25, 0.25]] * 2)


def test_not_tried_where_it_cannot_help():
    r = np.random.default_rng(0)
    deep = softmax_network(r, 9, 20)
    assert known_by_hubs(integers(deep), range(20), 1) is not None
    assert known_by_hubs(integers(deep), [3], 1) is None
    assert known_by_hubs(integers(deep[:5]), range(20), 1) is None
    assert known_by_hubs(integers(softmax_network(r, 9, 20, causal=True)), range(20), 1) is None


def test_rows_chosen_from_a_deep_network():
    stack = softmax_network(np.random.default_rng(2), 10, 20)
    rows = list(range(3, 17))
    assert (solve(stack, [10], rows).units[0] == solve(stack, [10], bounds=False).units[0, rows]).all()
