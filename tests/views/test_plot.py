from __future__ import annotations

import io
import sys

import numpy as np

from attnflow import raw
from attnflow.views.plot import plot_all
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
