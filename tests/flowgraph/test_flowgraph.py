from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow, raw, rollout
from attnflow.correlation import correlate
from attnflow.errors import SelectionError, ShapeError
from attnflow.flowgraph import picture
from attnflow.flowgraph.heads import Room, ways
from attnflow.flowgraph.image import patches, pixels
from attnflow.scoring.network import network
from attnflow.tokens import Tokens
from tests.conftest import random_attention

TOKENS = Tokens(["[CLS]", "cab", "##s", "are"], [True, False, False, False], [None, 0, 0, 1], marks={"cls": 0})
ATTENTION = Attention.of(random_attention(4, 3, 4), tokens=TOKENS, model="m")
PICTURE = picture(ATTENTION)


def test_a_small_picture_is_complete_and_starts_where_a_classifier_reads():
    assert PICTURE.complete
    assert (PICTURE.targets[0].layer, PICTURE.targets[0].row) == (2, 0)
    assert len(PICTURE.targets) == 12
    assert len(PICTURE.pairs) == 48


def test_scores_are_those_of_the_methods():
    for method in (raw, rollout, flow):
        scores = method(ATTENTION).scores
        for target in PICTURE.targets:
            assert np.array_equal(target.scores[method.__name__], scores[target.layer, target.row])


def test_words_and_special_shares_are_those_of_the_result():
    r = flow(ATTENTION, layer=1, position=3)
    target = PICTURE.targets[PICTURE.find(1, 3)]
    assert np.allclose(target.words["flow"], r.words().scores[0])
    assert target.special["flow"] == pytest.approx(r.special_share)


def test_edges_carry_the_flow_and_stay_below_capacity():
    for (t, sink), pair in PICTURE.pairs.items():
        assert pair.value == PICTURE.targets[t].scores["flow"][sink]
        assert (pair.flow <= PICTURE.capacities[tuple(pair.edges.T)] + 1e-12).all()
        assert (np.diff(pair.flow) <= 0).all()
        assert len(pair.flow) == pair.count  # so small a flow is kept whole
        arrives = sum(f for (h, _, k), f in zip(pair.edges.tolist(), pair.flow, strict=True) if (h, k) == (0, sink))
        assert arrives == pytest.approx(pair.value)


def test_both_cuts_have_the_value_of_the_flow():
    for pair in PICTURE.pairs.values():
        for side in ("source", "sink"):
            assert sum(PICTURE.capacities[edge] for edge in pair.cuts[side]) == pytest.approx(pair.value, abs=1e-12)


def test_the_bound_is_named():
    enters = network(ATTENTION).stack()[0].sum(0)
    for (_, sink), pair in PICTURE.pairs.items():
        at_input, at_output = (np.isclose(pair.value, c, rtol=0, atol=1e-12) for c in (enters[sink], 1.0))
        assert pair.bound == ("input" if at_input else "output" if at_output else "between")


def test_the_residual_part_is_known():
    assert np.allclose(PICTURE.residual, 0.5)


def test_references_give_curves_without_special_tokens():
    g = Relevance(np.array([[0.9, 0.1, 0.4, 0.2]]), TOKENS, ("input",), "gradient", {"target": 1})
    p = picture(ATTENTION, [g, raw(ATTENTION, position=0)])
    assert list(p.methods) == ["raw", "rollout", "flow", "gradient"]
    assert all(np.array_equal(t.scores["gradient"], g.scores[0]) for t in p.targets)
    assert [(c.method, c.reference) for c in p.curves] == [(m, "gradient") for m in ("raw", "rollout", "flow")]
    expected = correlate(flow(ATTENTION, position=0), g, special_tokens=False).values
    assert np.array_equal(p.curves[2].values, expected)


def test_a_rescaled_flow_stands_beside_the_flow_of_the_graph():
    p = picture(ATTENTION, [flow(ATTENTION, position=0, normalize=True)])
    assert list(p.methods)[-1] == "flow (rescaled)"
    assert "flow (rescaled)" in p.targets[p.find(1, 0)].scores
    assert "flow (rescaled)" not in p.targets[p.find(1, 2)].scores


def test_a_limit_on_pairs_keeps_the_first_target_whole():
    p = picture(ATTENTION, pairs=6)
    assert not p.complete
    assert sorted(sink for t, sink in p.pairs if t == 0) == [0, 1, 2, 3]
    assert len(p.pairs) == 6


def test_large_pictures_hold_one_position_and_one_layer(monkeypatch):
    monkeypatch.setattr("attnflow.flowgraph.build.Room", lambda: Room(scores=(4 + 3) * 3 * 8))
    p = picture(ATTENTION, position=1, layer=1)
    assert (p.targets[0].layer, p.targets[0].row) == (1, 1)
    assert {(0, 1), (1, 1), (2, 1)} <= {(t.layer, t.row) for t in p.targets}
    for t in p.targets:
        assert t.layer == 1 or t.row == 1
        assert np.allclose(t.scores["flow"], flow(ATTENTION).scores[t.layer, t.row])
    with pytest.raises(SelectionError, match="Layer 0, position 2 is not one of the"):
        p.find(0, 2)


HEADS = np.stack([random_attention(seed, 3, 4) for seed in (7, 8)], 1)
KEPT = Attention.of(HEADS, tokens=TOKENS, heads="all")


def test_each_way_to_bring_heads_down_has_a_picture_of_its_own():
    g = Relevance(np.array([[0.9, 0.1, 0.4, 0.2]]), TOKENS, ("input",), "gradient")
    p = picture(KEPT, [g])
    assert [q.heads for q in (p, *p.fusions)] == ["mean", "max", "min", "head 0", "head 1"]
    assert p.head_count == 2
    for q, heads in zip((p, *p.fusions), ways(KEPT), strict=True):
        for method in (raw, rollout, flow):
            scores = method(KEPT, heads=heads).scores
            assert all(np.array_equal(t.scores[method.__name__], scores[t.layer, t.row]) for t in q.targets)
        assert q.complete
        assert list(q.methods) == ["raw", "rollout", "flow", "gradient"]
        assert len(q.curves) == 3


def test_a_result_of_some_heads_starts_with_these():
    assert ways(KEPT, 1) == [1, "mean", "max", "min", 0]
    assert ways(KEPT, [0, 1])[0] == (0, 1)
    assert ways(ATTENTION) == ["mean"]
    assert [q.heads for q in picture(KEPT, heads=["max", (0, 1)]).fusions] == ["heads 0, 1"]
    assert picture(KEPT, heads="min").fusions == ()
    with pytest.raises(SelectionError, match="captured with heads='mean'"):
        picture(ATTENTION, heads=["max"])


def test_scores_that_came_from_one_fusion_stay_with_it():
    p = picture(KEPT, [flow(KEPT, position=0, normalize=True)])
    assert "flow (rescaled)" in p.methods
    assert all("flow (rescaled)" not in q.methods for q in p.fusions)


def test_other_ways_share_what_the_first_leaves():
    half, rest = Room().half(), Room(100, 1000).rest(40, 400, 3)
    assert half.scores * 2 == Room().scores
    assert (rest.scores, rest.edges) == (20, 200)


def test_layers_of_two_towers_have_names():
    def block(q, k, seed):
        w = random_attention(seed, 2, max(q, k))[:, :q, :k]
        made = Attention.of(w / w.sum(-1, keepdims=True))["self"]
        return replace(made, keys=Tokens([f"in{i}" for i in range(k)])) if q != k else made

    p = picture(Attention({"encoder": block(4, 4, 0), "decoder": block(3, 3, 1), "cross": block(3, 4, 2)}))
    assert [level.tower for level in p.levels] == ["encoder", "encoder", "decoder", "cross", "decoder", "cross"]
    assert p.net.size == 7
    assert p.targets[0].row == 2
    assert p.plot().get_ylabel() == "level"


def test_inputs_that_a_method_does_not_score_are_missing():
    part = Relevance(np.array([[0.5, 0.2]]), Tokens(TOKENS[:2]), ("input",), "gradient")
    target = picture(ATTENTION, [part]).targets[0]
    assert np.array_equal(np.isnan(target.scores["gradient"]), [False, False, True, True])
    assert np.array_equal(np.isnan(target.words["gradient"]), [False, True, True])
    with pytest.raises(ShapeError, match="before words"):
        picture(ATTENTION, [replace(part, tokens=Tokens(["x", "y"]))])


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (3, 4, 6)])
def test_pictures_of_every_layout(shape):
    assert pixels(np.random.default_rng(0).random(shape)).shape == (4, 6, 3)


def test_pictures_keep_their_bytes():
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


def test_the_page_of_a_picture_can_be_written(tmp_path):
    text = PICTURE.to_html(tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text() == text
    assert PICTURE._repr_html_().startswith("<iframe")
