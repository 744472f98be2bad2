import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from attnflow.scoring.flow.rerouted import Rerouted


def layered(r, heights, n, density):
    """Edges from each node to some of one height lower, and from all of the lowest to the last node."""
    heads, tails = [], []
    for h in range(1, heights):
        i, k = np.nonzero(r.random((n, n)) < density)
        heads.append(h * n + i)
        tails.append((h - 1) * n + k)
    heads.append(np.arange(n))
    tails.append(np.full(n, heights * n))
    heads, tails = np.concatenate(heads), np.concatenate(tails)
    return heads, tails, r.integers(1, 2**24, len(heads)) >> r.integers(0, 12, len(heads))


@pytest.mark.parametrize("shape", [(2, 3, 0.9), (4, 6, 0.4), (7, 12, 0.2)], ids=str)
def test_each_flow_is_that_of_scipy_whatever_the_one_before(shape):
    heights, n, density = shape
    for seed in range(25):
        r = np.random.default_rng(seed)
        heads, tails, units = layered(r, heights, n, density)
        nodes, source = heights * n + 1, (heights - 1) * n + int(r.integers(n))
        net, into = Rerouted(heads, tails, units, nodes, source), tails == nodes - 1
        for _ in range(8):
            last = (r.integers(0, 2**24, n) >> r.integers(0, 20, n)) * (r.random(n) < 0.8)
            given = units.copy()
            given[into] = last
            graph = csr_array((given.astype(np.int32), (heads, tails)), shape=(nodes, nodes))
            whole = int(maximum_flow(graph, source, nodes - 1).flow_value)
            if r.random() < 0.5:  # what is still on its way is there for the next
                enough = int(whole * r.random())
                assert enough <= net.flow(last, enough) <= whole
            else:
                assert net.flow(last, 2**62) == whole
                assert net.left.sum() == last.sum() - whole
