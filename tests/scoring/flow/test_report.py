import numpy as np
import pytest

from attnflow.scoring.flow.certificate import certify
from attnflow.scoring.flow.report import describe
from attnflow.scoring.flow.solver import solve
from tests.scoring.flow.networks import adjust, softmax_network


def test_report_of_a_saturated_encoder_says_so():
    stack = adjust(np.full((8, 5, 5), 0.2))
    stack[0] *= np.array([1, 0.9, 0.8, 0.7, 0.6])
    s = solve(stack)
    report = describe(s, list("abcde"), tuple(range(8)))
    assert report["saturation"][-1] == 1.0 and report["same_ranking"][-1] == 1.0
    assert "do not depend on the output" in report["words"][0]
    assert any("same order" in line for line in report["words"])
    assert sum(report["cut"][-1].values()) == pytest.approx(1)


def test_report_counts_ties_and_sinks():
    stack = np.zeros((1, 4, 4))
    stack[0, :, 0] = 0.7
    stack[0, :, 1:] = 0.1
    report = describe(solve(stack), list("abcd"), (0,))
    assert report["ties"] == [0.5]
    assert report["sink"] == [{"index": 0, "token": "a", "share": pytest.approx(0.7)}]
    assert any("'a'" in line for line in report["words"])


def test_report_of_one_row_and_one_token():
    assert describe(solve(np.ones((3, 1, 1))), ["a"], (0, 1, 2))["ties"] == [0.0] * 3
    row = describe(solve(softmax_network(np.random.default_rng(0), 4, 6), None, [2]), list("abcdef"), range(4))
    assert row["same_ranking"] == [1.0] * 4 and not any("same order" in line for line in row["words"])


def test_the_layers_that_hold_the_cut_by_hand():
    """A narrow middle layer: one unit in, one unit out, and only 0.2 may pass from each node between."""
    wide, narrow = np.full((2, 2), 0.5), np.full((2, 2), 0.1)
    report = describe(solve([wide, narrow, wide], None, [0]), ["a", "b"], (0, 1, 2), ("low", "middle", "high"))
    assert report["cut_layers"] == pytest.approx({"low": 0.0, "middle": 1.0, "high": 0.0})
    assert "100% of the minimum cuts lie in middle (of equally narrow ones, one counts)" in report["words"]


def test_cut_layers_of_certificates_sum_to_one_and_are_left_out_where_they_would_cost():
    stack = softmax_network(np.random.default_rng(1), 5, 6)
    shares = describe(certify(stack).solution, list("abcdef"), range(5), list("ABCDE"))["cut_layers"]
    assert list(shares) == list("ABCDE")
    assert sum(shares.values()) == pytest.approx(1)
    assert describe(solve(stack), list("abcdef"), range(5), list("ABCDE"))["cut_layers"] == {}
