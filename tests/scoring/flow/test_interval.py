import warnings

import numpy as np
import pytest

from attnflow import Attention, flow
from attnflow.errors import AttnFlowError, AttnFlowWarning
from attnflow.scoring.flow.draw import Draw, heights_of
from attnflow.scoring.flow.integers import Layers, integers
from attnflow.scoring.flow.interval import bracket
from attnflow.scoring.flow.room import check_room, free_bytes
from attnflow.scoring.flow.solver import WIDE, solve
from attnflow.scoring.flow.thin import Thin
from attnflow.scoring.network import Step, network
from tests.scoring.flow.networks import instances, softmax_network


@pytest.mark.parametrize("tolerance", [1e-9, 1e-3, 0.2])
def test_interval_holds_on_all_families(tolerance):
    for name, stack in instances(np.random.default_rng(2), 4, 7):
        exact = solve(stack).scores
        lower, upper, _ = bracket(stack, tolerance)
        assert (lower.scores <= exact + 1e-15).all() and (exact <= upper + 1e-15).all(), name
        assert (upper - lower.scores <= tolerance + 1e-12).all(), name


def narrowed(stack, rows, tolerance, exact):
    lower, upper, _ = bracket(stack, tolerance, [len(stack)], rows)
    assert (lower.scores[0] <= exact + 1e-15).all() and (exact <= upper[0] + 1e-15).all()
    assert (upper[0] - lower.scores[0] <= tolerance + 1e-12).all()
    return lower.proof_counts()


@pytest.mark.parametrize("near", [0, 384])
def test_interval_of_few_outputs_of_a_deep_network(monkeypatch, near):
    monkeypatch.setattr("attnflow.scoring.flow.interval._THIN", ((24, near), (96, near)))
    thinned = 0
    for _, stack in instances(np.random.default_rng(3), 10, 26):
        stack = np.ascontiguousarray(stack)
        exact = solve(stack, [10], bounds=False).scores[0]
        for rows in ([25], [3, 17]):
            proofs = narrowed(stack, rows, 1e-3, exact[rows])
            thinned += proofs.get("flow in a thinned network, within the tolerance", 0)
    assert (thinned > 0) == (near == 0)


def test_an_interval_stays_wide_where_the_search_does_not_fit_and_still_holds(monkeypatch):
    monkeypatch.setattr("attnflow.scoring.flow.interval.free_bytes", lambda: 8 * 10 * 20**2 * 4)  # 20 tokens fit
    wide = 0
    for name, stack in instances(np.random.default_rng(3), 10, 26):
        stack = np.ascontiguousarray(stack)
        exact = solve(stack, [10], [25], bounds=False).scores
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            lower, upper, _ = bracket(stack, 1e-3, [10], [25], threads=1)
        assert (lower.scores <= exact + 1e-15).all() and (exact <= upper + 1e-15).all(), name
        open_ = upper - lower.scores > 1e-3 + 1e-12
        assert (open_ == (lower.proofs == WIDE)).all(), name
        if "causal" in name:
            assert not open_[..., 6:].any()  # a window of 20 tokens or fewer
        words = [str(w.message) for w in said if issubclass(w.category, AttnFlowWarning)]
        start = f"{open_.sum()} of 26 flows have an interval wider than 0.001"
        assert len(words) == open_.any() and all(w.startswith(start) for w in words)
        wide += int(open_.sum())
    assert wide > 0


def test_a_thinned_network_carries_no_more_than_the_whole():
    for name, stack in instances(np.random.default_rng(4), 11, 24):
        caps = integers(np.ascontiguousarray(stack))
        exact = solve(caps, [11], bounds=False).units[0]
        for causal in {False, caps.is_causal()}:
            sinks = np.arange(20)
            thin = Thin(caps, 21, sinks, causal, 3)
            assert all(thin.lower(j) <= exact[21, j] for j in sinks.tolist()), (name, causal)
            assert all(thin.lower(j, 2) <= exact[21, j] for j in sinks.tolist()), (name, causal)
            assert 1 > thin.left_out(2) >= thin.left_out(3)


def test_a_thinned_network_finds_all_of_a_flow_that_the_ends_bound():
    stack = softmax_network(np.random.default_rng(5), 16, 64, 1.5, causal=True)
    caps = integers(stack)
    exact = solve(caps, [16], [63]).units[0, 0]
    found = Thin(caps, 63, np.arange(20), True, 8)
    assert max(exact[j] - found.lower(j) for j in range(20)) < 1e-3 * 2.0**caps.bits


@pytest.mark.parametrize("shape", [(9, 24), (11, 26), (24, 25)], ids=str)
def test_no_drawn_flow_exceeds_the_exact_one(shape):
    steps, n = shape
    for name, stack in instances(np.random.default_rng(steps), steps, n):
        caps = integers(np.ascontiguousarray(stack))
        exact = solve(caps, [steps], bounds=False).units[0]
        for causal in {False, caps.is_causal()}:
            for t in (n - 1, n // 2):
                sinks = np.array([j for j in range(t if causal else n) if j != t])
                loose = np.full(len(sinks), caps.rowsum[-1, t])  # the tighter the upper bound, the less is gathered
                for upper in (loose, exact[t, sinks]):
                    found = Draw(caps, t, sinks, causal, 4).lower(upper)
                    more = Draw(caps, t, sinks, causal, 4, 12).lower(upper)
                    assert (found <= more).all() and (more <= exact[t, sinks]).all(), (name, causal, t)


def test_a_drawn_flow_in_parts_is_that_of_one_part(monkeypatch):
    caps = integers(softmax_network(np.random.default_rng(8), 16, 40, 1.5, causal=True))
    sinks, upper = np.arange(3, 33), np.full(30, caps.rowsum[-1, 39])
    whole = Draw(caps, 39, sinks, True, 12).lower(upper)
    monkeypatch.setattr("attnflow.scoring.flow.draw._BATCH", 7)
    apart = Draw(caps, 39, sinks, True, 12).lower(upper) - whole
    assert abs(apart).max() < 1e-6 * 2.0**caps.bits  # products of matrices are summed in another order


def test_what_few_edges_leave_open_is_drawn_among_more_of_them():
    caps = integers(softmax_network(np.random.default_rng(8), 16, 40, 1.5, causal=True))
    sinks, upper = np.arange(3, 33), np.full(30, caps.rowsum[-1, 39])
    few, many = (Draw(caps, 39, sinks, True, keep).lower(upper) for keep in (2, 9))
    assert (few < many).any()
    both, whole = Draw(caps, 39, sinks, True, 2, 9).lower(upper), Draw(caps, 39, sinks, True, 40).lower(upper)
    assert (both >= np.maximum(few, many)).all() and (both <= whole).all()
    slack = int(np.median(upper - few))
    settled, found = upper - few <= slack, Draw(caps, 39, sinks, True, 2, 9).lower(upper, slack)
    assert settled.any() and (upper - found <= slack)[settled | (upper - many <= slack)].all()


def test_a_token_that_few_others_look_at_is_reached_by_whole_columns():
    stack = softmax_network(np.random.default_rng(3), 20, 60, 1.0, causal=True)
    off = ~np.eye(60, dtype=bool)
    stack[:, off[10], 10] *= np.where(np.arange(60)[off[10]] > 10, 0.02, 1)  # no edge into it is among the largest
    caps = integers(stack)
    upper = solve(caps, [20], [59], bounds=False).units[0, 0, 5:11]
    few, whole = (Draw(caps, 59, np.arange(5, 11), True, keep).lower(upper) for keep in (3, 60))
    draw = Draw(caps, 59, np.arange(5, 11), True, 2, 3)
    found = draw.lower(upper)
    assert draw.whole[10] and (few < found).any() and (found <= whole).all()
    for step in range(draw.parts.search, 19):
        edges = np.concatenate([np.stack([e.row, e.column]) for part in draw.found for e in part[step]], 1)
        assert len(np.unique(edges, axis=1).T) == len(edges.T)  # no edge is there twice


def test_a_search_for_a_drawn_flow_ends_within_the_slack():
    caps = integers(softmax_network(np.random.default_rng(8), 16, 40, 1.5, causal=True))
    exact = solve(caps, [16], [39], bounds=False).units[0, 0, 3:33]
    draw = Draw(caps, 39, np.arange(3, 33), True, 12)
    whole = draw.lower(exact)
    for slack in (int(0.02 * 2.0**caps.bits), int(0.3 * 2.0**caps.bits)):
        found = draw.lower(exact, slack)
        reached = whole >= exact - slack
        assert (found <= whole).all() and (found[reached] >= exact[reached] - slack).all()
        assert (found[~reached] < exact[~reached] - slack).all()
    assert reached.any()


def test_a_drawn_flow_is_most_of_a_flow_that_the_ends_bound():
    caps = integers(softmax_network(np.random.default_rng(5), 20, 128, 1.0, causal=True))
    exact = solve(caps, [20], [127]).units[0, 0]
    sinks = np.arange(40)
    found = Draw(caps, 127, sinks, True, 24).lower(exact[sinks])
    assert (found > 0.8 * exact[sinks]).all()  # all of it takes more tokens than a test has time for


def test_a_drawn_flow_over_narrow_own_edges_keeps_to_them():
    steps, n = 12, 4  # all paths from 3 to 0 pass tokens 1 and 2, whose own edges hold a hundredth
    stack = np.zeros((steps, n, n))
    stack[:, 0, 0] = stack[:, 3, 3] = 0.5
    stack[:, 1, 1] = stack[:, 2, 2] = 0.01
    stack[:, 3, 2] = stack[:, 3, 1] = stack[:, 2, 1] = stack[:, 1, 0] = stack[:, 2, 0] = 0.25
    caps = integers(stack)
    exact = solve(caps, [steps], bounds=False).units[0, 3, :3]
    assert (Draw(caps, 3, np.arange(3), True, 4).lower(exact) <= exact).all()


def test_the_parts_of_a_drawn_flow_cover_all_steps():
    for steps in range(9, 60):
        h = heights_of(steps)
        assert 3 == h.gather < h.low < h.high < h.search <= steps - 3


def test_intervals_may_be_drawn(monkeypatch):
    monkeypatch.setattr("attnflow.scoring.flow.interval._DRAW", (24, 0))
    monkeypatch.setattr("attnflow.scoring.flow.interval._MANY", 1)
    drawn = 0
    for _, stack in instances(np.random.default_rng(3), 12, 26):
        stack = np.ascontiguousarray(stack)
        exact = solve(stack, [12], bounds=False).scores[0]
        for rows in ([25], [3, 17]):
            drawn += narrowed(stack, rows, 1e-3, exact[rows]).get("drawn flow, within the tolerance", 0)
    assert drawn > 0


def test_layers_are_read_as_the_whole_stack_is():
    weights = softmax_network(np.random.default_rng(6), 10, 30, 2.0, causal=True)
    for given in (weights, weights.astype(np.float32)):
        net = network(Attention.of(given, sinks="renormalise"))
        assert net.causal
        layers, stack = Layers(net), net.stack()
        for start, stop in ((0, 7), (7, 30)):
            assert np.array_equal(layers.block(3, start, stop), stack[3, start:stop])
            assert np.array_equal(layers.block(3, start, stop, stop), stack[3, start:stop, :stop])
        assert stack.sum(1).max() <= max(step.largest_sum() for step in net.steps) * (1 + 1e-12)
        row, whole = solve(layers, [10], [29]), solve(stack, [10], [29], bounds=False)
        assert abs(row.scores - whole.scores).max() < 1e-15


def test_rows_of_any_step_are_those_of_its_matrix():
    r = np.random.default_rng(7)
    w = r.random((3, 4))
    for added in (False, True):
        step = Step(w / w.sum(1, keepdims=True), np.full(3, 0.3), 9, row=5, column=1, added=added)
        for start, stop in ((0, 9), (4, 7), (0, 3), (6, 9)):
            assert np.array_equal(step.rows(start, stop), step.matrix()[start:stop])
        assert step.matrix().sum(0).max() <= step.largest_sum() * (1 + 1e-12)
        assert step.matrix().sum(1).max() <= step.largest_sum() * (1 + 1e-12)


def test_what_does_not_fit_is_refused_with_the_figure(monkeypatch):
    stack = softmax_network(np.random.default_rng(8), 12, 30, 2.0, causal=True)
    monkeypatch.setattr("attnflow.scoring.flow.room.free_bytes", lambda: 10_000)
    for tolerance in (None, 1e-3):
        with pytest.raises(
            AttnFlowError, match=r"30 tokens would take up to 0\.0 GiB, but 0\.0 GiB are free.*layer=-1"
        ):
            flow(stack, layer=-1, position=-1, tolerance=tolerance)


def test_much_memory_is_said_before_it_is_taken(monkeypatch, capsys):
    monkeypatch.setattr("attnflow.scoring.flow.room.free_bytes", lambda: 2**40)
    check_room(3 * 2**30, "a large network")
    check_room(2**20, "a small one")
    assert capsys.readouterr().err == "attnflow: a large network takes up to 3.0 GiB\n"


def test_free_memory_is_known_here():
    assert free_bytes() is None or free_bytes() > 2**20
