from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention, direct, files, raw, rollout
from attnflow.attention import SINK, Block, is_causal
from attnflow.errors import SelectionError, ShapeError, WeightsError
from attnflow.heads import reduce_heads
from attnflow.tokens import Tokens
from tests.conftest import random_attention


def two_towers() -> Attention:
    source, target = Tokens(["a", "b", "c"]), Tokens(["x", "y"])
    r = random_attention
    cross = tuple(w[:2] for w in r(3, 2, 3))
    return Attention(
        {
            "encoder": Block(tuple(r(1, 3, 3)), (0, 1, 2), source, source),
            "decoder": Block(tuple(r(2, 2, 2, causal=True)), (0, 1), target, target, causal=True),
            "cross": Block(cross, (0, 1), target, source),
        }
    )


def test_of_an_array(attention):
    att = Attention.of(attention, tokens=list("abcde"))
    assert np.array_equal(att.weights, attention)
    assert att.tokens == tuple("abcde")
    assert att.layers == (0, 1, 2, 3)
    assert repr(att) == "Attention(4 layers × 5 tokens, heads=mean, route=given)"
    assert not att.only.causal


def test_heads_are_reduced_on_the_way_in():
    w = random_attention(0, 2, 3, heads=4)
    assert np.allclose(Attention.of(w).weights, w.mean(1))
    assert Attention.of(w, heads="all").weights.shape == (2, 4, 3, 3)
    assert Attention.of(w, heads="all").only.reduced("mean").weights[0].shape == (3, 3)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ("mean", [[0.5, 0.5]]),
        ("max", [[0.8 / 1.6, 0.8 / 1.6]]),
        ("min", [[0.5, 0.5]]),
        (0, [[0.2, 0.8]]),
        (-1, [[0.8, 0.2]]),
        ([0, 1], [[0.5, 0.5]]),
    ],
)
def test_reduce_heads_by_hand(heads, expected):
    assert np.allclose(reduce_heads(np.array([[[0.2, 0.8]], [[0.8, 0.2]]]), heads), expected)


def test_min_over_heads_that_share_nothing_is_zero_not_nan():
    assert np.array_equal(reduce_heads(np.array([[[0.0, 1.0]], [[1.0, 0.0]]]), "min"), [[0, 0]])


def test_half_precision_is_reduced_in_single():
    w = random_attention(0, 1, 8, heads=64)[0]
    assert np.abs(reduce_heads(w.astype(np.float16), "mean") - w.mean(0)).max() < 1e-3
    assert reduce_heads(w.astype(np.float16), "mean").dtype == np.float32


def test_causal_is_seen_from_the_weights():
    assert Attention.of(random_attention(0, 2, 4, causal=True)).only.causal
    one = Block((np.ones((1, 1)),), (0,), Tokens(["a"]), Tokens(["a"]))
    assert not is_causal(one)


def test_layers_without_attention_are_known():
    n = Tokens(["a"])
    block = Block((np.ones((1, 1)), np.ones((1, 1))), (3, 7), n, n, depth=8)
    assert block.missing == (0, 1, 2, 4, 5, 6)


def test_sinks_can_be_kept_or_renormalised():
    w = np.array([[[0.3, 0.3], [0.5, 0.5]]])
    kept = Attention.of(w, tokens=["a", "b"], sinks="keep")
    assert kept.only.keys == ("a", "b", SINK)
    assert kept.only.queries == ("a", "b")
    assert kept.only.sink
    assert np.allclose(kept.weights, [[[0.3, 0.3, 0.4], [0.5, 0.5, 0.0]]])
    assert np.allclose(Attention.of(w, sinks="renormalise").weights, 0.5)


@pytest.mark.parametrize("make", [lambda: Attention.of(random_attention(0, 2, 3, heads=2), heads="all"), two_towers])
def test_save_and_load(tmp_path, make):
    before = make()
    before.save(tmp_path / "a.safetensors")
    after = Attention.load(tmp_path / "a.safetensors")
    assert repr(after) == repr(before)
    for name, block in before.blocks.items():
        other = after[name]
        assert all(np.array_equal(a, b) for a, b in zip(block.weights, other.weights, strict=True))
        assert (block.layers, block.queries, block.keys, block.causal, block.depth) == (
            other.layers, other.queries, other.keys, other.causal, other.depth,
        )  # fmt: skip


def test_gradients_and_lists_of_heads_survive_a_file(tmp_path):
    n = Tokens(["a", "b"])
    w = np.eye(2)
    att = Attention({"self": Block((w,), (0,), n, n, gradients=(w * 3,))}, heads=(0, 2))
    att.save(tmp_path / "a")
    after = Attention.load(tmp_path / "a")
    assert after.heads == (0, 2)
    assert np.array_equal(after.only.gradients[0], w * 3)


def test_the_record_says_which_edges_it_holds(tmp_path):
    w = random_attention(0, 2, 2)
    att = Attention.of(w, ["a", "b"], edges="alti", residual_inside=True, certificate={"layer 0": 1e-7})
    assert repr(att) == "Attention(2 layers × 2 tokens, edges=alti, heads=mean, route=given)"
    mixed = replace(att.only, mixing=(np.array([0.2, 0.3]), np.array([0.0, 1.0])))
    before = replace(att, blocks={"self": mixed})
    before.save(tmp_path / "a")
    after = Attention.load(tmp_path / "a")
    assert (after.edges, after.residual_inside, after.certificate) == ("alti", True, {"layer 0": 1e-7})
    assert [r.tolist() for r in after.only.mixing] == [[0.2, 0.3], [0.0, 1.0]]
    assert after.block("self").edges == "alti" and after.block("self").only.mixing is not None
    assert Attention.of(w).edges == "attention" and not Attention.of(w).residual_inside


def test_mixing_ratios_survive_the_reduction_of_heads():
    n = Tokens(["a", "b"])
    block = Block(tuple(random_attention(0, 1, 2, heads=3)), (0,), n, n, mixing=(np.array([0.1, 0.2]),))
    assert block.reduced("mean").mixing[0].tolist() == [0.1, 0.2]


def test_a_file_from_before_there_were_edges_still_loads(tmp_path):
    att = Attention.of(random_attention(0, 2, 3))
    att.save(tmp_path / "new")
    arrays, header = files.load(tmp_path / "new", "attention")
    for name in ("edges", "residual_inside", "certificate"):
        del header[name]
    del header["blocks"]["self"]["mixing"]
    files.save(tmp_path / "old", "attention", arrays, {k: v for k, v in header.items() if k not in ("format", "kind")})
    old = Attention.load(tmp_path / "old")
    assert (old.edges, old.residual_inside, old.certificate, old.only.mixing) == ("attention", False, None, None)


def test_rows_of_gradient_edges_may_have_any_sum():
    w = np.array([[[0.0, 3.0], [0.0, 0.0]]])
    assert np.array_equal(Attention.of(w, edges="gradient").weights, w)
    with pytest.raises(WeightsError, match="rows that sum to 0.000 … 3.000"):
        Attention.of(w, edges="alti")
    with pytest.raises(WeightsError, match="negative weight .-3., and gradient edges are at least 0"):
        Attention.of(-w, edges="gradient")


def test_bad_edges_and_mixing_ratios():
    w = random_attention(0, 1, 2)
    with pytest.raises(SelectionError, match="edges='values' is not known. Use 'attention', 'norm', 'alti'"):
        Attention.of(w, edges="values")
    with pytest.raises(SelectionError, match="edges='attention' and residual_inside=True, but attention weights"):
        Attention.of(w, residual_inside=True)
    n = Tokens(["a", "b"])
    with pytest.raises(ShapeError, match="2 rows of mixing ratios but 1 matrices"):
        Block(tuple(w), (0,), n, n, mixing=(np.ones(2), np.ones(2)))
    with pytest.raises(ShapeError, match=r"Layer 0 has mixing ratios \(3,\), but 2 output positions"):
        Block(tuple(w), (0,), n, n, mixing=(np.ones(3),))
    with pytest.raises(WeightsError, match="Layer 0 has mixing ratios 0.5 … 1.5; they are in"):
        Block(tuple(w), (0,), n, n, mixing=(np.array([0.5, 1.5]),))


def test_several_blocks_have_to_be_chosen_from():
    att = two_towers()
    assert repr(att).startswith(
        "Attention(encoder: 3 layers × 3 tokens; decoder: 2 layers × 2 tokens; cross: 2 layers × 2×3 tokens"
    )
    with pytest.raises(SelectionError, match="has 3: 'encoder', 'decoder', 'cross'. Choose one:  attention.block"):
        att.weights  # noqa: B018
    assert att.block("encoder").tokens == ("a", "b", "c")
    with pytest.raises(SelectionError, match="No block 'vision': this attention has 'encoder'"):
        att["vision"]


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        (np.zeros((2, 2, 2, 2, 2)), ShapeError, "layer 0 has 4 axes"),
        (np.zeros((1, 0, 0)), ShapeError, "layer 0 is empty"),
        (np.full((1, 2, 2), np.nan), WeightsError, "4 NaN among 4 weights"),
        (np.array([[[1.5, -0.5]]]), WeightsError, "negative weight .-0.5."),
        (
            np.array([[[0.5, 0.6]]]),
            WeightsError,
            r"rows that sum to 1.100 … 1.100, and attention rows sum to 1. Pass sinks=",
        ),
        (np.zeros((0, 2, 2)), ShapeError, "0 layers of attention"),
    ],
)
def test_bad_weights(weights, error, text):
    with pytest.raises(error, match=text):
        Attention.of(weights)


def test_bad_names_heads_and_sinks(attention):
    with pytest.raises(ShapeError, match="2 tokens but attention over 5 positions"):
        Attention.of(attention, tokens=["a", "b"])
    with pytest.raises(SelectionError, match="heads=7, but the model has 4 heads: use 0 to 3"):
        Attention.of(random_attention(0, 1, 2, heads=4), heads=7)
    with pytest.raises(SelectionError, match="heads='median' is not known"):
        Attention.of(random_attention(0, 1, 2, heads=4), heads="median")
    with pytest.raises(SelectionError, match="sinks='drop' is not known"):
        Attention.of([[[0.1, 0.1]]], sinks="drop")
    with pytest.raises(WeightsError, match="rows that sum to 2.000"):
        Attention.of([[[1.0, 1.0]]], sinks="keep")
    with pytest.raises(ShapeError, match="1 matrices but 2 layer numbers"):
        Attention.of(attention[:1], layers=[0, 1])


def test_integers_are_taken_as_numbers():
    assert Attention.of(np.eye(2, dtype=int)[None]).weights.dtype == np.float64


def test_inputs_that_are_no_outputs_are_numbered():
    weights = np.full((1, 4, 8), 1 / 8)
    held = Attention.of(weights, tokens=list("abcd"))
    assert held.only.queries == tuple("abcd") and held.only.keys == tuple("01234567")
    for method in (raw, direct):
        assert method(weights).scores.shape == (1, 4, 8)
    assert rollout(weights, residual="none").scores.shape == (1, 4, 8)
