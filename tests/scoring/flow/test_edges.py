import numpy as np
import pytest

from attnflow.errors import SelectionError
from attnflow.scoring.flow.certificate import cut_capacity
from attnflow.scoring.flow.edges import EdgeFlows, edge_flow
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import instances


@pytest.mark.parametrize("shape", [(1, 4), (2, 4), (3, 5), (5, 8), (4, 66)], ids=str)
def test_edge_flow_is_a_maximum_flow_with_two_extreme_cuts(shape):
    r = np.random.default_rng(shape[1])
    names = ("softmax 2", "causal", "sparse, no residual", "row sums 0.1 to 1.5", "zero rows", "ties", "one-hot")
    families = dict(instances(r, *shape))
    for name in names:
        stack = families[name]
        caps = integers(stack)
        height, n = shape
        for row, sink in r.integers(0, n, (3, 2)):
            e = edge_flow(stack, height, int(row), int(sink))
            units = e.units
            value = solve(caps, [height], [int(row)]).units[0, 0, sink]
            assert (units >= 0).all() and (units <= caps.cap).all(), name
            assert units[0, :, sink].sum() == units[-1, row].sum() == value
            assert units[0].sum() == value, "nothing ends elsewhere"
            for h in range(1, height):
                assert (units[h].sum(0) == units[h - 1].sum(1)).all(), "kept at every node"
            for side in (e.near_source, e.near_sink):
                assert side[0, sink] and not side[height, row]
                own = side[:height].copy()
                own[0] = np.arange(n) == sink
                assert cut_capacity(caps, height, row, own[None])[0] == value
            assert (e.near_sink <= e.near_source).all(), "the cut at the sink has the smaller sink side"
            again = edge_flow(stack, height, int(row), int(sink))
            assert (again.flow == e.flow).all()


def test_the_two_cuts_differ_where_the_bottleneck_is_not_unique():
    e = edge_flow(np.array([[[0.5]], [[1.0]], [[0.5]]]), 3, 0, 0)
    assert e.cut_edges("source") == [(2, 0, 0)] and e.cut_edges("sink") == [(0, 0, 0)]
    with pytest.raises(SelectionError):
        e.cut_edges("middle")


def test_many_pairs_of_one_network_have_the_flows_that_each_has_alone():
    stack = dict(instances(np.random.default_rng(3), 4, 9))["softmax 2"]
    flows = EdgeFlows(stack)
    for height, row, sink in ((4, 0, 2), (2, 3, 2), (4, 8, 2), (1, 1, 0), (3, 5, 7), (4, 0, 2)):
        one, alone = flows.pair(height, row, sink), edge_flow(stack, height, row, sink)
        assert np.array_equal(one.units, alone.units)
        assert np.array_equal(one.near_source, alone.near_source) and np.array_equal(one.near_sink, alone.near_sink)


def test_edge_flow_out_of_range():
    with pytest.raises(SelectionError, match="height=4"):
        edge_flow(np.full((3, 2, 2), 0.5), 4, 0, 0)
