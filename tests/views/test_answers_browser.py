"""The page of an attribution in Chromium: keys, pointer, hostile text, 8,000 tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnflow import Attribution
from attnflow.answers.attribution import Unit
from attnflow.answers.sources import Source
from tests.browser import CHROMIUM, launch
from tests.views.test_hostile_browser import MARKUP

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright (dev extra) is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium binary: apt-get install chromium"),
]


def large(tokens: int = 8000, text: str = "word ") -> Attribution:
    """As many sources as tokens, two sentences."""
    chance = np.random.default_rng(0)
    sources = tuple(Source(f"word {i}", text, i * len(text), (i + 1) * len(text)) for i in range(tokens))
    answer = "It is red. Not blue."
    units = (
        Unit(answer, 0, 20, 0, 8, "whole"),
        Unit("It is red. ", 0, 11, 0, 4),
        Unit("Not blue.", 11, 20, 4, 8),
    )
    scores = {m: chance.random((3, tokens)) ** 9 for m in ("direct:alti", "direct")}
    checks = {"mask": np.where(np.arange(tokens) < 5, 1.5, np.nan)[None].repeat(3, 0)}
    return Attribution(
        text * tokens, answer, sources, units, tuple(text for _ in range(tokens)), np.arange(tokens), scores, checks
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        chromium = launch(play)
        yield chromium
        chromium.close()


def opened(browser, tmp_path, found, scheme="file"):
    path = tmp_path / "page.html"
    found.to_html(path, overwrite=True)
    page = browser.new_page(viewport={"width": 1300, "height": 850})
    page.set_default_timeout(120_000)
    page.problems = []
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.problems.append(r.url) if r.url.startswith("http") else None)
    page.on("dialog", lambda d: (page.problems.append("dialog"), d.dismiss()))
    page.goto(path.as_uri())
    page.wait_for_selector(".row")
    return page


def test_keys_and_pointer_at_8000_tokens(browser, tmp_path):
    found = large()
    page = opened(browser, tmp_path, found)
    assert page.locator(".source").count() == 8000 and page.locator(".row").count() == 12
    first = page.locator(".row b").first.inner_text()
    assert first == found.top(1)[0][0]
    page.keyboard.press("ArrowRight")
    assert page.locator(".row b").first.inner_text() == found.top(1, unit=1)[0][0]
    assert page.locator(".unit.chosen").inner_text() == "It is red. "
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = int(page.locator(".source.chosen").get_attribute("data-s"))
    assert chosen == found.ranked(1)[1]
    page.keyboard.press("m")
    assert page.locator("#method").input_value() == "direct"
    page.keyboard.press("Escape")
    assert page.locator(".source.chosen").count() == 0
    page.locator(".unit").nth(1).hover()
    assert page.locator(".row b").first.inner_text() == found.top(1, unit=2, method="direct")[0][0]
    page.locator('.source[data-s="3"]').click()
    assert "word 3:" in page.locator("#state").inner_text()
    weight = page.locator(".unit").first.evaluate("e => e.style.getPropertyValue('--w')")
    assert float(weight) > 0
    page.keyboard.press("Tab")
    assert page.problems == []


def test_bars_and_checks_of_many_small_shares(browser, tmp_path):
    """Bars are drawn against the greatest share, and a check that says nothing says so."""
    a = large(2000)
    lost = np.full((3, 2000), np.nan)
    top = a.ranked()
    lost[:, top[:3]] = [2.0, 0.01, -1.0]
    page = opened(browser, tmp_path, replace(a, checks={"mask": lost}))
    widths = page.locator(".bar.main i").evaluate_all("all => all.map(e => Number(e.style.getPropertyValue('--w')))")
    assert widths[0] > 0.9 and widths == sorted(widths, reverse=True) and a.shares()[0].max() < 0.1
    said = page.locator(".check strong").all_inner_texts()
    assert said == ["7.4 × less likely", "about as likely", "2.7 × more likely"]
    assert page.problems == []


def test_patches_by_pointer_and_key(browser, tmp_path):
    """Squares over the image light up, and one that is clicked is chosen."""
    from tests.answers.test_patches import found as with_image

    a = with_image(units="tokens")
    page = opened(browser, tmp_path, a)
    assert page.locator(".picture img").evaluate("e => e.naturalWidth") == 16
    page.locator('rect[data-s="6"]').click()
    assert (
        page.locator("rect.chosen").get_attribute("data-s") == "6"
        and "patch 1,2" in page.locator("#state").inner_text()
    )
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    assert int(page.locator("rect.chosen").get_attribute("data-s")) == a.ranked(0)[0]
    assert page.problems == []


def test_hostile_text_is_inert(browser, tmp_path):
    a = large(6)
    bad = MARKUP + "\u202e\u2066\x07\ud800"
    sources = tuple(
        replace(s, name=bad, text=bad, start=i * len(bad), end=(i + 1) * len(bad)) for i, s in enumerate(a.sources)
    )
    hostile = replace(
        a, prompt=bad * 6 + bad, answer=bad, sources=sources, units=(Unit(bad, 0, len(bad), 0, 8, "whole"),
        Unit(bad, 0, len(bad), 0, 8)), model=bad, notes=(bad,), instead=bad, settings={bad: bad},
        scores={bad: a.scores["direct"][:2]}, checks={bad: a.checks["mask"][:2]}, method=bad,
    )  # fmt: skip
    page = opened(browser, tmp_path, hostile)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("m")
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None and page.problems == []
    assert page.locator("img").count() == 0 and page.locator("a").count() == 0
    for mark in ("\u202e", "\u2066", "\x07"):
        assert mark not in page.content()
    frame = tmp_path / "frame.html"
    frame.write_text(hostile._repr_html_(), encoding="utf-8")
    page.goto(frame.as_uri())
    page.wait_for_timeout(500)
    assert page.evaluate("window.hit") is None
