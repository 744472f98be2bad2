from __future__ import annotations

import pytest

from attnflow.errors import AttnFlowError
from tests.zoo.build import CannotBuild, build, lengthened
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


def test_a_model_that_returns_nothing_is_proved_by_its_products():
    report = check(build("squeezebert"))
    assert (report.compared, report.proved, report.layer_count) == (0, 2, 2)


def test_a_wrong_layer_is_not_proved():
    from attnflow import capture
    from attnflow.attention import Attention
    from tests.zoo.check import in_eager
    from tests.zoo.witness import proved

    tiny = build("bert")
    weights = capture(tiny.model, inputs=tiny.inputs, heads="all").only.weights
    assert proved(Attention.of(weights, heads="all"), in_eager(tiny)) == (2, 2)
    assert proved(Attention.of([weights[0], weights[1][::-1]], heads="all"), in_eager(tiny)) == (1, 2)


@pytest.mark.parametrize("kind", ["bert", "mistral", "longt5", "canine", "big_bird", "gpt_neo"])
def test_a_second_length_goes_beyond_windows_and_blocks(kind: str):
    more = lengthened(build(kind))
    assert more is not None
    report = check(more)
    assert report.wrong == [] and report.unchanged and max(report.sums) == pytest.approx(1, abs=2e-3)


def test_what_takes_no_other_length():
    assert lengthened(build("vit")) is None
