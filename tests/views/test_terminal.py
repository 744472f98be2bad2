from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from attnflow import Relevance, raw
from attnflow.errors import ShapeError
from attnflow.views.terminal import bar, footer, table
from attnflow.words import Tokens

TOKENS = Tokens(["[CLS]", "[red]the", "鍵🔑"], special=[True, False, False])
RAW = Relevance(
    np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]), TOKENS, (0, 3), "raw", {"position": 0, "position_token": "[CLS]"}, "m"
)
SIGNED = Relevance(np.array([[-0.4, 0.2, 0.1]]), TOKENS, ("input",), "gradient")


def printed(results, width=100, terminal=True) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    console.print(table(results, console))
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
def test_a_narrow_screen_keeps_each_token_on_one_line(width):
    lines = printed([RAW, SIGNED], width=width).splitlines()
    assert sum("0.2" in line for line in lines) == 2
    assert all(len(line) <= width for line in lines)


def test_the_footer_says_what_the_numbers_do_not():
    r = Relevance(
        RAW.scores, TOKENS, (0, 3), "raw", {"notes": ("Layer 1 has no attention.",), "report": {"words": ["tied"]}}
    )
    assert footer([r]) == ["Layer 1 has no attention.", "raw: 30% of the mass lies on special tokens", "raw: tied"]
    assert footer([r.drop_special()])[1] == "raw: 30% of the mass lay on special tokens (dropped)"


def test_what_does_not_fit_in_one_table():
    with pytest.raises(ShapeError, match="A table shows one output position, and raw holds 3. Use .at"):
        printed([raw([np.eye(3)])])
    other = raw([np.eye(2)], position=0)
    with pytest.raises(ShapeError, match="have different tokens"):
        printed([RAW, other])
