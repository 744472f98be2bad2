"""What the page computes and explains by itself, in a real browser: flows that are not stored, and words."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow import Attention, demo, explain, flow
from attnflow.flowgraph import flow_graph
from attnflow.tokens import Tokens
from attnflow.views.html import flow_page
from tests.conftest import random_attention
from tests.views.test_page_browser import browser, opened, pytestmark  # noqa: F401

EXACT = 1e-4  # the page holds capacities of two bytes, each rounded by at most 8e-6
ROUNDED = 1e-3


def carried(view) -> float | None:
    found = view.locator("#state").get_attribute("data-carried")
    return None if found is None else float(found)


def check_all_inputs(view, scores, tolerance) -> int:
    """Choose every input; flows that are not stored must be those of the engine. How many were computed."""
    computed = 0
    for j, want in enumerate(scores):
        view.select_option("#input", str(j))
        found = carried(view)
        assert float(view.locator("#value").inner_text()) == pytest.approx(want, abs=1e-4)
        if found is not None:
            computed += 1
            assert found == pytest.approx(want, abs=tolerance)
            # What an output cannot see has neither flow nor cut.
            assert (view.locator("#flows line").count() > 0) == (want > 0)
            assert (view.locator("#cut path.cut-line").count() > 0) == (want > 0)
    return computed


@pytest.mark.parametrize("causal", [False, True])
def test_flows_that_are_not_stored_are_computed_in_the_page(opened, causal):  # noqa: F811
    weights = random_attention(7, 4, 8)
    if causal:
        weights = np.tril(weights) / np.tril(weights).sum(-1, keepdims=True)
    attention = Attention.of(weights)
    view = opened(flow_page(flow_graph(attention, pairs=3, position=-1)))
    assert check_all_inputs(view, flow(attention).scores[-1, -1], EXACT) == 5
    view.locator("#grid [role=gridcell][aria-label$='position 5, layer 2']").click()
    assert check_all_inputs(view, flow(attention).scores[2, 5], EXACT) == 8
    view.locator("#grid [role=gridcell][aria-label$='position 5, layer 0']").click()
    assert check_all_inputs(view, flow(attention).scores[0, 5], EXACT) == 8


def test_computed_flows_are_those_that_were_stored(opened):  # noqa: F811
    attention = Attention.of(random_attention(3, 5, 7))
    stored = opened(flow_page(flow_graph(attention, position=0)))
    said = {}
    for j in range(7):
        stored.select_option("#input", str(j))
        assert carried(stored) is None
        said[j] = [stored.locator(name).inner_text() for name in ("#value", "#cut-value", "#badges")]
        cut = stored.locator("#cut path.cut-line").count()
        said[j].append(cut)
    computed = opened_again(stored, flow_page(flow_graph(attention, position=0, pairs=1)))
    for j in range(7):
        computed.select_option("#input", str(j))
        again = [computed.locator(name).inner_text() for name in ("#value", "#cut-value", "#badges")]
        assert [*again, computed.locator("#cut path.cut-line").count()] == said[j]


def opened_again(view, document):
    """Another document in the same window."""
    view.set_content(document)
    view.wait_for_selector("html[data-ready]", state="attached")
    return view


def test_a_larger_graph_has_its_capacities_rounded_or_the_strongest_of_them(opened, monkeypatch):  # noqa: F811
    attention = Attention.of(random_attention(1, 4, 24))
    scores = flow(attention).scores[-1, -1]
    view = opened(flow_page(flow_graph(attention, pairs=2, position=-1)))
    assert check_all_inputs(view, scores, ROUNDED) == 22
    assert "computed here, from the capacities on this page: the edges carry" in view.locator("#badges").inner_text()
    monkeypatch.setattr("attnflow.views.page_data.CAPACITIES", 1800)
    pruned = opened_again(view, flow_page(flow_graph(attention, pairs=2, position=-1)))
    shares = []
    for j, want in enumerate(scores):
        pruned.select_option("#input", str(j))
        assert float(pruned.locator("#value").inner_text()) == pytest.approx(want, abs=1e-4)  # said in full
        if carried(pruned) is not None:
            assert carried(pruned) <= want + ROUNDED
            shares.append(carried(pruned) / want)
            assert "from the strongest capacities on this page" in pruned.locator("#badges").inner_text()
    assert len(shares) == 22 and 0.3 < np.mean(shares) < 1


def test_edges_of_any_size_are_computed(opened):  # noqa: F811
    attention = Attention.of(3 * random_attention(3, 3, 5), edges="gradient")
    view = opened(flow_page(flow_graph(attention, pairs=1, position=0)))
    want = flow(attention).scores[-1, 0]
    for j in range(5):
        view.select_option("#input", str(j))
        if carried(view) is not None:
            assert carried(view) == pytest.approx(want[j], rel=1e-5)


def test_the_first_line_is_plain_and_words_are_explained(opened):  # noqa: F811
    found = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=("rollout", "flow", "blankout"))
    view = opened(found.to_html())
    plain = view.locator("#plain").inner_text()
    assert plain.startswith("The model predicts plural (100.0 %); next singular (< 0.1 %). It drew most on “keys” (by ")
    assert plain.endswith("The graph shows how much of each input can have reached the output, layer by layer.")
    for word, said in {
        "capacity": "The width of a pipe", "minimum cut": "The bottleneck", "level": "A row of dots",
        "saturated": "at the very end of the graph", "heads": "several attention matrices",
    }.items():  # fmt: skip
        view.locator(f"[data-term='{word}']:visible").first.hover()
        assert said in view.locator("#tip").inner_text()
    view.locator("h1").hover()
    assert view.locator("#tip").is_hidden()
    assert (
        "careful: every output ranks the inputs alike" in view.locator("#informative li", has_text="flow:").inner_text()
    )


LONG = Tokens(["a" * 300, "b", "漢" * 90, "d"])


def test_choices_fold_on_a_narrow_screen_and_long_tokens_do_not_stretch_it(opened):  # noqa: F811
    page = flow_page(flow_graph(Attention.of(random_attention(0, 3, 4), LONG)))
    view = opened(page, viewport={"width": 400, "height": 800})
    assert view.evaluate("document.documentElement.scrollWidth") == 400
    assert view.locator("#layer").is_visible() and view.locator("#input").is_visible()
    assert view.locator("#share").is_hidden() and view.locator("#play").is_hidden()
    view.locator("#fold").click()
    assert view.locator("#share").is_visible() and view.locator("#fold").inner_text() == "Fewer choices"
    view.locator("details:has(#numbers) summary").click()
    assert view.evaluate("document.documentElement.scrollWidth") == 400
    view.set_viewport_size({"width": 1280, "height": 800})
    assert view.locator("#fold").is_hidden() and view.locator("#share").is_visible()
    assert view.evaluate("document.documentElement.scrollWidth") == 1280


def test_the_first_token_may_be_left_out_of_the_scale(opened):  # noqa: F811
    sink = np.full((2, 5, 5), 0.02)
    sink[..., 0] = 0.92
    view = opened(flow_page(flow_graph(Attention.of(sink, list("abcde")), position=-1)))

    def height(column):
        return float(view.locator(f"#bars rect.level[data-columns=' {column} ']").first.get_attribute("height"))

    assert height(0) == 44 and height(1) < 2
    view.locator("#scale-first").uncheck()
    assert height(0) == 44 and height(1) == 44  # the first is cut off at the top


def test_outputs_of_a_model_that_generates_say_what_they_predict(opened):  # noqa: F811
    weights = np.tril(random_attention(0, 2, 3))
    attention = Attention.of(weights / weights.sum(-1, keepdims=True), ["the", "key", "is"], generates=True)
    view = opened(flow_page(flow_graph(attention, position=1)))
    assert "Output key (which predicts is) at layer 1" in view.locator("#state").inner_text()
    view.locator("#position").select_option("2")
    assert "Output is (which predicts next token) at layer 1" in view.locator("#state").inner_text()
