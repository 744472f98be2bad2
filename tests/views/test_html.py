from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow, raw, rollout
from attnflow.errors import ShapeError
from attnflow.flowgraph import flow_graph
from attnflow.flowgraph.heads import Room
from attnflow.formats import frame
from attnflow.relevance import Report
from attnflow.tokens import Tokens
from attnflow.views.html import _plain_words, flow_page, highlight, page
from tests.conftest import random_attention
from tests.pages import data_of

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


def test_every_text_of_a_page_is_escaped():
    """Names come from files, models and users: none of them is markup, wherever it stands."""
    bad = "<b>&\"'"
    tokens = Tokens([bad, "x"], [True, False])
    note = Relevance(
        np.ones((1, 2)), tokens, (0,), bad, {"note": bad, "by": bad}, bad,
        position=0, position_token=bad, notes=(bad,), report=Report((bad,)),
    )  # fmt: skip
    shown = flow(random_attention(0, 1, 2), tokens=tokens, position=0)
    texts = [page([note], title=bad), highlight(note), shown.to_html(others=[note], title=bad)]
    for text in texts:
        tags = parsed(text)
        assert not [tag for tag, _ in tags.seen if tag == "b"]
        assert text.count("&lt;b&gt;&amp;") > 1 or text is texts[1]
        assert type(text) is str


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
    assert frame(page([ONE])).count("<iframe") == 1


def test_signed_and_missing_scores_are_told_apart():
    r = Relevance(np.array([[-0.4, 0.2, np.nan, 0.1]]), HOSTILE, ("input",), "gradient", position=0)
    text = page([r])
    assert '<mark class="minus" style="--w:1.000"' in text
    assert '<td class="heat minus"' in text
    assert "<td>–</td>" in text and '<td class="bar">–</td>' in text and ">nan<" not in text


def test_a_result_shows_the_graph_of_its_attention_and_a_loaded_one_its_scores(tmp_path):
    f = flow(random_attention(0, 2, 3), tokens=["a", "b", "c"], position=1)
    assert 'id="graph"' in f.to_html()
    assert 'id="graph"' in parsed(f._repr_html_()).seen[0][1]["srcdoc"]
    f.save(tmp_path / "f.safetensors")
    assert 'id="graph"' not in Relevance.load(tmp_path / "f.safetensors").to_html()


def test_words_and_dropped_tokens_set_the_switches_of_the_page():
    tokens = Tokens(["[CLS]", "cab", "##s"], [True, False, False], [None, 0, 0])
    r = rollout(random_attention(0, 2, 3), tokens=tokens, position=0)
    for shaped, words, special in ((r, False, True), (r.words(), True, True), (r.words().drop_special(), True, False)):
        assert data_of(shaped.to_html())["start"] == {"words": words, "special": special}


def bars(text: str, name: str) -> np.ndarray:
    """The scores of one method as the page holds them, ``[outputs, inputs]``, of the heads that it opens with."""
    fusion = data_of(text)["fusions"][0]
    at = next(m["at"] for m in fusion["methods"] if m["name"] == name)
    scores = np.frombuffer(base64.b64decode(fusion["scores"][at][0]), "<f4")
    return scores.reshape(len(fusion["outputs"]), -1)


@pytest.mark.parametrize("method", [raw, rollout, flow])
def test_a_page_shows_the_numbers_of_its_result(method):
    r = method(random_attention(0, 2, 3), tokens=["a", "b", "c"], position=1)
    changed = replace(r, scores=np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]))
    assert np.allclose(bars(changed.to_html(), r.method)[0], [0.4, 0.5, 0.6])
    beside = raw(r.attention, position=1).to_html(others=[changed]) if method is not raw else changed.to_html()
    assert np.allclose(bars(beside, r.method)[:2], [[0.4, 0.5, 0.6], [0.1, 0.2, 0.3]])


def test_results_that_cannot_go_together():
    f = flow(random_attention(0, 2, 3), tokens=["a", "b", "c"], position=1)
    other = Relevance(np.ones((1, 2)), Tokens(["x", "y"]), ("input",), "gradient")
    with pytest.raises(ShapeError, match="gradient scores 2 inputs .x y .*, the attention has 3"):
        f.to_html(others=[other])


def test_large_attention_is_previewed_without_flows():
    r = raw(random_attention(0, 12, 80), position=0)
    assert 'id="graph"' not in parsed(r._repr_html_()).seen[0][1]["srcdoc"]


def test_a_fragment_of_tinted_words_can_be_pasted():
    text = highlight(ONE)
    tags = parsed(text)
    assert {tag for tag, _ in tags.seen} == {"p", "span", "bdi"}
    assert tags.text.split(" ")[0] == HOSTILE[0]
    assert "rgba(0,114,178,0.600)" in text


def test_only_the_script_of_the_page_may_run():
    text = flow(random_attention(0, 2, 3), position=1).to_html()
    script = re.search(r'<script type="module">(.*)</script>', text, re.S)
    assert script is not None
    seal = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{seal}'" in text
    assert "default-src 'none'" in text


@pytest.mark.slow
def test_128_tokens_and_12_layers_fit_into_two_megabytes():
    names = [f"token{i}" for i in range(128)]
    attention = Attention.of(random_attention(0, 12, 128), tokens=names)
    # All that the defaults would keep, without waiting for as many flows: an edge has 5 to 6 bytes in the page.
    p = flow_graph(attention, pairs=3)
    assert len(flow_page(p)) + 6 * Room().edges < 2e6
    assert f"{len(p.outputs):,} of 1,536 outputs" in flow_page(p)


def test_the_page_says_which_heads_it_has_and_why_others_are_missing(monkeypatch):
    heads = np.stack([random_attention(seed, 2, 4) for seed in range(3)], 1)
    every = flow(Attention.of(heads, heads="all"), position=1)
    assert [f["name"] for f in data_of(every.to_html())["fusions"]] == [
        "mean",
        "max",
        "min",
        "head 0",
        "head 1",
        "head 2",
    ]
    assert "each of the 3" in every.to_html()
    some = every.to_html(heads=["max", 2])
    assert [f["name"] for f in data_of(some)["fusions"]] == ["max", "head 2"]
    assert "2 of 3 single heads are left out" in some
    mean = flow(heads, position=1).to_html()
    assert [f["name"] for f in data_of(mean)["fusions"]] == ["mean"]
    assert "mean only, because the attention was brought down" in mean
    monkeypatch.setattr("attnflow.flowgraph.heads.SOLVED", 1)
    assert [f["name"] for f in data_of(every.to_html())["fusions"]] == ["mean"]


def test_rounding_error_is_a_doubt_on_the_page_and_no_headline():
    attention = Attention.of(random_attention(0, 2, 5), tokens=list("abcde"))
    scores = np.array([[0.1, 0.2, 0.9, 0.3, 0.4]])
    size = Relevance(scores, attention.tokens, ("input",), "gradient", position=1)
    for rounding in (None, 1e-8):
        graph = flow_graph(attention, [flow(attention, position=1), replace(size, rounding=rounding)])
        said = _plain_words(graph)
        assert ("gradient" in said) is (rounding is None) and "It drew most on" in said
        assert ("rounding error" in graph.informative["gradient"]) is (rounding is not None)
