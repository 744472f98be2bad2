"""The page in a real browser, opened from disk."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attnflow import Attention, Relevance, flow
from attnflow.flowgraph import flow_graph
from attnflow.formats import frame
from attnflow.scoring.network import network
from attnflow.tokens import Tokens
from attnflow.views.html import flow_page
from tests.browser import CHROMIUM, launch
from tests.conftest import random_attention

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright (dev extra) is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium binary: apt-get install chromium"),
]
HOSTILE = [
    "<script>window.hit=1</script>",
    '"onload="window.hit=1',
    "\u202eabc",
    "<img src=x onerror=window.hit=1>",
    "</script>",
]
NAMES = Tokens(
    ["[CLS]", "the", "cab", "##inets", "are", "[SEP]"],
    special=[True, False, False, False, False, True],
    word_ids=[None, 0, 1, 1, 2, None],
    words={0: "the", 1: "cabinets", 2: "are"},
    marks={"cls": 0},
)
ATTENTION = Attention.of(random_attention(3, 4, 6), tokens=NAMES, model="test model")
SCORES = flow(ATTENTION).scores


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        running = launch(play)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a document from disk, and checks in the end that it asked for nothing and complained of nothing."""
    said: list[str] = []
    asked: list[str] = []

    def open_(document: str, **options):
        path = tmp_path / "page.html"
        path.write_text(document, encoding="utf-8")
        view = browser.new_page(**{"viewport": {"width": 1200, "height": 1000}, **options})
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.on("request", lambda request: asked.append(request.url))
        view.goto(path.as_uri())
        (view.frames[-1]).wait_for_selector("html[data-ready]", state="attached")
        return view

    yield open_
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "about:", "data:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1


def references() -> list[Relevance]:
    rng = np.random.default_rng(5)
    return [
        Relevance(rng.random((1, 6)), NAMES, ("input",), "gradient"),
        Relevance(rng.standard_normal((1, 6)), NAMES, ("input",), "blankout"),
    ]


@pytest.fixture(scope="module")
def document() -> str:
    return flow_page(flow_graph(ATTENTION, references()))


def edges(view) -> int:
    return view.locator("#flows line").count()


def choose(view, layer: int, row: int) -> None:
    view.locator(f"#grid [role=gridcell][aria-label$='position {row}, layer {layer}']").click()


def value(view) -> str:
    return view.locator("#value").inner_text()


def test_it_opens_from_disk_and_draws(opened, document):
    view = opened(document)
    assert view.locator("html").get_attribute("data-ready") == "yes"
    assert view.locator("#grid [role=gridcell]").count() == 4 * 6
    assert edges(view) > 3
    for name in ("raw", "rollout", "flow", "gradient", "blank-out"):
        assert view.locator("#bars text", has_text=re.compile(f"^{name}$")).count() == 1


def test_a_method_of_the_users_own_has_bars_and_a_curve(opened):
    toy = Relevance(np.full((4, 6), 0.125), NAMES, ATTENTION.layers, "toy", position=0)
    view = opened(flow_page(flow_graph(ATTENTION, [toy, *references()])))
    label = view.locator("#bars text", has_text=re.compile("^toy$"))
    assert label.count() == 1
    assert view.locator("#bars text", has_text="highest 0.125").count() == 1
    assert view.locator("#curves-key span", has_text="toy with gradient").count() == 1
    assert view.locator("#method option", has_text="toy").count() == 1
    choose(view, 3, 2)
    assert view.locator("#bars text", has_text="no score for this output").count() == 1


@pytest.mark.parametrize("size", [3.0, 1e-4])
@pytest.mark.parametrize("residual", ["add", "none"])
def test_edges_of_any_size_are_drawn_to_scale(opened, size, residual):
    """Gradient edges are in units of the target: their rows sum to anything."""
    attention = Attention.of(size * random_attention(3, 3, 4), edges="gradient")
    f = flow(attention, position=1, residual=residual)
    view = opened(f.to_html())
    best = int(np.argmax(f.scores[-1]))
    assert float(value(view)) == pytest.approx(f.scores[-1, best], rel=1e-3)
    widths = "[...document.querySelectorAll('#flows line')].map((line) => +line.getAttribute('stroke-width'))"
    shown = view.evaluate(widths)
    assert max(shown) <= 11 + 1e-6
    assert max(shown) > 1
    view.locator("#hits line").first.dispatch_event("pointermove")
    flowing, capacity = map(
        float, re.search(r"flow (\S+) of capacity (\S+)", view.locator("#tip").inner_text()).groups()
    )
    assert 0 < flowing <= capacity * 1.01
    assert capacity <= network(attention, residual).stack().max() * 1.001


def test_every_output_shows_the_value_and_the_cut_that_python_computed(opened, document):
    view = opened(document)
    for layer, row in ((3, 0), (1, 2), (2, 5), (0, 4)):
        before = view.locator("#flows").inner_html()
        if (layer, row) != (3, 0):
            choose(view, layer, row)
            assert view.locator("#flows").inner_html() != before
        for sink in range(6):
            view.select_option("#input", str(sink))
            expected = f"{SCORES[layer, row, sink]:.4f}"
            assert value(view) == expected
            assert view.locator("#cut-value").inner_text() == expected
            if SCORES[layer, row, sink] > 0:
                assert view.locator("#cut text").text_content() == f"cut {expected}"


def test_saturation_is_said(opened, document):
    view = opened(document)
    stack = 0.5 * np.stack(ATTENTION["self"].weights) + 0.5 * np.eye(6)
    for sink in range(6):
        view.select_option("#input", str(sink))
        saturated = np.isclose(SCORES[3, 0, sink], min(1.0, stack[0, :, sink].sum()), atol=1e-12)
        assert ("saturated" in view.locator("#badges").inner_text()) == saturated


def test_hover_shows_values_and_changes_nothing(opened, document):
    view = opened(document)
    before = view.locator("#state").inner_text()
    view.locator("#bars rect.bar").first.hover()
    assert re.search(r"raw 0\.\d{4}, rank \d", view.locator("#tip").inner_text())
    assert view.locator("mark.hover").count() == 1
    view.locator("#hits line").last.hover(force=True)
    assert re.search(r"layer \d: .+ → .+\nflow 0\.\d{4} of capacity 0\.\d{4}", view.locator("#tip").inner_text())
    assert view.locator("#state").inner_text() == before


def test_the_threshold_changes_the_number_of_edges(opened, document):
    view = opened(document)
    counts = []
    for share in (100, 60, 20):
        view.locator("#share").fill(str(share))
        counts.append(edges(view))
        said = re.search(r"shows (\d+) % of flow, (\d+) of (\d+) edges", view.locator("#share-out").inner_text())
        assert said is not None
        assert int(said[2]) == counts[-1]
        assert int(said[1]) >= share
    assert counts[0] > counts[1] > counts[2] > 0


def test_special_tokens_can_be_hidden_and_their_share_is_said(opened, document):
    view = opened(document)
    assert view.locator("#inputs [role=option]").count() == 6
    share = SCORES[3, 0, [0, 5]].sum() / SCORES[3, 0].sum()
    assert f"flow {share:.0%}".replace("%", " %") in view.locator("#badges").inner_text()
    view.locator("#special").uncheck()
    assert view.locator("#inputs [role=option]").count() == 4
    assert "[CLS]" not in view.locator("#text").inner_text()
    assert "(hidden)" in view.locator("#badges").inner_text()
    assert view.locator("#grid [aria-selected=true]").is_visible()  # the output that is looked at stays
    assert int(view.locator("#input").input_value()) == 1 + SCORES[3, 0, 1:5].argmax()


def test_words_stand_for_their_pieces(opened, document):
    view = opened(document)
    view.get_by_text("All numbers of this output").click()
    assert view.locator("#numbers tbody tr").count() == 6
    view.locator("#words").check()
    row = view.locator("#numbers tbody tr", has_text="cabinets")
    assert view.locator("#numbers tbody tr").count() == 5
    joined = flow(ATTENTION).words().scores[3, 0, 2]
    assert SCORES[3, 0, 2:4].max() <= joined < SCORES[3, 0, 2:4].sum(), "the flow into both pieces together"
    assert f"{joined:.4f}" in row.inner_text()
    assert "##inets" not in view.locator("#text").inner_text()


def test_levels_can_be_cut_off(opened, document):
    view = opened(document)
    every = edges(view)
    view.select_option("#low", "2")
    assert 0 < edges(view) < every
    assert view.locator("#grid [role=gridcell]").count() == 3 * 6
    view.select_option("#low", "0")
    view.select_option("#high", "1")
    assert view.locator("#grid [role=gridcell]").count() == 6


def test_hostile_tokens_are_text_and_nothing_else(opened):
    attention = Attention.of(random_attention(1, 3, 5), tokens=HOSTILE, model="<b>model</b>")
    view = opened(flow_page(flow_graph(attention), title="</title><script>window.hit=1</script>"))
    assert view.evaluate("window.hit") is None
    assert view.locator("script").count() == 2
    assert view.locator("img").count() == 0
    shown = view.locator("#text").inner_text()
    assert "<script>window.hit=1</script>" in shown
    assert "<202E>abc" in shown
    assert "\u202e" not in view.content()


def test_the_keyboard_is_enough(opened, document):
    view = opened(document)
    view.locator("#grid [aria-selected=true]").focus()
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowRight")
    assert view.evaluate("document.activeElement.getAttribute('aria-label')") == "output the, position 1, layer 2"
    assert value(view) == f"{SCORES[2, 1].max():.4f}"
    chosen = int(view.locator("#input").input_value())
    view.keyboard.press("Shift+ArrowLeft" if chosen else "Shift+ArrowRight")
    assert int(view.locator("#input").input_value()) == (chosen - 1 if chosen else 1)
    view.locator("#inputs [aria-selected=true]").focus()
    view.keyboard.press("ArrowRight")
    assert view.evaluate("document.activeElement.getAttribute('role')") == "option"
    view.keyboard.press("l")
    assert view.locator("#play").get_attribute("aria-pressed") == "true"
    view.locator("#state", has_text="at layer 1").wait_for()
    view.keyboard.press("l")
    assert view.locator("#play").get_attribute("aria-pressed") == "false"


def test_s_saves_a_drawing_that_stands_alone(opened, document, tmp_path):
    import xml.etree.ElementTree as ET

    view = opened(document)
    with view.expect_download() as saved:
        view.keyboard.press("s")
    saved.value.save_as(tmp_path / "graph.svg")
    root = ET.parse(tmp_path / "graph.svg").getroot()
    assert root.tag.endswith("svg")
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert any("test model" in (text or "") for text in texts)
    assert "var(" not in (root.find(".//{*}line").get("style") or "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_p_saves_the_pixels_as_they_are_shown(opened, document, tmp_path, scheme):
    from PIL import Image

    view = opened(document, color_scheme=scheme)
    with view.expect_download() as saved:
        view.keyboard.press("p")
    assert saved.value.suggested_filename == "attnflow.png"
    saved.value.save_as(tmp_path / "graph.png")
    with Image.open(tmp_path / "graph.png") as image:
        assert image.format == "PNG"
        box = view.locator("#graph").bounding_box()
        assert image.width == round(2 * box["width"])
        assert 2 * box["height"] < image.height < 2 * box["height"] + 200
        colours = image.convert("RGB")
        assert (sum(colours.getpixel((3, 3))) > 384) == (scheme == "light")
        assert len(colours.resize((200, 200)).getcolors(40_000)) > 50


def test_the_switch_of_heads_shows_the_flows_that_python_computed(opened):
    heads = np.stack([random_attention(seed, 3, 6) for seed in (1, 2)], 1)
    kept = Attention.of(heads, tokens=NAMES, heads="all")
    view = opened(flow(kept, position="cls").to_html(others=references()))
    assert view.locator("#fusion option").all_inner_texts() == ["mean", "max", "min", "head 0", "head 1"]
    choose(view, 1, 3)
    view.select_option("#input", "4")
    for name, way in (("max", "max"), ("head 1", 1), ("mean", "mean")):
        view.select_option("#fusion", label=name)
        expected = flow(kept, heads=way).scores[1, 3, 4]
        assert value(view) == f"{expected:.4f}"
        assert f"{name}): flow" in view.locator("#state").inner_text()
        assert f"heads={way}," in view.locator("#about").inner_text()
        assert view.locator("#bars text", has_text=re.compile("^blank-out$")).count() == 1
    view.keyboard.press("h")
    assert view.locator("#fusion").input_value() == "1"


def by_edges() -> list[Relevance]:
    """One input with attention weights of two heads, edges that hold the residual, and gradient edges above one."""
    heads = np.stack([random_attention(seed, 3, 6) for seed in (1, 2)], 1)
    inside = Attention.of(random_attention(5, 3, 6), NAMES, edges="alti", residual_inside=True)
    slopes = Attention.of(3e-4 * np.random.default_rng(0).random((3, 6, 6)), NAMES, edges="gradient")
    kept = (Attention.of(heads, NAMES, heads="all"), inside, slopes)
    return [flow(attention, position="cls") for attention in kept]


def test_the_switch_of_edges_shows_the_flows_that_python_computed(opened):
    results = by_edges()
    view = opened(results[0].to_html(others=[*results[1:], *references()]))
    assert view.locator("#edges option").all_inner_texts() == ["attention", "alti", "gradient"]
    choose(view, 1, 3)
    view.select_option("#input", "4")
    for result in results[1:]:
        view.select_option("#edges", result.edges)
        assert f"({result.edges} edges): flow" in view.locator("#state").inner_text()
        expected = flow(result.attention).scores[1, 3, 4]
        assert float(value(view)) == pytest.approx(expected, rel=5e-3, abs=5e-5)
        assert view.locator("#fusion").is_disabled()
        assert view.locator("#bars text", has_text=re.compile("^blank-out$")).count() == 1
        assert f"residual={result.residual}" in view.locator("#about").inner_text()
    # Flows of gradient edges are small beside a residual of one, and drawn as wide as the widest of them permits.
    assert max(float(line.get_attribute("stroke-width")) for line in view.locator("#flows line").all()) > 2
    assert view.locator("#one-fusion").is_visible()
    view.select_option("#edges", "attention")
    assert view.locator("#fusion option").all_inner_texts() == ["mean", "max", "min", "head 0", "head 1"]
    view.locator("h1").click()
    view.keyboard.press("h")
    assert view.locator("#fusion").input_value() == "1"
    view.keyboard.press("e")
    assert view.locator("#edges").input_value() == "alti"
    assert view.locator("#fusion option").all_inner_texts() == ["together"]


def test_a_page_of_attention_weights_alone_has_no_switch_of_edges(opened, document):
    assert not opened(document).locator("#edges").is_visible()


def test_the_switch_of_heads_says_that_the_heads_are_gone(opened, document):
    view = opened(document)
    assert view.locator("#fusion").is_disabled()
    assert view.locator("#fusion option").all_inner_texts() == ["mean"]
    assert view.locator("#one-fusion").is_visible()
    assert "mean only, because the attention was brought down" in view.locator("footer").inner_text()


def test_a_screen_reader_has_names_roles_and_numbers(opened, document):
    view = opened(document)
    assert view.get_by_role("grid").count() == 1
    assert view.get_by_role("gridcell", selected=True).count() == 1
    assert view.get_by_role("listbox").get_by_role("option", selected=True).count() == 1
    assert view.locator("#state[role=status]").inner_text().startswith("Output [CLS] at layer 3 draws on input")
    assert (
        view.locator("#curves")
        .get_attribute("aria-label")
        .startswith("spearman, no special tokens, of raw with gradient: layer 0 ")
    )
    view.get_by_text("All numbers of this output").click()
    assert f"{SCORES[3, 0, 1]:.4f}" in view.get_by_role("table").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes(opened, document, scheme):
    view = opened(document, color_scheme=scheme)
    colours = view.evaluate(
        "[document.body, document.querySelector('#flows .run')].map((e) => "
        "[getComputedStyle(e).backgroundColor, getComputedStyle(e).stroke])"
    )
    paper = [int(x) for x in re.findall(r"\d+", colours[0][0])][:3]
    assert (sum(paper) > 384) == (scheme == "light")
    view.locator("#theme").click()
    other = view.evaluate("getComputedStyle(document.body).backgroundColor")
    assert other != colours[0][0]


def test_a_narrow_screen_needs_no_sideways_scrolling_of_the_page(opened, document):
    view = opened(document, viewport={"width": 400, "height": 800})
    assert view.evaluate("document.documentElement.scrollWidth") <= 400


def test_it_works_in_the_frame_of_a_notebook(opened, document):
    view = opened(f"<!doctype html><body><div id='graph'>mine</div>{frame(document)}</body>")
    inner = view.frame_locator("iframe")
    inner.locator("#grid [role=gridcell]").first.click()
    assert inner.locator("#value").inner_text() == f"{SCORES[3, 0].max():.4f}"
    assert view.locator("body > #graph").inner_text() == "mine"


def test_two_towers(opened):
    from dataclasses import replace

    def block(seed, q, k, prefix, keys):
        weights = random_attention(seed, 2, max(q, k))[:, :q, :k]
        made = Attention.of(weights / weights.sum(-1, keepdims=True), tokens=[f"{prefix}{i}" for i in range(q)])["self"]
        return replace(made, keys=Tokens(keys))

    source, target = [f"in{i}" for i in range(4)], [f"out{i}" for i in range(3)]
    attention = Attention({
        "encoder": block(0, 4, 4, "in", source),
        "decoder": block(1, 3, 3, "out", target),
        "cross": block(2, 3, 4, "out", source),
    })  # fmt: skip
    scores = flow(attention).scores
    view = opened(flow_page(flow_graph(attention)))
    assert view.locator("#grid [role=gridcell]").count() == 2 * 3
    assert view.locator("#flows .cross").count() > 0
    for name in ("encoder", "decoder"):
        assert view.locator("#graph text", has_text=re.compile(f"^{name}$")).count() == 1
    for sink in range(7):
        view.select_option("#input", str(sink))
        assert value(view) == f"{scores[1, 2, sink]:.4f}"


def test_an_image_is_covered_by_its_patches(opened):
    names = Tokens(
        ["[CLS]", *(f"patch {r},{c}" for r in range(2) for c in range(3))], [True] + [False] * 6, marks={"cls": 0}
    )
    attention = Attention.of(random_attention(2, 2, 7), tokens=names)
    image = np.zeros((20, 30, 3), np.uint8)
    view = opened(flow(attention, position="cls").to_html(image=image))
    assert re.search(r"It drew most on “patch \d,\d” \(by ", view.locator("#plain").inner_text())
    assert view.locator("#maps svg").count() == 3
    assert view.locator("#maps svg").first.locator("rect").count() == 6
    view.locator("#maps svg").first.locator("rect").nth(4).click()
    assert view.locator("#input").input_value() == "5"


def test_layers_without_attention_are_marked(opened):
    attention = Attention.of(random_attention(0, 3, 4), layers=[0, 3, 4])
    view = opened(flow_page(flow_graph(attention)))
    assert view.locator("#graph text", has_text="1–2 have none").count() == 1
    assert view.locator("#graph text", has_text=re.compile("^layer 3$")).count() == 1


def test_a_pruned_page_says_what_is_missing(opened):
    attention = Attention.of(random_attention(0, 2, 9))
    view = opened(flow_page(flow_graph(attention, pairs=4)))
    assert "the strongest edges of 4 of 162 flows" in view.locator("footer").inner_text()
    computed = []
    for sink in range(9):
        view.select_option("#input", str(sink))
        computed.append(view.locator("#state").get_attribute("data-carried") is not None)
    assert computed.count(False) == 4
