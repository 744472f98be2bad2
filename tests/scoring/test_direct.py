from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention, demo, direct, raw
from attnflow.attention import Block
from attnflow.errors import SelectionError, ShapeError
from attnflow.tokens import Tokens
from tests.conftest import random_attention
from tests.test_attention import two_towers


def naive(weights: np.ndarray, layer: int, i: int, j: int) -> float:
    """Oracle: the entries of one row, layer by layer."""
    total = 0.0
    for k in range(layer + 1):
        total += weights[k][i][j]
    return total


@pytest.mark.parametrize("causal", [False, True])
def test_equal_to_naive_loops(causal):
    w = random_attention(3, 4, 5, causal)
    scores = direct(w).scores
    for layer in range(4):
        for i in range(5):
            for j in range(5):
                assert abs(scores[layer, i, j] - naive(w, layer, i, j)) < 1e-15
    assert np.allclose(scores.sum(-1), np.arange(1, 5)[:, None])


def test_two_tokens_by_hand():
    # Layer 0 reads token 1, layer 1 reads both alike: 0 + ½ and 1 + ½.
    w = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]])
    assert np.array_equal(direct(w, position=0).scores, [[0, 1], [0.5, 1.5]])
    assert np.array_equal(direct(w, position=0, layer=-1).scores, [[0.5, 1.5]])
    assert np.array_equal(direct(w, position=0, start_layer=1).scores, [[0.5, 0.5]])


def test_the_first_layer_is_raw_attention(attention):
    assert np.array_equal(direct(attention, layer=0).scores, raw(attention, layer=0).scores)


def test_the_residual_stays_in_the_outputs_own_column():
    w = np.array([[[0.9, 0.1], [0.2, 0.8]]] * 2)
    d = direct(Attention.of(w, edges="alti", residual_inside=True), position=0)
    assert np.allclose(d.scores, [[0.9, 0.1], [1.8, 0.2]])
    assert d.settings["edges"] == "alti" and "residual" not in d.settings


def test_gradient_edges_keep_their_sums():
    w = np.array([[[0.0, 3.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    d = direct(Attention.of(w, edges="gradient"))
    assert np.array_equal(d.scores[-1], [[1, 3], [0, 0]])


def test_a_decoder_layer_reads_twice():
    att = two_towers()
    d = direct(att)
    assert d.tokens == ("a", "b", "c", "x", "y") and d.queries == ("x", "y") and d.layers == (0, 1)
    both = [np.concatenate([c, s], 1) / 2 for c, s in zip(att["cross"].weights, att["decoder"].weights, strict=True)]
    assert np.allclose(d.scores[1], both[0] + both[1])
    assert np.allclose(d.scores.sum(-1), [[1, 1], [2, 2]])
    cross = replace(att["cross"], mixing=(np.full(2, 0.5),) * 2)
    held = replace(att, blocks={**att.blocks, "cross": cross}, edges="alti", residual_inside=True)
    first = direct(held, layer=0).scores[0]
    assert direct(held).notes == ()
    unweighed = replace(att, edges="value_zeroing", residual_inside=True)
    assert np.allclose(direct(unweighed, layer=0).scores[0], first)
    assert "do not weigh the decoder's own position there" in direct(unweighed).notes[0]
    assert np.allclose(first[:, :3], 0.25 * att["cross"].weights[0])
    assert np.allclose(first[:, 3:], 0.5 * att["decoder"].weights[0] + 0.25 * np.eye(2))


def test_of_a_model_and_of_a_batch():
    model, tokenizer = demo.model(), demo.tokenizer()
    one = direct(model, tokenizer, demo.SENTENCE, position="cls", layer=-1)
    assert np.allclose(one.scores[0], raw(model, tokenizer, demo.SENTENCE, position="cls").scores.sum(0))
    assert one.method == "direct" and one.settings["position"] == 0
    assert len(direct(model, tokenizer, [demo.SENTENCE] * 2)) == 2


def test_what_cannot_be_added_up_is_refused(attention):
    with pytest.raises(SelectionError, match="start_layer=4, but the layers with attention are 0, 1, 2, 3"):
        direct(attention, start_layer=4)
    with pytest.raises(SelectionError, match="start_layer=-1"):
        direct(attention, start_layer=-1)
    w0, w1 = random_attention(0, 1, 4)[0], random_attention(1, 1, 4)[0][:2]
    shorter = Attention({"self": Block((w0, w1), (0, 1), Tokens("abcd"), Tokens("abcd"))})
    with pytest.raises(ShapeError, match="layers attend over 2×4, 4×4 positions, so that their rows cannot be added"):
        direct(shorter)
