"""The flow into several inputs together, against networkx with a sink of its own."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from attnflow import Attention, Relevance, flow
from attnflow.errors import SelectionError, ShapeError
from attnflow.flowgraph import flow_graph
from attnflow.scoring.flow.integers import integers
from attnflow.scoring.flow.joined import joined_flows
from attnflow.scoring.network import network
from attnflow.tokens import Tokens
from tests.conftest import random_attention
from tests.scoring.flow.networks import instances, softmax_network

TOKENS = Tokens(
    ["[CLS]", "un", "##believ", "##able", "key", "cab", "##inets"],
    special=[True] + [False] * 6,
    word_ids=[None, 0, 0, 0, 1, 2, 2],
    words={0: "unbelievable", 1: "key", 2: "cabinets"},
    marks={"cls": 0},
)
WEIGHTS = random_attention(3, 4, 7)


def oracle(stack, group, top, row) -> float:
    """networkx on the whole numbers of the engine, with a sink that every input of the group has an edge to."""
    caps = integers(stack, spare=4)
    graph = nx.DiGraph()
    graph.add_nodes_from([(top, row), "sink"])
    for h, i, k in np.argwhere(caps.cap[:top] > 0).tolist():
        graph.add_edge((h + 1, i), (h, k), capacity=int(caps.cap[h, i, k]))
    for j in group:
        graph.add_edge((0, j), "sink")  # without a capacity: unlimited
    return nx.maximum_flow_value(graph, (top, row), "sink") * 2.0**-caps.bits


@pytest.mark.parametrize("seed", [0, 1])
def test_every_kind_of_network(seed):
    r = np.random.default_rng(seed)
    steps, n = (3, 6) if seed else (5, 5)
    groups = [[0, 1], [2], [3, 4]]
    for name, stack in instances(r, steps, n):
        for rows in ([n - 1], list(range(n))):  # one output is solved in another way than all
            got = joined_flows(stack, groups, [1, steps], rows)
            want = [[[oracle(stack, g, top, row) for g in groups] for row in rows] for top in (1, steps)]
            assert np.allclose(got, want, rtol=0, atol=1e-15), name


def test_a_deep_causal_network_of_a_language_model():
    stack = softmax_network(np.random.default_rng(0), 12, 40, causal=True, sink=3.0, heads=2)
    groups = [[0], [1, 2, 3], [4, 5], [20, 21, 22, 23], [38, 39]]
    got = joined_flows(stack, groups, [12], [39])[0, 0]
    assert np.allclose(got, [oracle(stack, g, 12, 39) for g in groups], rtol=0, atol=1e-15)


def test_the_flow_of_a_word_lies_between_the_largest_and_the_sum_of_its_pieces():
    f = flow(WEIGHTS, tokens=TOKENS)
    words = f.words()
    assert words.tokens == ("[CLS]", "unbelievable", "key", "cabinets")
    by_key = f.key_words().scores
    for g, members in enumerate(([0], [1, 2, 3], [4], [5, 6])):
        pieces = f.scores[..., members]
        assert (by_key[..., g] >= pieces.max(-1) - 1e-12).all()
        assert (by_key[..., g] <= pieces.sum(-1) + 1e-12).all()
        assert (by_key[..., g] <= 1 + 1e-12).all()  # no output can draw more than it has
    assert (by_key[-1, :, 1] < f.scores[-1, :, 1:4].sum(-1) - 0.1).any()  # and it is not the sum
    assert np.array_equal(by_key[..., [0, 2]], f.scores[..., [0, 4]])  # a word of one piece keeps its flow
    stack = network(Attention.of(WEIGHTS)).stack()
    assert by_key[3, 6, 1] == pytest.approx(oracle(stack, [1, 2, 3], 4, 6), abs=1e-15)
    assert np.allclose(words.scores[:, 1], by_key[:, 1:4].mean(1))  # an output word is the mean of its pieces


def test_at_the_first_layer_weights_add_up():
    f = flow(WEIGHTS, tokens=TOKENS, layer=0, residual="none", position=0)
    assert f.words().scores[0, 1] == pytest.approx(WEIGHTS[0, 0, 1:4].sum())


def test_the_order_of_words_layers_positions_and_dropping_does_not_matter():
    whole = flow(WEIGHTS, tokens=TOKENS)
    want = whole.key_words().scores
    assert np.allclose(whole.at(position=4).words().scores, want[:, 4])
    assert np.allclose(whole.at(layer=1).key_words().scores, want[1:2])
    assert np.allclose(flow(WEIGHTS, tokens=TOKENS, position=4, layer=2).words().scores, want[2:3, 4])
    assert np.allclose(whole.drop_special().key_words().scores, want[:, 1:, 1:])
    assert np.allclose(whole.drop_special().at(position=3).words().scores, want[:, 4, 1:])
    assert np.allclose(whole.words().drop_special().scores, whole.drop_special().words().scores)


def test_rescaled_rows_are_rescaled_by_words():
    plain = flow(WEIGHTS, tokens=TOKENS, position=2).words().scores
    rescaled = flow(WEIGHTS, tokens=TOKENS, position=2, normalize=True).words().scores
    assert np.allclose(rescaled, plain / plain.sum(-1, keepdims=True))
    causal = np.tril(WEIGHTS) / np.tril(WEIGHTS).sum(-1, keepdims=True)
    field = flow(causal, tokens=TOKENS, position=6, receptive_field=True).words().scores
    plain = flow(causal, tokens=TOKENS, position=6).words().scores
    scaled = plain / np.array([1, 6 / 7, 3 / 7, 2 / 7])  # the share of outputs that see the first piece of each word
    assert np.allclose(field, scaled / scaled.sum(-1, keepdims=True) * plain.sum(-1, keepdims=True))


def test_other_edges_and_heads():
    heads = np.stack([random_attention(seed, 3, 7) for seed in range(2)], 1)
    all_heads = Attention.of(heads, TOKENS, heads="all")
    one = flow(all_heads, heads=1, position=0, residual=0.2, start_layer=1)
    stack = network(Attention.of(heads[:, 1]), 0.2, 1).stack()
    assert one.words().scores[-1, 3] == pytest.approx(oracle(stack, [5, 6], 2, 0), abs=1e-15)
    norms = flow(Attention.of(WEIGHTS, TOKENS, edges="norm", residual_inside=True), position=0)
    assert norms.words().scores[-1, 1] == pytest.approx(oracle(WEIGHTS.astype(float), [1, 2, 3], 4, 0), abs=1e-12)


def test_what_cannot_be_computed_is_refused(tmp_path):
    f = flow(WEIGHTS, tokens=TOKENS)
    f.save(tmp_path / "flow")
    loaded = Relevance.load(tmp_path / "flow")
    assert loaded.joins == ("flow",)
    assert not loaded.has_words
    with pytest.raises(SelectionError, match="7 tokens of this flow make 4 words, and flows into the pieces .* do not"):
        loaded.words()
    f.words().save(tmp_path / "words")
    assert np.array_equal(Relevance.load(tmp_path / "words").words().scores, f.words().scores)
    one = flow(WEIGHTS, tokens=["a"] * 7)
    one.save(tmp_path / "tokens")
    assert Relevance.load(tmp_path / "tokens").words().scores.shape == (4, 7, 7)  # nothing to join
    with pytest.raises(ShapeError, match="does not say which of the 7 outputs"):
        replace(f.at(position=2), position=None, settings={}).words()
    with pytest.raises(ShapeError, match="cannot be computed"):
        replace(f, tokens=Tokens(list("abcdefg"), word_ids=[0, 0, 1, 2, 3, 4, 5])).words()


def test_the_page_shows_the_flow_of_words():
    attention = Attention.of(WEIGHTS, TOKENS)
    words = flow(attention).key_words()
    graph = flow_graph(attention, [flow(attention, position=0)])
    for output in graph.outputs:
        assert np.allclose(output.words["flow"], words.scores[output.layer, output.row])
        assert np.allclose(output.words["raw"], [output.scores["raw"][list(m)].sum() for m in graph.words.members])
