from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow, raw, rollout
from attnflow.correlation import correlate
from attnflow.errors import SelectionError, ShapeError
from attnflow.flowgraph import flow_graph, graph_at_once, graph_of
from attnflow.flowgraph.heads import Room, ways
from attnflow.flowgraph.image import patches, pixels
from attnflow.scoring import registry
from attnflow.scoring.network import network
from attnflow.tokens import Tokens
from attnflow.views.page_data import page_data
from tests.conftest import random_attention

TOKENS = Tokens(["[CLS]", "cab", "##s", "are"], [True, False, False, False], [None, 0, 0, 1], marks={"cls": 0})
ATTENTION = Attention.of(random_attention(4, 3, 4), tokens=TOKENS, model="m")
GRAPH = flow_graph(ATTENTION)


def test_a_small_graph_is_complete_and_starts_where_a_classifier_reads():
    assert GRAPH.complete
    assert (GRAPH.outputs[0].layer, GRAPH.outputs[0].row) == (2, 0)
    assert len(GRAPH.outputs) == 12
    assert len(GRAPH.pairs) == 48


def test_scores_are_those_of_the_methods():
    for method in (raw, rollout, flow):
        scores = method(ATTENTION).scores
        for output in GRAPH.outputs:
            assert np.array_equal(output.scores[method.__name__], scores[output.layer, output.row])


def doubled(r: Relevance) -> Relevance:
    """A result that no method gives: where it is shown, it was not computed anew."""
    return replace(r, scores=2 * r.scores)


@pytest.fixture
def computed(monkeypatch):
    """Names of the methods that were computed, in order."""
    seen = []
    for name, method in registry._REGISTRY.items():

        def spy(*args, _method=method, position=None, **options):
            seen.append(_method.name)
            return _method.function(*args, position=position, **options)

        monkeypatch.setitem(registry._REGISTRY, name, replace(method, code=spy))
    return seen


@pytest.mark.parametrize("method", [raw, rollout, flow])
@pytest.mark.parametrize("position", [None, 1])
def test_a_result_is_shown_as_it_is(method, position):
    r = doubled(method(ATTENTION, position=position))
    g = flow_graph(ATTENTION, [r])
    fresh = method(ATTENTION).scores
    for output in g.outputs:
        own = r.scores[output.layer, output.row] if position is None else r.scores[output.layer]
        expected = own if position in (None, output.row) else fresh[output.layer, output.row]
        assert np.array_equal(output.scores[r.method], expected)
    assert g.outputs[0].row == (0 if position is None else position)


def test_what_was_given_whole_is_not_computed_again(computed):
    flow_graph(ATTENTION, [raw(ATTENTION), rollout(ATTENTION), flow(ATTENTION)])
    assert computed == []
    flow_graph(ATTENTION, [raw(ATTENTION), flow(ATTENTION)], methods=["flow"])
    assert computed == []
    flow_graph(ATTENTION, [raw(ATTENTION), flow(ATTENTION)])
    assert computed == ["rollout"]


def test_a_large_graph_computes_no_more_than_it_shows(monkeypatch, computed):
    monkeypatch.setattr("attnflow.flowgraph.graph.Room", lambda: Room(scores=(4 + 3) * 3 * 3))
    g = flow_graph(ATTENTION, [method(ATTENTION, position=1) for method in (raw, rollout, flow)])
    assert [(o.layer, o.row) for o in g.outputs] == [(2, 1), (1, 1), (0, 1)]
    assert computed == []


def test_words_and_dropped_tokens_are_shown_as_they_are():
    r = doubled(flow(ATTENTION, position=3))
    words = flow_graph(ATTENTION, [r.words()])
    first, other = words.outputs[words.find(-1, 3)], words.outputs[words.find(-1, 1)]
    assert np.array_equal(first.words["flow"], r.words().scores[-1])
    assert np.array_equal(first.scores["flow"], r.scores[-1] / 2)  # of single pieces the result says nothing
    assert np.array_equal(other.words["flow"], flow(ATTENTION, position=1).words().scores[-1])
    dropped = flow_graph(ATTENTION, [r.drop_special()])
    scores = dropped.outputs[0].scores["flow"]
    assert np.array_equal(scores[1:], r.scores[-1, 1:])
    assert scores[0] == r.scores[-1, 0] / 2
    assert (words.as_words, words.with_special) == (True, True)
    assert (dropped.as_words, dropped.with_special) == (False, False)
    both = flow_graph(ATTENTION, [doubled(flow(ATTENTION)).drop_special()])
    assert np.array_equal(both.outputs[both.find(1, 2)].scores["flow"][1:], 2 * flow(ATTENTION).scores[1, 2, 1:])
    assert np.array_equal(both.outputs[both.find(1, 0)].scores["flow"], flow(ATTENTION).scores[1, 0])


def test_a_position_among_words_is_not_taken_for_one_of_tokens():
    r = doubled(flow(ATTENTION).words().at(position=2))  # the word "are", which is token 3
    g = flow_graph(ATTENTION, [r])
    assert np.array_equal(g.outputs[g.find(-1, 2)].words["flow"], flow(ATTENTION, position=2).words().scores[-1])


def test_the_graph_is_that_of_the_given_flow():
    f, roll = flow(ATTENTION, position=1, residual=0.2, start_layer=1), rollout(ATTENTION, position=1, residual=0.3)
    g = flow_graph(ATTENTION, [roll, f])
    assert np.array_equal(g.capacities, network(ATTENTION, 0.2, 1).stack())
    assert np.array_equal(g.outputs[g.find(2, 0)].scores["rollout"], rollout(ATTENTION, residual=0.3).scores[2, 0])
    assert "residual=0.3" in g.methods["rollout"]
    assert "residual=0.2" in g.methods["flow"]
    raised = flow_graph(ATTENTION, [f], residual=0.5, start_layer=0)
    assert list(raised.methods) == ["raw", "rollout", "flow", "flow (2)"]
    assert np.array_equal(raised.outputs[raised.find(2, 1)].scores["flow (2)"], f.scores[-1])
    assert np.array_equal(raised.capacities, network(ATTENTION).stack())


def test_results_of_one_method_with_other_choices_stand_beside_one_another():
    first, second = (rollout(ATTENTION, position=0, residual=share) for share in (0.5, 0.2))
    again = rollout(ATTENTION, position=1, residual=0.2)
    g = flow_graph(ATTENTION, [first, second, again])
    assert list(g.methods) == ["raw", "rollout", "flow", "rollout (2)"]
    for position, r in ((0, second), (1, again)):
        assert np.array_equal(g.outputs[g.find(1, position)].scores["rollout (2)"], r.scores[1])
    assert "rollout (2)" not in g.outputs[g.find(1, 2)].scores
    scores = np.array([[0.9, 0.1, 0.4, 0.2]])
    twice = [Relevance(k * scores, TOKENS, ("input",), "gradient") for k in (1, 3)]
    g = flow_graph(ATTENTION, twice)
    assert g.of_inputs == {"gradient", "gradient (2)"}
    assert np.array_equal(g.outputs[5].scores["gradient (2)"], 3 * scores[0])


def test_scores_of_other_edges_say_so():
    r = replace(rollout(ATTENTION, position=0), edges="alti")
    g = flow_graph(ATTENTION, [r])
    assert list(g.methods) == ["raw", "rollout", "flow", "rollout (alti edges)"]


@pytest.fixture
def toy():
    """A method of the user's own: uniform scores, one output position at a time."""

    @registry.register("toy", help="The same score for every input.")
    def toy(attention, position):
        block = attention.only
        rows = np.full((len(block.layers), len(block.keys)), (1 + position) / 8)
        return Relevance(rows, block.keys, block.layers, "toy")

    yield toy
    registry.unregister("toy")


def test_a_method_of_the_users_own_has_bars_like_a_built_in_one(toy):
    given = flow_graph(ATTENTION, [toy(ATTENTION, 1)], position=1)
    assert list(given.methods) == ["raw", "rollout", "flow", "toy"]
    assert given.outputs[0].scores["toy"].tolist() == [0.25] * 4
    assert "toy" not in given.outputs[given.find(2, 0)].scores
    for heads in (ATTENTION, KEPT):
        everywhere = flow_graph(heads, methods=["raw", "toy"])
        for g in (everywhere, *everywhere.fusions):
            assert list(g.methods) == ["raw", "toy", "flow"]
            assert all(o.scores["toy"].tolist() == [(1 + o.row) / 8] * 4 for o in g.outputs)
    with pytest.raises(SelectionError, match="'toyy' is not known"):
        flow_graph(ATTENTION, methods=["toyy"])


def test_correlations_are_those_of_the_given_scores():
    g = Relevance(np.array([[0.9, 0.1, 0.4, 0.2]]), TOKENS, ("input",), "gradient")
    own = replace(flow(ATTENTION, position=0), scores=np.random.default_rng(0).random((3, 4)))
    curves = {c.method: c.values for c in flow_graph(ATTENTION, [own, g]).curves}
    assert np.array_equal(curves["flow"], correlate(own, g, special_tokens=False).values)
    assert np.array_equal(curves["raw"], correlate(raw(ATTENTION, position=0), g, special_tokens=False).values)


def test_results_without_a_graph():
    g = Relevance(np.ones((1, 4)), TOKENS, ("input",), "gradient")
    f = flow(ATTENTION, position=0)
    assert graph_of([g]) is None
    assert graph_of([replace(f, attention=None)]) is None
    assert graph_of([f, g.words()]) is None
    assert graph_of([f, g.drop_special()]) is None
    assert graph_of([f.words(), g]) is not None
    single = replace(g, unit="word")  # every word is one token
    assert graph_of([f, single]).of_inputs == {"gradient"}
    assert graph_at_once([f]).fusions == ()
    assert graph_at_once([g]) is None
    assert graph_at_once([flow(random_attention(0, 12, 65), position=0)]) is None


def test_words_and_special_shares_are_those_of_the_result():
    r = flow(ATTENTION, layer=1, position=3)
    output = GRAPH.outputs[GRAPH.find(1, 3)]
    assert np.allclose(output.words["flow"], r.words().scores[0])
    assert output.special["flow"] == pytest.approx(r.special_share)


def test_edges_carry_the_flow_and_stay_below_capacity():
    for (t, sink), pair in GRAPH.pairs.items():
        assert pair.value == GRAPH.outputs[t].scores["flow"][sink]
        assert (pair.flow <= GRAPH.capacities[tuple(pair.edges.T)] + 1e-12).all()
        assert (np.diff(pair.flow) <= 0).all()
        assert len(pair.flow) == pair.count  # so small a flow is kept whole
        arrives = sum(f for (h, _, k), f in zip(pair.edges.tolist(), pair.flow, strict=True) if (h, k) == (0, sink))
        assert arrives == pytest.approx(pair.value)


def test_both_cuts_have_the_value_of_the_flow():
    for pair in GRAPH.pairs.values():
        for side in ("source", "sink"):
            assert sum(GRAPH.capacities[edge] for edge in pair.cuts[side]) == pytest.approx(pair.value, abs=1e-12)


def test_the_bound_is_named():
    enters = network(ATTENTION).stack()[0].sum(0)
    for (_, sink), pair in GRAPH.pairs.items():
        at_input, at_output = (np.isclose(pair.value, c, rtol=0, atol=1e-12) for c in (enters[sink], 1.0))
        assert pair.bound == ("input" if at_input else "output" if at_output else "between")


def test_the_residual_part_is_known():
    assert np.allclose(GRAPH.residual, 0.5)


def test_references_give_curves_without_special_tokens():
    g = Relevance(np.array([[0.9, 0.1, 0.4, 0.2]]), TOKENS, ("input",), "gradient", {"target": 1})
    p = flow_graph(ATTENTION, [g, raw(ATTENTION, position=0)])
    assert list(p.methods) == ["raw", "rollout", "flow", "gradient"]
    assert all(np.array_equal(t.scores["gradient"], g.scores[0]) for t in p.outputs)
    assert [(c.method, c.reference) for c in p.curves] == [(m, "gradient") for m in ("raw", "rollout", "flow")]
    expected = correlate(flow(ATTENTION, position=0), g, special_tokens=False).values
    assert np.array_equal(p.curves[2].values, expected)


def test_a_rescaled_flow_stands_beside_the_flow_of_the_graph():
    p = flow_graph(ATTENTION, [flow(ATTENTION, position=0, normalize=True)])
    assert list(p.methods)[-1] == "flow (rescaled)"
    assert "flow (rescaled)" in p.outputs[p.find(1, 0)].scores
    assert "flow (rescaled)" not in p.outputs[p.find(1, 2)].scores


def test_a_limit_on_pairs_keeps_the_first_output_whole():
    p = flow_graph(ATTENTION, pairs=6)
    assert not p.complete
    assert sorted(sink for t, sink in p.pairs if t == 0) == [0, 1, 2, 3]
    assert len(p.pairs) == 6


def test_large_graphs_hold_one_position_and_one_layer(monkeypatch):
    monkeypatch.setattr("attnflow.flowgraph.graph.Room", lambda: Room(scores=(4 + 3) * 3 * 8))
    p = flow_graph(ATTENTION, position=1, layer=1)
    assert (p.outputs[0].layer, p.outputs[0].row) == (1, 1)
    assert {(0, 1), (1, 1), (2, 1)} <= {(t.layer, t.row) for t in p.outputs}
    for t in p.outputs:
        assert t.layer == 1 or t.row == 1
        assert np.allclose(t.scores["flow"], flow(ATTENTION).scores[t.layer, t.row])
    with pytest.raises(SelectionError, match="Layer 0, position 2 is not one of the"):
        p.find(0, 2)


HEADS = np.stack([random_attention(seed, 3, 4) for seed in (7, 8)], 1)
KEPT = Attention.of(HEADS, tokens=TOKENS, heads="all")


def test_each_way_to_bring_heads_down_has_a_graph_of_its_own():
    g = Relevance(np.array([[0.9, 0.1, 0.4, 0.2]]), TOKENS, ("input",), "gradient")
    p = flow_graph(KEPT, [g])
    assert [q.heads for q in (p, *p.fusions)] == ["mean", "max", "min", "head 0", "head 1"]
    assert p.head_count == 2
    for q, heads in zip((p, *p.fusions), ways(KEPT), strict=True):
        for method in (raw, rollout, flow):
            scores = method(KEPT, heads=heads).scores
            assert all(np.array_equal(t.scores[method.__name__], scores[t.layer, t.row]) for t in q.outputs)
        assert q.complete
        assert list(q.methods) == ["raw", "rollout", "flow", "gradient"]
        assert len(q.curves) == 3


def test_a_result_of_some_heads_starts_with_these():
    assert ways(KEPT, 1) == [1, "mean", "max", "min", 0]
    assert ways(KEPT, [0, 1])[0] == (0, 1)
    assert ways(ATTENTION) == ["mean"]
    assert [q.heads for q in flow_graph(KEPT, heads=["max", (0, 1)]).fusions] == ["heads 0, 1"]
    assert flow_graph(KEPT, heads="min").fusions == ()
    with pytest.raises(SelectionError, match="captured with heads='mean'"):
        flow_graph(ATTENTION, heads=["max"])


def test_scores_that_came_from_one_fusion_stay_with_it():
    p = flow_graph(KEPT, [flow(KEPT, position=0, normalize=True)])
    assert "flow (rescaled)" in p.methods
    assert all("flow (rescaled)" not in q.methods for q in p.fusions)


def test_other_ways_share_what_the_first_leaves():
    half, rest = Room().part(2), Room(100, 1000).rest(40, 400, 3)
    assert half.scores * 2 == Room().scores
    assert (rest.scores, rest.edges) == (20, 200)


def test_layers_of_two_towers_have_names():
    def block(q, k, seed):
        w = random_attention(seed, 2, max(q, k))[:, :q, :k]
        made = Attention.of(w / w.sum(-1, keepdims=True))["self"]
        return replace(made, keys=Tokens([f"in{i}" for i in range(k)])) if q != k else made

    p = flow_graph(Attention({"encoder": block(4, 4, 0), "decoder": block(3, 3, 1), "cross": block(3, 4, 2)}))
    assert [level.tower for level in p.levels] == ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
    assert p.net.size == 7
    assert p.outputs[0].row == 2
    assert p.plot().get_ylabel() == "level"


def test_inputs_that_a_method_does_not_score_are_missing():
    part = Relevance(np.array([[0.5, 0.2]]), Tokens(TOKENS[:2]), ("input",), "gradient")
    output = flow_graph(ATTENTION, [part]).outputs[0]
    assert np.array_equal(np.isnan(output.scores["gradient"]), [False, False, True, True])
    assert np.array_equal(np.isnan(output.words["gradient"]), [False, True, True])
    with pytest.raises(ShapeError, match="before words"):
        flow_graph(ATTENTION, [replace(part, tokens=Tokens(["x", "y"]))])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (3, 4, 6)])
def test_images_of_every_layout(shape):
    assert pixels(np.random.default_rng(0).random(shape)).shape == (4, 6, 3)


def test_images_keep_their_bytes():
    from PIL import Image

    array = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    assert np.array_equal(pixels(Image.fromarray(array)), array)
    with pytest.raises(ShapeError, match="neither"):
        pixels(np.zeros((2, 2, 2, 2)))


def test_the_grid_comes_from_the_names_the_caller_or_the_square():
    names = Tokens(["[CLS]", *(f"patch {r},{c}" for r in range(2) for c in range(3))], [True] + [False] * 6)
    assert patches(names) == ((2, 3), (1, 2, 3, 4, 5, 6))
    assert patches(Tokens.numbered(6), (3, 2))[0] == (3, 2)
    assert patches(Tokens.numbered(9))[0] == (3, 3)
    with pytest.raises(ShapeError, match="2 × 2 has 4 patches, but 6 tokens"):
        patches(Tokens.numbered(6))


def test_the_page_of_a_graph_can_be_written(tmp_path):
    text = GRAPH.to_html(tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text() == text
    assert GRAPH._repr_html_().startswith("<iframe")


def test_results_of_several_edges_make_one_graph_for_each():
    tokens = ["a", "b", "c"]
    plain = Attention.of(random_attention(1, 2, 3), tokens)
    held = Attention.of(random_attention(2, 2, 3), tokens, edges="alti", residual_inside=True)
    results = [
        rollout(plain, position=0),
        replace(rollout(held, position=0), method="rollout:alti"),
        replace(flow(held, position=0), method="flow:alti"),
        Relevance(np.ones((1, 3)), Tokens(tokens), ("input",), "blankout"),
    ]
    graph = graph_of(results)
    assert [g.edges for g in (graph, *graph.fusions)] == ["attention", "alti"]
    other = graph.fusions[0]
    assert set(graph.methods) == set(other.methods) == {"raw", "rollout", "flow", "blankout"}
    assert other.heads == "together" and np.allclose(other.capacities, held.weights)
    assert np.allclose(other.outputs[0].scores["rollout"], results[1].scores[-1])
    assert np.allclose(other.outputs[0].scores["flow"], results[2].scores[-1])
    assert np.allclose(graph.outputs[0].scores["rollout"], results[0].scores[-1])
    alone = graph_of(results[1:2])
    assert (alone.edges, alone.fusions) == ("alti", ()) and "rollout:alti" not in alone.methods


def test_capacities_above_one_fit_on_a_page():
    steep = Attention.of(5 * np.random.default_rng(0).random((2, 3, 3)), edges="gradient")
    graph = graph_of([flow(steep, position=0)])
    fusion = page_data(graph)["fusions"][0]
    capacity = np.frombuffer(base64.b64decode(fusion["edgeCapacity"]), "<f4")
    assert fusion["unit"] == 1 and capacity[0] == pytest.approx(graph.capacities.max()) and capacity[0] > 1
    assert page_data(GRAPH)["fusions"][0]["unit"] == 65_535


def test_a_long_text_has_as_many_other_outputs_as_there_is_time_for(monkeypatch):
    monkeypatch.setattr("attnflow.flowgraph.heads.OTHERS", 2 * 9**3)
    found = flow_graph(Attention.of(random_attention(3, 2, 9)), position=4)
    assert [(o.layer, o.row) for o in found.outputs] == [(1, 4), (0, 4), (1, 0), (1, 1)]
    assert not found.complete
