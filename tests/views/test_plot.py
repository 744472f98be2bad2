from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow, raw
from attnflow.errors import SelectionError, ShapeError
from attnflow.flowgraph import flow_graph
from attnflow.views.plot import plot_all, plot_text
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
