from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention
from attnflow.attention import SINK, Block
from attnflow.errors import SelectionError, ShapeError
from attnflow.scoring.network import Step, network, residual_of
from attnflow.tokens import Tokens
from tests.conftest import random_attention
from tests.test_attention import two_towers


def adjusted(w: np.ndarray, share: float) -> np.ndarray:
    """Oracle: the paper's formula, entry by entry."""
    n = len(w)
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            out[i, j] = (1 - share) * w[i, j] + (share if i == j else 0)
        if out[i].sum() > 0:
            out[i] /= out[i].sum()
    return out


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9])
def test_steps_are_the_papers_formula(attention, share):
    net = network(Attention.of(attention), share)
    assert np.allclose(net.stack(), [adjusted(w, share) for w in attention], atol=1e-15)
    assert np.allclose(net.stack().sum(-1), 1)
    assert (net.tops, net.layers, net.rows) == ((1, 2, 3, 4), (0, 1, 2, 3), range(5))


def test_the_two_products_agree_with_the_matrix():
    rng = np.random.default_rng(0)
    step = Step(random_attention(0, 1, 4)[0][:2, :3], np.array([0.2, 0.7]), size=7, row=5, column=1)
    m, x = step.matrix(), rng.random((7, 3))
    assert np.allclose(step.above(x), m @ x)
    assert np.allclose(step.below(x.T), x.T @ m)
    assert np.allclose(m.sum(1), 1)
    assert np.array_equal(m[:5], np.eye(7)[:5])


def test_measured_residuals_by_layer_and_by_position(attention):
    by_layer = network(Attention.of(attention), [0.1, 0.2, 0.3, 0.4]).stack()
    assert np.allclose(by_layer[2], adjusted(attention[2], 0.3))
    shares = np.random.default_rng(0).random((4, 5))
    by_token = network(Attention.of(attention), shares).stack()
    for i in range(5):
        assert np.allclose(by_token[1, i], adjusted(attention[1], shares[1, i])[i])


def test_a_row_of_zeros_keeps_its_residual_only():
    w = np.array([[[0.0, 0.0], [0.5, 0.5]]])
    att = Attention({"self": Block((w[0],), (0,), Tokens("ab"), Tokens("ab"))})
    assert np.allclose(network(att, 0.5).stack()[0], [[1, 0], [0.25, 0.75]])
    assert np.allclose(network(att, "none").stack()[0], [[0, 0], [0.5, 0.5]])


def test_start_layer_leaves_out_what_is_below(attention):
    net = network(Attention.of(attention), 0.5, start_layer=2)
    assert net.layers == (2, 3)
    assert np.allclose(net.stack(), [adjusted(w, 0.5) for w in attention[2:]])


def test_layers_without_attention_hand_positions_down(attention):
    hybrid = Attention.of(attention[:2], layers=[1, 3])
    assert np.allclose(network(hybrid).stack(), [adjusted(w, 0.5) for w in attention[:2]])
    assert network(hybrid).layers == (1, 3)
    assert network(hybrid, start_layer=2).layers == (3,)


def test_a_sink_is_a_node_that_keeps_what_it_gets():
    att = Attention.of([[[0.3, 0.3], [0.5, 0.5]]] * 2, tokens=["a", "b"], sinks="keep")
    net = network(att, 0.5)
    assert net.tokens == ("a", "b", SINK)
    assert net.queries == ("a", "b")
    assert np.allclose(net.stack()[1], [[0.65, 0.15, 0.2], [0.25, 0.75, 0], [0, 0, 1]])


def test_layers_that_shorten_the_input_need_no_residual():
    w0, w1 = random_attention(0, 1, 4)[0], random_attention(1, 1, 4)[0][:2]
    att = Attention({"self": Block((w0, w1), (0, 1), Tokens("abcd"), Tokens("abcd"))})
    net = network(att, "none")
    assert net.rows == range(2)
    assert np.allclose((net.stack()[1] @ net.stack()[0])[:2], w1 @ w0)
    with pytest.raises(ShapeError, match="Layer 1 has 2 outputs and 4 inputs.*Pass residual='none'"):
        network(att, 0.5)
    with pytest.raises(ShapeError, match="attends to 4 positions, but the one below it has 2 outputs"):
        network(Attention({"self": Block((w1, w0), (0, 1), Tokens("abcd"), Tokens("abcd"))}), "none")


def test_two_towers_are_one_network_over_both_sequences():
    att = two_towers()
    net = network(att)
    stack = net.stack()
    assert stack.shape == (3 + 2 * 2, 5, 5)
    assert (net.tops, net.rows) == ((5, 7), range(3, 5))
    assert net.tokens == ("a", "b", "c", "x", "y")
    assert np.allclose(stack[0][:3, :3], adjusted(att["encoder"].weights[0], 0.5))
    assert np.array_equal(stack[0][3:], np.eye(5)[3:])
    assert np.allclose(stack[3][3:, 3:], adjusted(att["decoder"].weights[0], 0.5))
    assert np.allclose(stack[4][3:, :3], 0.5 * att["cross"].weights[0])
    assert np.allclose(stack[4][3:, 3:], 0.5 * np.eye(2))
    assert np.allclose(stack.sum(-1), 1)


@pytest.mark.parametrize(
    ("residual", "error", "text"),
    [
        (1.0, SelectionError, r"residual=1.0, but a residual share is in \[0, 1\)"),
        (-0.1, SelectionError, "residual=-0.1"),
        (float("nan"), SelectionError, "residual=nan"),
        ("half", SelectionError, "residual='half' is not known. Use a number in .0, 1., 'none', 'add' or 'measured'"),
        ([0.5], ShapeError, "shares for 1 layers, but there are 4"),
        (np.zeros((4, 3)), ShapeError, "3 shares per layer, but a layer has 5 positions"),
        (np.zeros((4, 5, 1)), ShapeError, "residual has 3 axes"),
    ],
)
def test_bad_residuals(attention, residual, error, text):
    with pytest.raises(error, match=text):
        network(Attention.of(attention), residual)


def test_bad_start_layers(attention):
    with pytest.raises(SelectionError, match="start_layer=9, but the model has layers 0 to 3"):
        network(Attention.of(attention), start_layer=9)
    deep = Attention({"self": Block((attention[0],), (0,), Tokens("abcde"), Tokens("abcde"), depth=4)})
    with pytest.raises(SelectionError, match="start_layer=2, but the highest layer with attention is 0"):
        network(deep, start_layer=2)
    with pytest.raises(SelectionError, match="start_layer=1 is ambiguous in an encoder-decoder model"):
        network(two_towers(), start_layer=1)
    with pytest.raises(SelectionError, match="Shares of your own need one block"):
        network(two_towers(), [0.5, 0.5])


def test_edges_that_hold_the_residual_are_used_as_they_are(attention):
    att = Attention.of(attention, edges="alti", residual_inside=True)
    assert np.allclose(network(att).stack(), attention, atol=1e-15)
    assert np.array_equal(network(att, "none").stack(), network(att).stack())
    assert residual_of(att) == residual_of(att, "none") == "inside"
    for residual in (0.5, 0.0, "add", "measured", [0.1] * 4):
        with pytest.raises(SelectionError, match="was given, but alti edges hold the residual connection already"):
            network(att, residual)


def test_gradient_edges_are_added_to_the_identity():
    w = np.array([[[0.0, 3.0], [0.25, 0.0]]])
    att = Attention.of(w, edges="gradient")
    assert residual_of(att) == "add"
    assert np.array_equal(network(att).stack()[0], [[1, 3], [0.25, 1]])
    assert np.array_equal(network(att, "none").stack()[0], w[0])
    # A share is mixed in as everywhere, with rows divided by their sums: (0, 3) and (1, 0) give (1, 3)/4.
    assert np.allclose(network(att, 0.5).stack()[0], [[0.25, 0.75], [0.2, 0.8]])
    with pytest.raises(SelectionError, match="residual='measured' is the share .* but these are gradient edges"):
        network(att, "measured")


def test_added_steps_carry_as_their_matrix_does():
    rng = np.random.default_rng(1)
    step = Step(rng.random((2, 3)), np.array([1.0, 0.4]), size=7, row=5, column=1, added=True)
    m, x = step.matrix(), rng.random((7, 3))
    assert np.allclose(m[5:, 1:4], step.weights) and np.allclose(m[[5, 6], [5, 6]], [1.0, 0.4])
    assert np.allclose(step.above(x), m @ x)
    assert np.allclose(step.below(x.T), x.T @ m)


def test_the_measured_share_is_one_less_the_mixing_ratio(attention):
    ratios = np.random.default_rng(0).random((4, 5))
    att = Attention.of(attention)
    mixed = replace(att, blocks={"self": replace(att.only, mixing=tuple(ratios))})
    stack = network(mixed, "measured").stack()
    for layer in range(4):
        for i in range(5):
            assert np.allclose(stack[layer, i], adjusted(attention[layer], 1 - ratios[layer, i])[i])
    alone = replace(att, blocks={"self": replace(att.only, mixing=(np.zeros(5),) * 4)})
    assert np.array_equal(network(alone, "measured").stack(), [np.eye(5)] * 4)
    with pytest.raises(SelectionError, match="needs the mixing ratio of each position, and self has none. Measure it"):
        network(att, "measured")


def test_a_cross_block_with_the_residual_leaves_the_rest_to_the_decoders_position():
    att = two_towers()
    cross = replace(att["cross"], mixing=(np.full(2, 0.75),) * 2)
    held = replace(att, blocks={**att.blocks, "cross": cross}, edges="norm", residual_inside=True)
    stack = network(held).stack()
    assert np.allclose(stack[0][:3, :3], att["encoder"].weights[0])
    assert np.allclose(stack[3][3:, 3:], att["decoder"].weights[0])
    assert np.allclose(stack[4][3:, :3], 0.75 * att["cross"].weights[0])
    assert np.allclose(stack[4][3:, 3:], 0.25 * np.eye(2))
    assert np.allclose(stack.sum(-1), 1)
    unweighed = replace(att, edges="value_zeroing", residual_inside=True)
    assert np.allclose(network(unweighed).stack()[4][3:, 3:], 0.5 * np.eye(2))


def test_measured_shares_work_in_both_towers():
    att = two_towers()
    with_ratios = {
        name: replace(b, mixing=tuple(np.full(len(w), 0.3) for w in b.weights)) for name, b in att.blocks.items()
    }
    assert np.allclose(network(replace(att, blocks=with_ratios), "measured").stack(), network(att, 0.7).stack())
