"""Edges of models that go through a layer in an unusual way: the numbers are right, or the reason says what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.capturing.edges import naive
from tests.zoo.build import build
from tests.zoo.edges import _first_of, _furthest, check_edges


@pytest.mark.parametrize("kind", ["vit_mae", "t5gemma2_decoder", pytest.param("hrm_text", marks=pytest.mark.slow)])
def test_lots_merged_inputs_and_layers_that_run_again(kind: str):
    """Patches drawn by lot, self- and cross-attention in one softmax, layers that are entered several times."""
    report = check_edges(build(kind))
    assert report.parts is not None and report.zeroed is not None
    assert report.zeroed_compared.startswith("equal")
    assert report.compared.startswith("equal") or kind == "hrm_text"  # its heads are gated before the projection


def test_more_inputs_than_outputs_outside_the_layers():
    """Four queries of Kosmos-2 read 21 inputs, without a residual: no parts, but values of zero."""
    report = check_edges(build("kosmos-2"))
    assert report.parts is None and "no addition to the residual stream after attention" in report.parts_reason
    assert report.zeroed is not None and report.zeroed < 1e-6 and report.layers == 5


def test_the_first_of_several_sequences():
    one, zero = np.eye(2), np.zeros((2, 2))
    packed = np.block([[one, zero], [zero, one / 2]])
    assert np.array_equal(_first_of(packed, (2, 2)), one)
    assert _first_of(packed + 1, (2, 2)) is None and _first_of(packed, (3, 3)) is None
    assert np.array_equal(_first_of(one, (2, 2)), one)


def test_what_has_no_matrix_is_not_compared():
    with pytest.raises(naive.NotSeen, match="no matrix of 3 × 3 positions"):
        _furthest([np.ones((3, 3))], type("Taken", (), {"blocks": {}})())
