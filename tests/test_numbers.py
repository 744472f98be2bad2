"""Numbers of every library work as Python's own do; what is no number is a TypeError."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import Attention, blankout, capture, compare, correlate, flow, gradient, raw, rollout
from attnflow.errors import AttnFlowError, SelectionError, ShapeError, WeightsError
from attnflow.numbers import at_least, heads_of, to_numpy, whole, wholes
from tests.conftest import random_attention
from tests.tiny_models import IDS, tiny, tokenizer

KINDS = [np.int64, np.int32, np.uint8, lambda i: torch.tensor(i), lambda i: np.array(i)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_number_of_any_library(kind):
    assert whole(kind(3), "x") == 3 and type(whole(kind(3), "x")) is int
    assert wholes([kind(1), 2], "x") == (1, 2) and wholes(kind(4), "x") == (4,)
    assert heads_of(kind(1)) == 1 and heads_of((kind(1), kind(0))) == (1, 0)


@pytest.mark.parametrize("value", [1.0, np.float32(1), "1", None, True, np.bool_(True), [1], object(), 1j])
def test_what_is_no_whole_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="x=.*and a whole number is needed"):
        whole(value, "x")


def test_at_least_names_both_numbers():
    with pytest.raises(SelectionError, match="k=0, but at least 1 is needed"):
        at_least(np.int64(0), 1, "k")


@pytest.mark.parametrize("kind", KINDS)
def test_heads_layers_and_positions_of_numpy_simply_work(kind):
    weights = random_attention(0, 3, 5, heads=2)
    one = raw(weights, heads=1, layer=2, position=3)
    assert np.array_equal(raw(weights, heads=kind(1), layer=kind(2), position=kind(3)).scores, one.scores)
    assert np.array_equal(raw(weights, heads=[kind(1)]).scores, raw(weights, heads=[1]).scores)
    both = rollout(weights, heads=np.array([0, 1]))
    assert np.array_equal(both.scores, rollout(weights, heads=[0, 1]).scores)
    assert np.array_equal(flow(weights, heads=kind(0), layer=kind(1)).scores, flow(weights, heads=0, layer=1).scores)
    assert both.at(layer=kind(1), position=kind(0)).top(2) == both.at(layer=1, position=0).top(2)
    assert correlate(both, np.arange(5.0), layer=kind(1), position=kind(2)).layers == (1,)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_heads_and_layers_of_numpy_on_a_model(kind):
    model, tok = tiny("bert"), tokenizer()
    a, b = (capture(model, tok, "the key", heads=k(1), layers=[k(1)]) for k in (int, kind))
    assert np.array_equal(a.weights, b.weights) and b.heads == 1 and b.layers == (1,)
    for method in (gradient, blankout):
        x, y = (method(model, tok, "the key", target=k(1)) for k in (int, kind))
        assert np.array_equal(x.scores, y.scores) and y.settings["target"] == 1
    pair = gradient(model, tok, "the key", target=(kind(0), kind(1)))
    assert pair.settings["target"] == [0, 1]
    assert np.array_equal(blankout(model, tok, "the key", blank=kind(3)).scores,
                          blankout(model, tok, "the key", blank=3).scores)  # fmt: skip
    found = compare(model, tok, ["the key"], methods="raw", references="gradient", layers=kind(1))
    assert set(found.records["layer"]) == {1}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_of_every_kind_that_require_a_gradient_simply_work(kind):
    weights = torch.tensor(random_attention(0, 2, 4)).to(kind).requires_grad_()
    slack = {"sinks": "renormalise"} if kind == torch.bfloat16 else {}
    expected = rollout(weights.detach().double().numpy(), sinks="renormalise")
    for given in (weights, tuple(weights), list(weights)):
        np.testing.assert_allclose(rollout(given, **slack).scores, expected.scores, atol=1e-2)
    assert Attention.of(weights, **slack).weights.shape == (2, 4, 4)
    assert correlate(weights.detach()[0, 0].requires_grad_(), torch.arange(4.0)).n == 4


@pytest.mark.parametrize(("bad", "message"), [
    ([[[1e308, 1e308], [1, 1]]], "a row whose sum is larger than any number"),
    ([[[np.inf, 0], [0, 1]]], "1 infinite values among 4"), ([[[-np.inf, 0], [0, 1]]], "1 infinite values"),
    ([[[np.nan, 0], [0, 1]]], "1 NaN among 4"),
])  # fmt: skip
@pytest.mark.parametrize("method", [raw, rollout, flow])
@pytest.mark.parametrize("sinks", ["renormalise", "keep", "error"])
def test_weights_that_are_not_finite_are_refused_at_the_border(method, bad, message, sinks):
    with pytest.raises(WeightsError, match=message):
        method(bad, sinks=sinks)


def towers(dec=3, enc=4, batch=1, cross=None):
    def made(b, q, k):
        return torch.full((b, 2, q, k), 1 / k)

    cross = cross or (batch, dec, enc)
    return {"encoder_attentions": (made(batch, enc, enc),), "decoder_attentions": (made(batch, dec, dec),),
            "cross_attentions": (made(*cross),)}  # fmt: skip


def test_a_cross_matrix_that_does_not_fit_is_refused():
    assert rollout(towers()).scores.shape == (1, 3, 7)
    for cross in ((1, 3, 6), (1, 3, 2), (1, 2, 4)):
        with pytest.raises(ShapeError, match="cross matrix of layer 0 is .*it does not fit between them"):
            rollout(towers(cross=cross))


def test_batches_that_differ_are_refused():
    with pytest.raises(ShapeError, match="The layers hold 1 and 2 examples"):
        raw((torch.full((2, 1, 3, 3), 1 / 3), torch.full((1, 1, 3, 3), 1 / 3)))
    with pytest.raises(ShapeError, match="The layers hold 1 and 2 examples"):
        rollout(towers(cross=(2, 3, 4)))
    with pytest.raises(ShapeError, match=r"A layer has shape \(1, 3, 3\), and Hugging Face gives \[batch, heads"):
        rollout({**towers(), "cross_attentions": (torch.full((1, 3, 3), 1 / 3),)})


def test_infinite_scores_are_refused_and_missing_ones_left_out():
    with pytest.raises(WeightsError, match="The scores have an infinite value at position 1"):
        correlate([1, np.inf, 3], [1, 2, 3])
    with pytest.raises(WeightsError, match="The reference has an infinite value at position 2"):
        correlate([1, 2, 3], [1, 2, -np.inf])
    assert correlate([1, np.nan, 3, 4], [1, 2, 3, 4]).n == 3


@pytest.mark.parametrize("length", [1, 0, -5])
def test_a_length_that_leaves_nothing_to_compare_is_refused_before_anything_runs(length):
    with pytest.raises(SelectionError, match=f"max_length={length}, but at least 2 is needed"):
        compare(None, None, ["the key"], max_length=length)


def test_a_model_that_gives_nan_is_refused():
    import copy

    model = copy.deepcopy(tiny("bert"))
    with torch.no_grad():
        model.classifier.bias[:] = float("nan")
    for method in (gradient, blankout):
        with pytest.raises(WeightsError, match="gives nan for .* on the input as it is"):
            method(model, tokenizer(), "the key")
    with torch.no_grad():
        model.classifier.bias[:] = 0
        model.bert.embeddings.word_embeddings.weight[IDS[1]] = float("nan")
    blank = int(IDS[1])
    with pytest.raises(WeightsError, match="With an input blanked out the output changes by nan"):
        blankout(model, None, [i for i in IDS if i != blank], blank=blank)


def test_what_holds_no_numbers_is_refused():
    for bad in ("text", [["a"]], [[[1, 2], [3]]], {1, 2}, object(), [None], 5, 1 + 2j, b"x", [[{}]]):
        with pytest.raises((AttnFlowError, TypeError)):
            raw(bad)
    with pytest.raises(ShapeError):
        to_numpy(torch.zeros(2, 2).to_sparse())
