from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnflow import Attention, demo, raw, rollout
from attnflow.errors import InputError, SelectionError
from attnflow.scoring import rollout_stream as stream
from attnflow.scoring.network import network
from tests.conftest import random_attention
from tests.scoring.test_network import adjusted
from tests.test_attention import two_towers


def naive(weights: np.ndarray, share: float = 0.5) -> np.ndarray:
    """Oracle: sum over paths, written as three loops a layer."""
    layers, n, _ = weights.shape
    below = np.eye(n)
    out = np.zeros((layers, n, n))
    for layer in range(layers):
        a = adjusted(weights[layer], share)
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    out[layer, i, j] += a[i, k] * below[k, j]
        below = out[layer]
    return out


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.8])
def test_equal_to_naive_loops(n, causal, share):
    w = random_attention(n, 4, n, causal)
    assert np.abs(rollout(w, residual=share).scores - naive(w, share)).max() < 1e-12


def test_padding_with_nothing_to_attend_to_changes_nothing():
    w = random_attention(0, 3, 4)
    padded = np.zeros((3, 6, 6))
    padded[:, :4, :4] = w
    padded[:, 4:, 4:] = np.eye(2)
    assert np.abs(rollout(padded).scores[:, :4, :4] - naive(w)).max() < 1e-12
    assert np.abs(rollout(padded).scores[:, :4, 4:]).max() == 0


def test_one_layer_is_the_adjusted_attention(attention):
    assert np.allclose(rollout(attention[:1]).scores[0], adjusted(attention[0], 0.5), atol=1e-15)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9), st.booleans())
def test_rows_sum_to_one_and_permuted_tokens_permute_scores(seed, layers, n, causal):
    w = random_attention(seed, layers, n, causal)
    scores = rollout(w).scores
    assert np.allclose(scores.sum(-1), 1, atol=1e-12)
    order = np.random.default_rng(seed).permutation(n)
    moved = rollout(w[:, order][:, :, order]).scores
    assert np.allclose(moved, scores[:, order][:, :, order], atol=1e-12)


@pytest.mark.parametrize("position", [0, 3, -1])
@pytest.mark.parametrize("layer", [None, 0, 2, -1])
def test_one_position_is_a_row_of_all(attention, position, layer):
    one = rollout(attention, position=position, layer=layer)
    every = rollout(attention, layer=layer)
    assert one.scores.ndim == 2
    assert np.allclose(one.scores, every.scores[:, position], atol=1e-14)
    assert one.layers == every.layers
    assert one.settings["position"] == position % 5


def test_one_position_in_two_towers_is_a_row_of_all():
    every, one = rollout(two_towers()), rollout(two_towers(), position=1)
    assert every.scores.shape == (2, 2, 5)
    assert np.allclose(every.scores[:, 1], one.scores, atol=1e-14)
    assert np.allclose(every.scores.sum(-1), 1)


def test_two_towers_against_the_product_of_the_whole_network():
    att = two_towers()
    product = np.eye(5)
    tops = []
    for s, m in enumerate(network(att).stack()):
        product = m @ product
        if s + 1 in (5, 7):
            tops.append(product[3:])
    assert np.allclose(rollout(att).scores, tops, atol=1e-14)


def test_start_layer_and_layer(attention):
    above = rollout(attention, start_layer=2)
    assert above.layers == (2, 3)
    assert np.allclose(above.scores, naive(attention[2:]))
    assert np.allclose(rollout(attention, layer=1).scores[0], naive(attention)[1])


def test_half_precision_is_multiplied_in_double(attention):
    scores = rollout(attention.astype(np.float16)).scores
    assert scores.dtype == np.float64
    assert np.allclose(scores.sum(-1), 1, atol=1e-12)


def test_raw_is_the_attention_itself(attention):
    assert np.abs(raw(attention).scores - attention).max() < 1e-12
    assert np.array_equal(raw(attention, layer=2, position=1).scores, attention[2:3, 1])


def test_raw_of_two_towers_is_half_cross_and_half_self():
    att = two_towers()
    scores = raw(att).scores
    assert np.allclose(scores[1, :, :3], 0.5 * att["cross"].weights[1])
    assert np.allclose(scores[1, :, 3:], 0.5 * att["decoder"].weights[1])
    assert raw(att, block="encoder").scores.shape == (3, 3, 3)


def test_what_was_chosen_is_in_the_settings(attention):
    r = rollout(Attention.of(attention, tokens="abcde", model="m"), residual=0.3)
    assert r.settings["residual"] == 0.3
    assert (r.method, r.model, r.settings["heads"], r.settings["route"]) == ("rollout", "m", "mean", "given")


@pytest.mark.parametrize("position", [None, 2, "cls"])
@pytest.mark.parametrize("layer", [-1, 3])
@pytest.mark.parametrize("residual", [0.5, "none", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
def test_streamed_while_the_model_runs_it_is_the_same(position, layer, residual):
    model, tokenizer = demo.model(), demo.tokenizer()
    options = {"position": position, "layer": layer, "residual": residual}
    kept = rollout(model, tokenizer, demo.SENTENCE, **options)
    carried = rollout(model, tokenizer, demo.SENTENCE, stream=True, **options)
    assert np.abs(kept.scores - carried.scores).max() < 1e-6
    assert (kept.tokens, kept.rows, kept.layers) == (carried.tokens, carried.rows, carried.layers)
    assert kept.settings.get("position_token") == carried.settings.get("position_token")
    assert carried.settings["stream"] == ("product" if position is None else "row")


def test_long_inputs_are_streamed_by_themselves(monkeypatch):
    model, tokenizer = demo.model(), demo.tokenizer()
    assert "stream" not in rollout(model, tokenizer, demo.SENTENCE, layer=-1).settings
    monkeypatch.setattr(stream, "STORED_BYTES", 6 * 7 * 7 * 4 - 1)
    results = rollout(model, tokenizer, [demo.SENTENCE, demo.SENTENCE], layer=-1)
    assert [r.settings["stream"] for r in results] == ["product", "product"]
    assert "stream" not in rollout(model, tokenizer, demo.SENTENCE).settings  # all layers are kept anyway


def test_what_cannot_be_streamed_is_said(attention):
    with pytest.raises(SelectionError, match="stream=True gives one layer of a model.*layer=-1, stream=True"):
        rollout(attention, layer=-1, stream=True)
    with pytest.raises(SelectionError, match="stream=True gives one layer"):
        rollout(demo.model(), demo.tokenizer(), demo.SENTENCE, stream=True)


def chefer(weights: np.ndarray) -> np.ndarray:
    """Oracle: R ← R + Ā·R from the identity, layer by layer, as loops (Chefer et al. 2021, equation 6)."""
    layers, n, _ = weights.shape
    r = np.eye(n)
    out = []
    for layer in range(layers):
        more = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    more[i, j] += weights[layer, i, k] * r[k, j]
        r = r + more
        out.append(r)
    return np.array(out)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 50.0])
def test_gradient_edges_give_chefers_rule(scale):
    w = scale * np.random.default_rng(0).random((4, 5, 5))
    found = rollout(Attention.of(w, edges="gradient"))
    assert np.allclose(found.scores, chefer(w), rtol=1e-12)
    assert found.settings["residual"] == "add" and found.settings["edges"] == "gradient"
    one = rollout(Attention.of(w, edges="gradient"), position=2)
    assert np.allclose(one.scores, chefer(w)[:, 2], rtol=1e-12)


def test_chefers_rule_for_two_tokens_by_hand():
    # Layer 0: R = [[1, 2], [0, 1]]. Layer 1 adds Ā·R = [[0, ½]]·R = [[0, ½]].
    w = np.array([[[0.0, 2.0], [0.0, 0.0]], [[0.0, 0.5], [0.0, 0.0]]])
    assert np.array_equal(rollout(Attention.of(w, edges="gradient")).scores, [[[1, 2], [0, 1]], [[1, 2.5], [0, 1]]])


def test_edges_that_hold_the_residual_are_multiplied_as_they_are(attention):
    att = Attention.of(attention, edges="norm", residual_inside=True)
    found = rollout(att)
    assert np.allclose(found.scores, naive(attention, 0.0))
    assert found.settings["residual"] == "inside" and found.settings["edges"] == "norm"
    assert np.allclose(rollout(attention, residual="add").scores, chefer(attention))


def test_edges_must_be_those_that_are_there(attention):
    with pytest.raises(SelectionError, match="edges='alti', but this attention holds 'attention' edges. Capture them"):
        rollout(Attention.of(attention), edges="alti")
    with pytest.raises(InputError, match="edges='alti' are computed from a model, but the first argument is a ndarray"):
        rollout(attention, edges="alti")
    with pytest.raises(SelectionError, match="edges='value' is not known"):
        rollout(attention, edges="value")
    with pytest.raises(SelectionError, match="stream=True gives one layer of a model, of its attention weights"):
        rollout(demo.model(), demo.tokenizer(), demo.SENTENCE, layer=-1, stream=True, edges="gradient")
    assert rollout(attention, edges="attention").settings["residual"] == 0.5
