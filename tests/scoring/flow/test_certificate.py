from dataclasses import replace

import numpy as np
import pytest

from attnflow.errors import AttnFlowError, SelectionError
from attnflow.scoring.flow.certificate import Certificate, certify, cut_capacity
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import softmax_network


def test_a_false_value_does_not_pass_the_check():
    certificate = certify(softmax_network(np.random.default_rng(0), 4, 6))
    s = certificate.solution
    wrong = s.units.copy()
    wrong[2, 3, 1] += 1
    with pytest.raises(AttnFlowError, match="height 3 to input 1"):
        Certificate(replace(s, units=wrong)).check()


def test_a_false_cut_does_not_pass_the_check():
    s = certify(softmax_network(np.random.default_rng(0), 4, 6)).solution
    cuts = s.cuts.copy()
    cuts[3, 2, 4] ^= np.uint64(0b101)
    with pytest.raises(AttnFlowError):
        Certificate(replace(s, cuts=cuts)).check()


def test_cut_capacity_by_hand():
    caps = integers(np.array([[[0.5, 0.25], [0.125, 0.5]], [[0.25, 0.5], [0.5, 0.5]]]))
    sides = np.array([[[True, False], [False, True]]])  # sink 0; node 1 at height 1 on its side
    assert caps.floats(cut_capacity(caps, 2, 0, sides)).tolist() == [0.5 + 0.5]


@pytest.mark.parametrize("n", [128, 129, 260])
def test_sets_of_two_four_and_eight_words(n):
    """Every pair of three outputs: its cut, computed without the kernel, has the value of its flow."""
    stack = softmax_network(np.random.default_rng(n), 5, n, 2.0, local=0.1, sink=3.0)
    certificate = certify(stack, [5], [0, n // 2, n - 1])
    assert certificate.check() == 3 * n
    assert (solve(stack, [5], [0, n // 2, n - 1]).units == certificate.solution.units).all()
    if n < 200:  # by columns, not by rows
        assert (solve(stack, [5]).units[:, [0, n // 2, n - 1]] == certificate.solution.units).all()


def test_unknown_pair():
    with pytest.raises(SelectionError, match="no certificate"):
        certify(np.full((2, 3, 3), 1 / 3)).cut(5, 0, 0)
