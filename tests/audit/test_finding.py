"""What an experiment found, as text, as a page and as a figure."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd

from attnflow.audit import Finding

TABLE = pd.DataFrame({"guide": ["<b>raw|x</b>", "flow"], "n": [3, 4], "F1": [0.81234, float("nan")]})


def finding() -> Finding:
    def draw(ax: plt.Axes) -> None:
        ax.plot([0, 1], [0, 1])
        ax.set_title("<title>")

    return Finding("guide", TABLE, TABLE, "Raw < flow.", ("Only & here.",), {"seed": 0}, draw)


def test_markdown_has_verdict_table_and_limits() -> None:
    text = finding().to_markdown()
    assert "| <b>raw\\|x</b> | 3 | 0.812 |" in text and "| flow | 4 | nan |" in text
    assert text.index("Raw < flow.") < text.index("| guide |") < text.index("- Only & here.")


def test_html_escapes_everything_and_holds_the_figure() -> None:
    page = finding().to_html()
    assert "&lt;b&gt;raw" in page and "<b>" not in page and "Only &amp; here." in page and "<svg" in page
    assert finding()._repr_html_().startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!doctype')


def test_plot_takes_axes_and_leaves_no_pyplot_state() -> None:
    before = plt.get_fignums()
    figure = plt.Figure()
    ax = figure.subplots()
    assert finding().plot(ax) is ax and len(ax.lines) == 1
    assert len(finding().plot().lines) == 1 and plt.get_fignums() == before


def test_repr_is_the_verdict() -> None:
    assert repr(finding()) == "Finding(guide: Raw < flow.)"
