from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from attnflow import Relevance
from attnflow.views.html import frame, page
from attnflow.words import Tokens

HOSTILE = Tokens(["<script>alert(1)</script>", '"onload="x', "\u202eabc", "&amp;"])
ONE = Relevance(
    np.array([[0.1, 0.2, 0.3, 0.4]]), HOSTILE, (0,), "raw", {"position": 0, "position_token": HOSTILE[0]}, "<b>m</b>"
)
EVERY = Relevance(np.full((2, 4, 4), 0.25), HOSTILE, (0, 1), "rollout")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def test_hostile_tokens_are_text():
    tags = parsed(page([ONE, EVERY]))
    assert not [tag for tag, _ in tags.seen if tag in ("script", "b")]
    assert not [a for _, a in tags.seen if any(name.startswith("on") for name in a)]
    assert "<script>alert(1)</script>" in tags.text
    assert "<202E>abc" in tags.text


def test_nothing_is_loaded_from_anywhere():
    text = page([ONE])
    assert not re.search(r"https?://|src=|@import|url\(", text)


def test_scores_and_settings_are_on_the_page(tmp_path):
    text = page([ONE, EVERY])
    for wanted in ("0.400", "layers × inputs", "outputs × inputs at layer 1", "evidence, not proof"):
        assert wanted in text
    ONE.to_html(tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text() == ONE.to_html()


def test_a_notebook_gets_a_frame_of_its_own():
    tags = parsed(ONE._repr_html_())
    ((tag, attributes),) = tags.seen
    assert tag == "iframe"
    assert attributes["srcdoc"] == page([ONE])
    assert frame([ONE]).count("<iframe") == 1
