import importlib.util
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.errors import SelectionError, ShapeError, WeightsError
from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.integers import integers, pack, unpack
from attnflow.scoring.flow.search import run
from attnflow.scoring.flow.solver import BOUND, CUT, HUB, RELAY, THEOREM, solve
from tests.scoring.flow.networks import by_fractions, by_igraph, instances, softmax_network

SHAPES = [(1, 4), (2, 5), (3, 2), (3, 6), (4, 1), (5, 7), (7, 4), (6, 10)]


def every_way(stack):
    """Flows of all layers, each computed in every way that the engine has; all must be the same integers."""
    steps, n, _ = stack.shape
    full = certify(stack).solution
    fast = solve(stack)
    settled = np.isin(fast.proofs, (BOUND, THEOREM))
    assert (fast.units == full.units).all(), "bounds and theorem against full solves"
    assert (solve(stack, bounds=False).units == full.units).all()
    assert (solve(stack, threads=2).units == full.units).all()
    for height in range(1, steps + 1):
        top = solve(stack, [height])
        assert (top.units[0] == full.units[height - 1]).all(), "one height, with the bounds of one height"
        settled[height - 1] |= np.isin(top.proofs[0], (BOUND, HUB, RELAY))
        caps = full.capacities.upto(height)
        kept = run(caps, (height,), range(n), slow=0)
        assert (full.units[height - 1] == kept.units[:, 0].T).all(), "each source from the preflow of the one before"
        kept = run(caps.reversed(), (height,), range(n), slow=0)
        assert (kept.units[:, 0] == full.units[height - 1]).all(), "the same upside down"
    rows = sorted({0, n // 2, n - 1})
    assert (solve(stack, None, rows).units == full.units[:, rows]).all()
    assert (certify(stack, [steps], rows[:1]).solution.units[0] == full.units[-1, rows[:1]]).all()
    return full, settled


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_all_families_agree_with_exact_fractions(shape):
    r = np.random.default_rng(sum(shape))
    for name, stack in instances(r, *shape):
        full, _ = every_way(stack)
        for height in {1, 2, shape[0]} & set(range(1, shape[0] + 1)):
            i, j = r.integers(0, shape[1], 2)
            exact = by_fractions(stack, height, int(i), int(j))
            assert abs(full.scores[height - 1, i, j] - float(exact)) < 1e-12, (name, height, i, j)


def test_a_source_begins_with_the_preflow_of_the_one_before_where_cuts_are_between_the_ends():
    """Local attention over more tokens than hops can span: many searches for each pair, and many edges with flow."""
    steps, n, r = 4, 200, np.random.default_rng(0)
    i = np.arange(n)
    weights = np.exp(2 * r.standard_normal((steps, n, n)) - 0.2 * np.abs(i[:, None] - i))
    stack = weights / (2 * weights.sum(-1, keepdims=True)) + np.eye(n) / 2
    caps = integers(stack).reversed()
    chosen, alone, always = (run(caps, (steps,), [n - 1], slow=slow) for slow in (2, 10**6, 0))
    assert (alone.proofs == CUT).sum() > n // 2
    assert (chosen.units == alone.units).all()
    assert (always.units == alone.units).all()
    assert (alone.units[0, 0] == solve(stack, [steps], [n - 1], explicit=True).units[0, 0]).all()


@pytest.mark.skipif(importlib.util.find_spec("igraph") is None, reason="igraph is not installed")
@pytest.mark.parametrize("shape", [(12, 9), (6, 24), (4, 65), (3, 130)], ids=str)
def test_larger_networks_agree_with_igraph(shape):
    steps, n = shape
    r = np.random.default_rng(n)
    families = dict(instances(r, steps, n))
    for name in ("softmax 2", "causal", "local with a sink", "row sums 0.1 to 1.5", "1e-12 capacities"):
        flow = by_igraph(families[name])
        top = solve(families[name], [steps])
        for i, j in r.integers(0, n, (8, 2)):
            assert abs(top.scores[0, i, j] - flow(steps, i, j)) < 1e-9, name


@pytest.mark.parametrize("kind", ["softmax 2", "causal", "attention sink", "row sums above one", "sparse"])
def test_more_than_one_word_of_tokens_all_ways(kind):
    every_way(dict(instances(np.random.default_rng(5), 4, 66))[kind])


def test_hand_computed_two_steps():
    a = np.array([[[0.6, 0.4], [0.3, 0.7]], [[0.9, 0.1], [0.2, 0.8]]])
    expected = [[min(0.9, 0.6) + min(0.1, 0.3), min(0.9, 0.4) + min(0.1, 0.7)], [0.2 + 0.3, 0.2 + 0.7]]
    np.testing.assert_allclose(solve(a).scores, [a[0], expected], atol=1e-15)


def test_hand_computed_bottleneck_in_the_middle():
    # two wide ends, one thin pipe of 0.25 between them
    wide, thin = np.full((3, 3), 1 / 3), np.diag([0.25, 0.0, 0.0])
    stack = np.stack([wide, thin, wide])
    np.testing.assert_allclose(solve(stack, [3]).scores, 0.25)
    stack[1, 1, 2] = 0.05
    np.testing.assert_allclose(solve(stack, [3]).scores, 0.30, atol=1e-15)


def test_a_pair_that_needs_flow_sent_back():
    # Greedy fills (1, 0) from (2, 0), where only (2, 1) could use it; the residual edge undoes that.
    stack = np.array([np.diag([0.5, 0.5]), [[0.5, 0.5], [0.5, 0.0]], [[0.5, 0.5], [0, 0]]])
    stack[0, :, 0] = 0.5
    assert solve(stack, [3]).scores[0, 0, 0] == 1.0


def test_depth_one_is_the_matrix():
    a = softmax_network(np.random.default_rng(0), 1, 7)
    np.testing.assert_allclose(solve(a).scores, a, atol=1e-17)


def test_one_node():
    assert solve(np.array([[[1.0]], [[0.5]], [[0.75]]])).scores.ravel().tolist() == [1.0, 0.5, 0.5]


def test_no_capacity_at_all():
    assert not solve(np.zeros((3, 4, 4))).units.any()


def test_identity_tops_between_layers_change_nothing():
    a = softmax_network(np.random.default_rng(3), 3, 5)
    wide = np.stack([a[0], np.eye(5), a[1], np.eye(5), a[2]])
    assert (solve(wide, [1, 3, 5]).units == solve(a).units).all()
    assert (solve(wide, [1, 3, 5], [2]).units == solve(a, None, [2]).units).all()


small = st.integers(1, 4).flatmap(
    lambda s: st.integers(1, 5).flatmap(
        lambda n: st.lists(st.integers(0, 8), min_size=s * n * n, max_size=s * n * n).map(
            lambda v: np.array(v, float).reshape(s, n, n) / 8
        )
    )
)


@settings(max_examples=120, deadline=None)
@given(small)
def test_any_small_network_equals_fractions(stack):
    full, _ = every_way(stack)
    steps, n, _ = stack.shape
    for i in range(n):
        for j in range(n):
            assert Fraction(float(full.scores[-1, i, j])) == by_fractions(stack, steps, i, j)


@settings(max_examples=40, deadline=None)
@given(small, st.randoms())
def test_properties(stack, random):
    steps, n, _ = stack.shape
    f = solve(stack).units
    caps = integers(stack)
    order = list(range(n))
    random.shuffle(order)
    assert (solve(stack[:, order][:, :, order]).units == f[:, order][:, :, order]).all(), "tokens renamed"
    assert (f <= caps.rowsum[:, :, None]).all() and (f <= caps.cap[0].sum(0)).all(), "flow within both limits"
    turned = solve(stack[::-1].transpose(0, 2, 1).copy(), [steps]).units[0]
    assert (f[-1] == turned.T).all(), "turned upside down"
    more = stack.copy()
    more[tuple(random.randrange(k) for k in stack.shape)] += 0.125
    grown = solve(more).scores - solve(stack).scores
    assert (grown >= 0).all() and (grown <= 0.125).all(), "one more eighth of capacity"


def test_threads_give_the_same():
    a = softmax_network(np.random.default_rng(1), 5, 30)
    one = solve(a, threads=1)
    for threads in (2, 3, 64):
        other = solve(a, threads=threads)
        assert (other.units == one.units).all() and (other.proofs == one.proofs).all()


def test_proofs_are_told():
    s = solve(softmax_network(np.random.default_rng(1), 5, 12))
    assert sum(s.proof_counts().values()) == 5 * 144
    assert s.proof_counts()["closed form"] == 2 * 144
    assert (solve(s.capacities, explicit=True).proofs[1:] == CUT).all()


def test_bitsets_round_trip():
    mask = np.random.default_rng(0).random((3, 70)) < 0.5
    assert (unpack(pack(mask), 70) == mask).all()


@pytest.mark.parametrize(
    ("stack", "error", "says"),
    [
        (np.zeros((3, 3)), ShapeError, "square"),
        (np.zeros((1, 2, 3)), ShapeError, r"\(1, 2, 3\)"),
        (np.full((1, 2, 2), np.nan), WeightsError, "finite"),
        (np.full((1, 2, 2), -0.1), WeightsError, "at least 0"),
    ],
)
def test_bad_stacks(stack, error, says):
    with pytest.raises(error, match=says):
        solve(stack)


def test_bad_selection():
    stack = np.full((2, 3, 3), 1 / 3)
    for bad in ({"tops": [3]}, {"tops": [0]}, {"rows": [3]}, {"rows": []}, {"threads": 0}):
        with pytest.raises(SelectionError):
            solve(stack, **bad)


def test_threads_are_one_whole_number():
    for bad in (np.zeros(0), 1.5, "two"):
        with pytest.raises(TypeError, match="threads="):
            solve(np.full((3, 2, 2), 0.5), threads=bad)


def test_what_a_worker_thread_raises_is_raised(monkeypatch):
    """It was lost, and the flows of that thread's sinks were left at zero."""
    import threading

    from attnflow.scoring.flow import compiled

    whole, main = compiled.columns, threading.current_thread()
    begun = threading.Event()

    def failing(*given, **options):
        if threading.current_thread() is not main:
            begun.set()
            raise MemoryError("no room in a worker")
        assert begun.wait(30), "the other thread has taken a job"
        whole(*given, **options)

    monkeypatch.setattr(compiled, "columns", failing)
    stack = np.full((4, 40, 40), 1 / 40)
    with pytest.raises(MemoryError, match="no room in a worker"):
        solve(stack, threads=2)
