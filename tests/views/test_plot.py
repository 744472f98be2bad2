from __future__ import annotations

import io
import sys
from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow, raw
from attnflow.errors import AttnFlowWarning, SelectionError, ShapeError
from attnflow.flowgraph import flow_graph
from attnflow.tokens import Tokens
from attnflow.views.plot import plot_all, plot_text, row_names
from tests.conftest import random_attention

W = random_attention(0, 3, 4)


def test_one_position_is_layers_by_inputs_with_the_highest_layer_on_top():
    ax = raw(W, tokens=["a", "Ġb", "c", "d"], position=1).plot()
    assert np.array_equal(ax.images[0].get_array(), W[::-1, 1])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["2", "1", "0"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "·b", "c", "d"]


def test_all_positions_are_outputs_by_inputs_of_the_last_layer():
    ax = raw(W).plot()
    assert np.array_equal(ax.images[0].get_array(), W[-1])
    assert ax.get_ylabel() == "output at layer 2"


def test_given_axes_are_used_and_no_pyplot_is_left_behind():
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert raw(W).plot(ax=ax) is ax
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_signed_scores_are_centred():
    r = raw(W, position=0)
    object.__setattr__(r, "scores", r.scores - 0.5)
    low, high = r.plot().images[0].get_clim()
    assert low == -high


def test_all_results_in_one_vector_file():
    figure = plot_all([raw(W, position=0), raw(W, position=1)])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf")
    assert buffer.getvalue().startswith(b"%PDF")
    assert len([a for a in figure.axes if a.images]) == 2


def test_the_flow_graph_has_the_value_and_the_cut():
    p = flow_graph(Attention.of(W, tokens=["a", "b", "c", "d"]))
    scores = flow(W).scores
    ax = p.plot(layer=1, position=2, source=0)
    assert ax.get_title() == f"c at layer 1 draws on a: flow {scores[1, 2, 0]:.4f}"
    assert [t.get_text() for t in ax.texts] == [f"cut {scores[1, 2, 0]:.4f}"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["input", "0", "1", "2"]
    assert p.plot(ax=ax) is ax


def test_a_flow_that_is_not_in_the_graph():
    p = flow_graph(Attention.of(W), pairs=4)
    with pytest.raises(SelectionError, match="is not one of the 4 of this graph"):
        p.plot(layer=0, position=1, source=2)


def test_tinted_text_breaks_its_lines():
    r = Relevance(np.array([[0.9, -0.3, 0.0]]), ["long" * 5, "鍵" * 5, "x"], (0,), "raw", position=0)
    ax = plot_text(r, width=24)
    ax.figure.draw_without_rendering()
    first, second, third = (t.get_window_extent() for t in ax.texts)
    assert first.y0 > second.y1
    assert third.y0 == pytest.approx(second.y0)
    assert third.x0 > second.x1
    with pytest.raises(ShapeError, match="tinted for one output position"):
        plot_text(raw(W))


@pytest.mark.parametrize("kind", ["heat", "flow", "text"])
def test_everything_is_vector(kind):
    p = flow_graph(Attention.of(W, tokens=["a", "b", "c", "d"]))
    r = raw(W, position=0)
    ax = {"heat": r.plot, "flow": p.plot, "text": lambda: plot_text(r)}[kind]()
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="svg")
    assert b"<svg" in buffer.getvalue()
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_names_are_thinned_and_long_ones_clipped():
    many = raw(random_attention(0, 1, 512), tokens=[f"token number {i}, which is long" for i in range(512)], position=0)
    ax = many.plot()
    labels = [t.get_text() for t in ax.get_xticklabels()]
    assert len(labels) == 57 and max(map(len, labels)) <= 18
    assert [int(x) for x in ax.get_xticks()][:3] == [0, 9, 18]
    assert len(raw(random_attention(0, 1, 512)).plot().get_yticklabels()) == 57
    assert ax.figure.get_size_inches().max() <= 24


def test_the_first_or_special_tokens_may_be_left_out_of_the_scale():
    scores = np.array([[0.9, 0.02, 0.05, 0.03], [0.8, 0.1, 0.04, 0.06]])
    r = Relevance(scores, Tokens(["[CLS]", "a", "b", "[SEP]"], special=[True, False, False, True]), (0, 1), "raw")
    assert r.plot().images[0].get_clim() == (0, 0.9)
    assert r.plot(scale_without="first").images[0].get_clim() == (0, 0.1)
    ax = r.plot(scale_without="special")
    assert ax.images[0].get_clim() == (0, 0.1)
    assert ax.figure.axes[1].get_ylabel() == "score (special left out of the scale)"
    with pytest.raises(SelectionError, match="scale_without='cls' is not known. Use 'first', 'special' or None"):
        r.plot(scale_without="cls")
    only = Relevance(np.ones((1, 1)), Tokens(["[CLS]"], special=[True]), (0,), "raw")
    assert only.plot(scale_without="special").images[0].get_clim() == (0, 1)


def test_rows_of_a_model_that_generates_are_named_by_what_they_predict():
    attention = Attention.of(W, tokens=["the", "Ġkey", "Ġis", "Ġhere"], generates=True)
    ax = raw(attention).plot()
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "the → ·key", "·key → ·is", "·is → ·here", "·here → next token"
    ]  # fmt: skip
    assert ax.get_ylabel().endswith("→ what it predicts")
    assert [t.get_text() for t in raw(W, tokens=list("abcd")).plot().get_yticklabels()] == list("abcd")


def test_what_a_row_predicts_is_the_token_behind_it_also_where_rows_are_left_out():
    tokens = Tokens(["the", "[SEP]", "key", "is"], special=[False, True, False, False])
    attention = Attention.of(W, tokens=tokens, generates=True)
    block = attention.only
    some = replace(block, weights=tuple(w[[3, 0]] for w in block.weights), queries=tokens.take([3, 0]), rows=(3, 0))
    few = raw(replace(attention, blocks={"self": some}))
    assert row_names(few) == ["is → next token", "the → [SEP]"]
    assert few.at(position=0).position == 3 and raw(few.attention, position=1).position == 0
    assert row_names(raw(attention).drop_special()) == ["the → [SEP]", "key → is", "is → next token"]
    assert row_names(raw(attention).words()) == ["the → [SEP]", "[SEP] → key", "key → is", "is → next token"]
    assert row_names(raw(attention).drop_special().words()) == ["the", "key", "is"]


def test_an_encoder_predicts_no_next_token():
    block = Attention.of(W, tokens=list("abcd")).only
    attention = Attention({"encoder": block, "decoder": block, "cross": block}, generates=True)
    assert row_names(raw(attention, block="encoder")) == list("abcd")
    assert row_names(raw(attention, block="decoder"))[-1] == row_names(raw(attention))[-1] == "d → next token"


PATCHES = Tokens(["[CLS]", *(f"patch {r},{c}" for r in range(2) for c in range(3))], special=[True] + [False] * 6)


def test_scores_of_an_image_are_a_grid_over_the_picture():
    scores = np.arange(7.0)[None] / 10
    r = Relevance(scores, PATCHES, (4,), "rollout", position=0, position_token="[CLS]")
    plain = r.plot()
    assert np.array_equal(plain.images[0].get_array(), scores[0, 1:].reshape(2, 3))
    assert plain.get_title() == "rollout from [CLS] at layer 4 (0% on [CLS])"
    picture = np.random.default_rng(0).random((3, 8, 12))
    both = r.plot(image=picture)
    assert [tuple(i.get_extent()) for i in both.images] == [(0, 12, 8, 0)] * 2
    assert both.images[0].get_array().shape == (8, 12)
    given = Relevance(scores[:, 1:], Tokens.numbered(6), ("input",), "gradient").plot(image=picture, grid=(3, 2))
    assert given.images[1].get_array().shape == (3, 2)
    signed = Relevance(scores - 0.3, PATCHES, (4,), "gradient").plot(image=picture)
    assert signed.images[1].get_clim()[0] < 0
    with pytest.raises(ShapeError, match="tinted for one output position, and raw holds 7"):
        raw(random_attention(0, 1, 7), tokens=PATCHES).plot(image=picture)


def test_letters_that_no_font_has_get_a_hint(monkeypatch):
    from attnflow.views import fonts

    r = raw(W, tokens=["a", "鍵", "🔑", "d"], position=0)
    monkeypatch.setattr(fonts, "_installed", dict)
    with pytest.warns(AttnFlowWarning, match=r"No installed font has 2 of the characters .*鍵 🔑.*fonts-noto-cjk"):
        r.plot()
    monkeypatch.setattr(fonts, "_installed", lambda: {"Noto Sans CJK JP": "some.ttf"})
    plain = fonts._letters
    monkeypatch.setattr(fonts, "_letters", lambda path: {ord("鍵"), ord("🔑")} if path == "some.ttf" else plain(path))
    assert fonts.families(["鍵", "🔑"]) == ["DejaVu Sans", "Noto Sans CJK JP"]
    assert r.plot().get_xticklabels()[1].get_fontfamily() == ["DejaVu Sans", "Noto Sans CJK JP"]


def test_a_notebook_shows_axes_and_figures():
    ax = raw(W).plot()
    assert ax._repr_png_().startswith(b"\x89PNG") and ax.figure._repr_png_().startswith(b"\x89PNG")
    assert plot_all([raw(W, position=0)])._repr_png_().startswith(b"\x89PNG")
