"""An attribution in the terminal and on a page."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from attnflow.views.answers import answer_page
from attnflow.views.answers_terminal import print_attribution
from tests.answers.test_attribution import record
from tests.pages import data_of


def printed(width=120, **options):
    file = io.StringIO()
    print_attribution(record(), console=Console(file=file, width=width, **options))
    return file.getvalue()


@pytest.mark.parametrize("width", [44, 60, 80])
def test_on_a_narrow_screen_the_text_gives_way_and_no_number(width):
    lines = printed(width).splitlines()
    assert max(len(line) for line in lines if line[:1] in "┏│") <= width
    assert any("75.0%" in line and "+0.50" in line for line in lines)


def test_terminal():
    plain = printed()
    assert "75.0%" in plain and "+0.50" in plain and "a note" in plain and "█" not in plain
    assert "direct: first token 50%, template 0%, answer 10%, sources 40%" in plain
    assert "without: how much log p the answer loses when the source is left out" in plain
    tinted = printed(force_terminal=True, color_system="truecolor")
    assert "█" in tinted and "48;2;" in tinted and "door" in tinted


def test_page_holds_all_text_once_and_the_numbers():
    page = answer_page(record())
    data = data_of(page)
    assert data["shares"]["direct"] == [[0.75, 0.25]] and data["checks"]["mask"] == [[0.5, None]]
    assert data["rest"]["direct"]["first token"] == [0.5]
    assert page.count('class="source context"') == 2 and '<span class="template">^</span>' in page
    assert "default-src 'none'" in page and "http://" not in page and "https://" not in page


def test_patches_are_drawn_over_the_image():
    from attnflow.answers.sources import Source

    boxes = [Source(f"patch 0,{i}", "", 0, 0, "patch", (0, 0, i, 1, 2)) for i in range(2)]
    a = record()
    seen = type(a)(a.prompt, a.answer, tuple(boxes), a.units, a.tokens, a.owners, a.scores, images=(b"png",))
    page = answer_page(seen)
    assert page.count("<rect ") == 2 and 'viewBox="0 0 2 1"' in page and "data:image/png;base64,cG5n" in page


def test_hostile_text_is_escaped():
    from dataclasses import replace

    from attnflow.answers.sources import Source

    bad = "<script>alert(1)</script>\u202e\x00&lt;"
    a = record()
    hostile = replace(
        a, prompt=bad + bad, answer=bad, sources=(Source(bad, bad, 0, len(bad)), a.sources[1]), model=bad, notes=(bad,),
        checks={bad: np.array([[1.0, 2.0]])}, scores={bad: a.scores["direct"]}, method=bad, instead=bad,
    )  # fmt: skip
    page = answer_page(hostile)
    assert "<script>alert" not in page and "\u202e" not in page and "\x00" not in page and "&lt;202E&gt;" in page
