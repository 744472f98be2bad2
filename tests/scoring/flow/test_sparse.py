import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from attnflow.scoring.flow.sparse import Sparse


def edges(r, nodes, count):
    """Distinct edges of a random network, cycles among them."""
    at = r.choice(nodes * nodes, count, replace=False)
    heads, tails = at // nodes, at % nodes
    kept = heads != tails
    return heads[kept], tails[kept], r.integers(1, 2**29, kept.sum()) >> r.integers(0, 29)


@pytest.mark.parametrize("nodes", [3, 8, 40])
def test_the_flow_is_that_of_scipy(nodes):
    for seed in range(60):
        r = np.random.default_rng(seed)
        heads, tails, units = edges(r, nodes, min(nodes * nodes, 4 * nodes))
        net = Sparse(heads, tails, units, nodes)
        for _ in range(3):  # the same network again: nothing of the last flow is left
            source, sink = r.choice(nodes, 2, replace=False).tolist()
            graph = csr_array((units.astype(np.int32), (heads, tails)), shape=(nodes, nodes))
            whole = int(maximum_flow(graph, source, sink).flow_value)
            assert net.flow(source, sink, 2**62) == whole
            enough = whole // 3
            assert enough <= net.flow(source, sink, enough) <= whole


def test_what_the_last_node_takes_can_be_changed():
    r = np.random.default_rng(1)
    heads, tails, units = edges(r, 12, 60)
    into = tails == 11
    net = Sparse(heads, tails, units, 12)
    for _ in range(20):
        last = r.integers(0, 2**20, into.sum())
        other = units.copy()
        other[into] = last
        assert net.flow(0, 11, 2**62, last) == Sparse(heads, tails, other, 12).flow(0, 11, 2**62)


def test_nothing_flows_where_no_path_leads():
    net = Sparse(np.array([0, 2]), np.array([1, 3]), np.array([4, 4]), 4)
    assert net.flow(0, 3, 10) == 0 and net.flow(0, 1, 10) == 4 and net.flow(0, 1, 0) == 0
