from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from attnflow import Relevance, raw
from attnflow.errors import ShapeError
from attnflow.relevance import Report
from attnflow.tokens import Tokens
from attnflow.views.terminal import bar, footer, highlight, tables

TOKENS = Tokens(["[CLS]", "[red]the", "鍵🔑"], special=[True, False, False])
RAW = Relevance(
    np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]), TOKENS, (0, 3), "raw", {}, "m", position=0, position_token="[CLS]"
)
SIGNED = Relevance(np.array([[-0.4, 0.2, 0.1]]), TOKENS, ("input",), "gradient")


def printed(results, width=100, terminal=True) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    for table in tables(results, console):
        console.print(table)
    return console.file.getvalue()


def test_bars_are_proportional():
    assert [bar(s, 2) for s in (0, 0.5, 1, 2, -1)] == ["", "█", "██", "██", ""]
    assert bar(1 / 16, 2) == "▏"


def test_the_last_layer_is_shown_with_bars():
    text = printed([RAW, SIGNED])
    assert "layer 3 · position 0 [CLS]" in text
    assert "0.500 ████████████████" in text
    assert "-0.400 ████████████████" in text
    assert "[red]the" in text
    assert "鍵🔑" in text


def test_a_pipe_gets_numbers_only():
    text = printed([RAW], terminal=False)
    assert "0.500" in text
    assert "█" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [30, 45, 60])
def test_a_narrow_screen_shows_every_score_in_full(width):
    five = [RAW, SIGNED, RAW, SIGNED, RAW]
    lines = printed(five, width=width).splitlines()
    assert all(cell_len(line) <= width for line in lines)
    for score, count in (("0.500", 3), ("-0.400", 2), ("0.300", 3), ("0.100", 2)):
        assert "\n".join(lines).count(score) == count
    assert "…" not in "\n".join(lines[2:])


@pytest.mark.parametrize("width", [30, 40])
def test_a_narrow_screen_shows_the_names_of_the_methods(width):
    named = [replace(RAW, method=name) for name in ("rollout", "gradient")]
    text = printed(named, width=width)
    assert "rollout" in text
    assert "gradient" in text


def test_wide_characters_and_long_tokens_keep_the_columns_straight():
    wide = Relevance(np.array([[0.5, 0.3, 0.2]]), Tokens(["鍵" * 30, "🔑", "a"]), (0,), "raw", position=0)
    borders = {
        tuple(i for i, c in enumerate(line) if c == "│") for line in _cells(printed([wide], width=60)) if "│" in line
    }
    assert len(borders) == 1


def _cells(text: str) -> list[str]:
    """Lines with every wide character written as two."""
    return ["".join(c * max(1, cell_len(c)) for c in line) for line in text.splitlines()]


def test_words_are_tinted_by_their_scores():
    text = highlight(SIGNED)
    assert text.plain == " [CLS]  [red]the  鍵🔑   (gradient)"
    colours = [span.style.bgcolor.triplet for span in text.spans if getattr(span.style, "bgcolor", None)]
    assert colours[0].red > colours[0].blue  # negative: vermilion
    assert colours[1].blue > colours[1].red  # positive: blue
    missing = Relevance(np.array([[np.nan, 1.0, 0.5]]), TOKENS, ("input",), "blankout")
    assert "–" in printed([missing])


def test_the_footer_says_what_the_numbers_do_not():
    known = {"notes": ("Layer 1 has no attention.",), "report": Report(("tied",))}
    r = Relevance(RAW.scores, TOKENS, (0, 3), "raw", **known)
    assert footer([r]) == ["Layer 1 has no attention.", "raw: 50% of the mass lies on special tokens", "raw: tied"]
    assert footer([r.drop_special()])[1] == "raw: 50% of the mass lay on special tokens (dropped)"


def test_what_does_not_fit_in_one_table():
    with pytest.raises(ShapeError, match="A table shows one output position, and raw holds 3. Use .at"):
        printed([raw([np.eye(3)])])
    other = raw([np.eye(2)], position=0)
    with pytest.raises(ShapeError, match="have different tokens"):
        printed([RAW, other])
