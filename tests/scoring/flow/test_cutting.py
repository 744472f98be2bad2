import numpy as np

from attnflow.scoring.flow.cutting import Cutting
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.interval import bracket
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import instances, softmax_network


def test_the_flow_of_every_family_lies_between_the_bounds():
    cuts = 0
    for name, stack in instances(np.random.default_rng(4), 10, 24):
        caps = integers(np.ascontiguousarray(stack))
        exact = solve(caps, [10], bounds=False).units[0]
        for causal in {False, caps.is_causal()}:
            for t in (23, 11):
                cutting = Cutting(caps, t, causal, 3)
                loose = int(caps.rowsum[-1, t])
                for j in range(0, t if causal else 24, 3):
                    if j == t:
                        continue
                    lower, upper = cutting.bounds(j, loose)
                    assert lower <= exact[t, j] <= upper, (name, causal, t, j)
                    if upper < loose:
                        cuts += 1
                        assert upper - lower <= 10 * 24**2 * 2.0 ** (caps.bits - 29), (name, causal, t, j)
    assert cuts > 50


def test_a_token_that_few_look_at_is_settled_where_the_cut_lies():
    stack = softmax_network(np.random.default_rng(3), 14, 60, 1.0, causal=True)
    off = np.arange(60) > 10
    stack[1:, off, 10] *= 0.01  # much may enter at the lowest step alone
    caps = integers(stack)
    exact = int(solve(caps, [14], [59], bounds=False).units[0, 0, 10])
    ends = int(min(caps.rowsum[-1, 59], caps.column_sums()[10]))
    assert ends - exact > 0.01 * 2.0**caps.bits
    lower, upper = Cutting(caps.view(10, 60), 49, True, 6).bounds(0, ends)
    assert lower <= exact <= upper and upper - lower < 1e-4 * 2.0**caps.bits


def test_intervals_may_come_from_few_edges(monkeypatch):
    monkeypatch.setattr("attnflow.scoring.flow.interval._FAR", (6, 2))
    monkeypatch.setattr("attnflow.scoring.flow.interval._THIN", ((1, 100), (2, 100)))
    settled = 0
    for name, stack in instances(np.random.default_rng(3), 12, 26):
        stack = np.ascontiguousarray(stack)
        exact = solve(stack, [12], bounds=False).scores[0]
        for rows in ([25], [3, 17]):
            lower, upper, _ = bracket(stack, 1e-3, [12], rows)
            assert (lower.scores[0] <= exact[rows] + 1e-15).all() and (exact[rows] <= upper[0] + 1e-15).all(), name
            assert (upper[0] - lower.scores[0] <= 1e-3 + 1e-12).all(), name
            settled += lower.proof_counts().get("flow and cut among few edges, within the tolerance", 0)
    assert settled > 0
