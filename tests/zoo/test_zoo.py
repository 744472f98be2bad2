from __future__ import annotations

import pytest

from attnflow.errors import AttnFlowError
from tests.zoo.build import CannotBuild, build
from tests.zoo.check import check
from tests.zoo.families import FAMILIES, Family


@pytest.mark.parametrize("family", [f for f in FAMILIES if not f.error], ids=lambda f: f.kind)
def test_capture_of_a_family(family: Family):
    report = check(build(family.kind))
    assert report.wrong == []
    assert report.compared == family.compared
    assert report.unchanged
    assert report.route == family.route
    assert {name: tuple(numbers) for name, numbers in report.layers.items()} == family.layers
    assert report.sums[1] == pytest.approx(1, abs=2e-3)
    assert (report.sums[0] < 0.99) == family.sink


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.error], ids=lambda f: f.kind)
def test_refusal_of_a_family(family: Family):
    with pytest.raises(AttnFlowError, match=family.error) as caught:
        check(build(family.kind))
    assert family.kind in str(caught.value).lower()


def test_a_type_that_cannot_be_built_says_why():
    with pytest.raises(CannotBuild, match="natten"):
        build("dinat")


def test_a_wrong_number_is_seen():
    """The check itself: a layer that is off by more than rounding must not pass."""
    from attnflow.attention import Attention
    from tests.zoo.check import in_eager, mismatches, reference

    expected = reference(in_eager(build("bert")))
    weights = [w[0].numpy() for w in expected.values()]
    assert mismatches(Attention.of(weights, heads="all"), expected) == []
    weights[1] = weights[1][::-1].copy()
    assert mismatches(Attention.of(weights, heads="all"), expected) == ["attentions[1]"]
