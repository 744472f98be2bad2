from fractions import Fraction
from itertools import permutations

import networkx as nx
import numpy as np
import pytest

from attnflow.errors import SelectionError
from attnflow.scoring.flow.shapley import shapley
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import edges, instances, softmax_network


def naive(stack, height, row):
    """Shapley values from the definition: the mean gain over all orders of the inputs, networkx on fractions."""
    n = stack.shape[1]

    def worth(members):
        g = nx.DiGraph()
        g.add_nodes_from(["all", height * n + row])
        for a, b, c in zip(*edges(stack), strict=True):
            g.add_edge(int(a), int(b), capacity=Fraction(float(c)))
        g.add_edges_from((int(j), "all") for j in members)
        return nx.maximum_flow_value(g, height * n + row, "all")

    orders = list(permutations(range(n)))
    gains = [Fraction(0)] * n
    for order in orders:
        for k, j in enumerate(order):
            gains[j] += worth(order[: k + 1]) - worth(order[:k])
    return [float(g / len(orders)) for g in gains]


@pytest.mark.parametrize("height", [1, 2, 3])
def test_values_are_those_of_the_definition(height):
    stack = softmax_network(np.random.default_rng(height), 3, 4)
    np.testing.assert_allclose(shapley(stack, height, 1).shapley, naive(stack, height, 1), atol=1e-12)


def test_in_one_layer_flows_are_shapley_values():
    for name, stack in instances(np.random.default_rng(0), 1, 5):
        game = shapley(stack, 1, 2)
        assert game.additive, name
        np.testing.assert_allclose(game.shapley, game.flows, atol=1e-15)


def test_in_deep_networks_they_are_upper_bounds_that_share():
    for name, stack in instances(np.random.default_rng(1), 4, 6):
        game = shapley(stack, 4, 3)
        np.testing.assert_allclose(game.flows, solve(stack, [4]).scores[0, 3], atol=1e-14)
        assert (game.shapley <= game.flows + 1e-12).all(), name
        assert abs(game.shapley.sum() - game.total) < 1e-12, name
        assert game.additive == bool(np.allclose(game.shapley, game.flows, atol=1e-14, rtol=0)), name


def test_without_shared_edges_depth_does_not_matter():
    # each layer hands every token down unchanged, so each input has its own path
    stack = np.stack([np.eye(4), np.eye(4), np.full((4, 4), 0.25)])
    assert shapley(stack, 3, 0).additive


def test_a_saturated_encoder_is_far_from_it():
    stack = softmax_network(np.random.default_rng(3), 8, 6, temperature=1.0)
    game = shapley(stack, 8, 0)
    assert not game.additive and game.flows.sum() > 3 * game.total


def test_twelve_players():
    game = shapley(softmax_network(np.random.default_rng(0), 3, 12), 3, 5)
    assert abs(game.shapley.sum() - 1) < 1e-12 and (game.shapley <= game.flows + 1e-12).all()


def test_too_many_players():
    with pytest.raises(SelectionError, match="at most 14"):
        shapley(np.full((1, 15, 15), 1 / 15), 1, 0)
