import networkx as nx
import numpy as np
import pytest

from attnflow.errors import SelectionError
from attnflow.scoring.flow import to_networkx
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.reference import graph, solve_networkx
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import softmax, softmax_network


def test_reference_and_export():
    stack = softmax_network(np.random.default_rng(1), 3, 4)
    assert (solve_networkx(stack, [1, 3], [0, 2]).units == solve(stack, [1, 3], [0, 2]).units).all()
    g = graph(integers(stack))
    assert g.number_of_nodes() == 16 and g.number_of_edges() == 48


def test_to_networkx_carries_flow_and_cuts():
    w = softmax(np.random.default_rng(1).standard_normal((3, 4, 4)))
    g = to_networkx(w, layer=1, position=2, target=0, tokens=list("abcd"))
    value = nx.maximum_flow_value(g, (2, 2), (0, 0))
    assert abs(g.graph["value"] - value) < 1e-12 and g.nodes[(3, 1)]["token"] == "b"
    into = sum(d["flow"] for _, _, d in g.in_edges((0, 0), data=True))
    assert abs(into - value) < 1e-12
    for mark in ("near_source", "near_sink"):
        side = nx.get_node_attributes(g, mark)
        crossing = sum(d["capacity"] for a, b, d in g.edges(data=True) if a[0] <= 2 and not side[a] and side[b])
        assert abs(crossing - value) < 1e-12
    plain = to_networkx(w)
    assert "flow" not in plain.edges[(1, 0), (0, 0)] and plain.number_of_edges() == 48
    with pytest.raises(SelectionError, match="both ends"):
        to_networkx(w, position=1)
