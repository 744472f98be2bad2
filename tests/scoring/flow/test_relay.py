"""The bounds of relay.py against flows that were searched for in full, on networks of every kind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.integers import Stack, Streamed, integers
from attnflow.scoring.flow.relay import DEEP, parts_of, relayed
from attnflow.scoring.flow.search import finish
from attnflow.scoring.flow.solver import RELAY, solve
from tests.scoring.flow.networks import instances, softmax_network

SHAPES = [(9, 2), (9, 6), (10, 4), (12, 9), (14, 5), (24, 7)]


def compare(stack, rows=None):
    """Bounds of all rows at the top against full solves; how many pairs they settle."""
    caps = integers(stack)
    exact = solve(caps, [caps.steps], bounds=False).units[0]
    settled = 0
    rows = list(range(caps.n)) if rows is None else rows
    for causal in {False, caps.is_causal()}:
        lower, upper = relayed(caps, rows, causal)
        assert (lower <= exact[rows]).all() and (exact[rows] <= upper).all(), causal
        alone = relayed(caps, rows[:1], causal, threads=2)
        assert (alone.lower[0] == lower[0]).all() and (alone.upper[0] == upper[0]).all()
        found = finish(caps, rows, relayed(caps, rows, causal), causal, 2)
        assert (found.units == exact[rows]).all()
        assert ((found.proofs == RELAY) == (lower == upper)).all()
        settled = int((lower == upper).sum())
    return settled


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_hold_on_all_families(shape):
    for _, stack in instances(np.random.default_rng(sum(shape)), *shape):
        compare(np.ascontiguousarray(stack))


small = st.integers(DEEP, 12).flatmap(
    lambda s: st.integers(1, 4).flatmap(
        lambda n: st.lists(st.integers(0, 8), min_size=s * n * n, max_size=s * n * n).map(
            lambda v: np.array(v, float).reshape(s, n, n) / 8
        )
    )
)


@settings(max_examples=80, deadline=None)
@given(small, st.booleans())
def test_bounds_hold_on_any_small_network(stack, causal):
    compare(np.tril(stack) if causal else stack)


@pytest.mark.parametrize("residual", [0.05, 0.3, 0.5, 0.9])
def test_bounds_hold_with_any_residual_share(residual):
    r = np.random.default_rng(7)
    for causal in (True, False):
        attention = 2 * softmax_network(r, 12, 20, 2.0, causal=causal) - np.eye(20)
        compare((1 - residual) * np.maximum(attention, 0) + residual * np.eye(20))


def test_most_pairs_of_deep_causal_attention_are_settled():
    stack = softmax_network(np.random.default_rng(0), 16, 40, 1.5, causal=True)
    assert compare(stack) > 0.9 * 40 * 40


def test_the_engine_uses_the_bounds_and_certificates_do_not():
    stack = softmax_network(np.random.default_rng(1), 12, 30, 1.5, causal=True)
    row, whole = solve(stack, [12], [29]), solve(stack, [12])
    assert row.proof_counts()["relay bound"] > 20 and whole.proof_counts()["relay bound"] > 400
    full = certify(stack, [12]).solution
    assert "relay bound" not in full.proof_counts()
    assert (full.units == whole.units).all() and (full.units[:, [29]] == row.units).all()


def test_an_overloaded_token_is_not_relayed_over():
    # All that t holds has to pass token 1, whose own edges are narrow: the sums of the blocks would allow more.
    steps, n = 9, 3
    stack = np.zeros((steps, n, n))
    stack[:, 0, 0] = stack[:, 2, 2] = 0.5
    stack[:, 1, 1] = 0.01
    stack[:, 2, 1], stack[:, 1, 0] = 0.25, 0.25
    compare(stack)


def test_hand_computed_cuts_at_the_ends():
    stack = np.zeros((9, 2, 2))
    stack[:, 0, 0], stack[:, 1, 1], stack[:, 1, 0] = 1, 0.5, 0.5
    stack[-1, 1] = 0.75, 0.25
    stack[-2, 1, 1] = 0.125
    lower, upper = relayed(integers(stack), [1], True)
    one = 2.0 ** integers(stack).bits
    assert (upper[0] / one).tolist() == [1.0, 0.125] and (lower == upper).all()


def test_parts_cover_all_steps_once():
    for steps in range(DEEP, 60):
        p = parts_of(steps)
        assert 3 == p.gather < p.relay < p.spread < p.end == steps - 3 and p.relay < p.half <= p.spread


def test_streamed_capacities_are_those_of_the_stack():
    r = np.random.default_rng(3)
    for _, stack in instances(r, 3, 6):
        whole = integers(stack)
        parts = Streamed(Stack(np.asarray(stack, float)), whole.bits)
        assert (parts.cap == whole.cap).all() and (parts.rowsum == whole.rowsum).all()
        assert (parts.column_sums(1) == whole.cap[1].sum(0)).all()
        assert (parts.row_sums(2, [4, 0]) == whole.rowsum[2, [4, 0]]).all()
        assert (parts.window(1, 4).cap == whole.cap[:, 1:4, 1:4]).all()
        assert parts.is_causal() == whole.is_causal() == (not np.triu(stack, 1).any())
