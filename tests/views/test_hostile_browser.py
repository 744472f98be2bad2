"""Markup in every field of every record that can be loaded, shown in Chromium in every way: nothing of it is run.

A file with markup in ``settings["position"]`` once ran a script in the page around the notebook's frame.
"""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

import attnflow
from attnflow import Attention, AttnFlowError, Relevance, files
from attnflow.audit.finding import Finding
from attnflow.audit.report import to_html as report
from attnflow.flowgraph import flow_graph
from attnflow.tokens import Tokens
from attnflow.views.html import highlight
from tests.browser import CHROMIUM, launch
from tests.conftest import random_attention
from tests.test_files import paths, put

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright (dev extra) is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium binary: apt-get install chromium"),
]
MARKUP = (
    '</title></style></script></textarea>\'"><img src=x onerror="top.hit=1;alert(1)">'
    "<script>top.hit=1;alert(2)</script><svg onload=top.hit=1>"
    "<a href='javascript:top.hit=1' autofocus onfocus=top.hit=1>x</a>&lt;b&gt;"
)
TOKENS = Tokens(["[CLS]", "the", "key"], [True, False, False], [None, 0, 1], {0: "the", 1: "key"}, {"cls": 0})


def written(kind):
    """The header and the arrays of a file in which every field is filled."""
    made = {}

    def note(path, kind, arrays, header, overwrite=False):
        made[kind] = (json.loads(json.dumps(header)), dict(arrays))

    attention = Attention.of(random_attention(0, 2, 3, heads=2), tokens=TOKENS, heads="all", model="bert",
                             notes=("a note",), settings={"chosen": ["x", {"y": 1}]})  # fmt: skip
    result = attnflow.flow(attention, position="cls")
    save, files.save = files.save, note
    try:
        attention.save("x")
        result.save("x")
    finally:
        files.save = save
    return made[kind]


def loaded(tmp_path, kind):
    """(the field, the record) for each field that may hold markup; keys of dicts are fields too."""
    header, arrays = written(kind)
    path = tmp_path / "stranger.safetensors"
    for at in paths(header):
        if not at:
            continue
        variants = [put(header, at, MARKUP)]
        if isinstance(at[-1], str):
            inner = header
            for step in at[:-1]:
                inner = inner[step]
            variants.append(put(header, at[:-1], {**inner, MARKUP: inner[at[-1]]}))
        for changed in variants:
            files.save(path, kind, arrays, changed, overwrite=True)
            try:
                yield at, getattr(attnflow, kind.capitalize()).load(path)
            except AttnFlowError:
                continue


def documents(record):
    """Everything that a record can be shown as."""
    shown = record if isinstance(record, Relevance) else attnflow.rollout(record, position=-1, heads="mean")
    yield shown.to_html()
    yield f"<!doctype html><body>{shown._repr_html_()}{highlight(shown)}</body>"
    if isinstance(record, Attention):
        yield flow_graph(record).to_html()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        running = launch(play)
        yield running
        running.close()


class Watch:
    """A page that opens documents and sees whether anything of them is run, blocked or drawn as markup."""

    def __init__(self, browser, folder):
        self.page, self.path, self.said = browser.new_page(), folder / "page.html", []
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("request", lambda request: self.said.append(request.url) if self.foreign(request.url) else None)

    def foreign(self, url):
        return not url.startswith(("data:", "about:", "blob:", self.path.as_uri()))

    def look(self, document, what):
        self.path.write_text(document, encoding="utf-8")
        self.page.goto(self.path.as_uri())
        self.page.wait_for_timeout(40)
        hit = self.page.evaluate("window.hit")
        drawn = [f.evaluate("document.querySelectorAll('img[src=x],svg[onload],a[href^=javascript]').length")
                 for f in self.page.frames]  # fmt: skip
        assert hit is None and not self.said and sum(drawn) == 0, (what, hit, self.said, drawn)


@pytest.mark.parametrize("kind", ["relevance", "attention"])
def test_markup_in_any_field_of_a_file_stays_text(browser, tmp_path, kind):
    watch, seen, held = Watch(browser, tmp_path), set(), 0
    for at, record in loaded(tmp_path, kind):
        made = []
        with contextlib.suppress(AttnFlowError):  # a record that no method takes
            made += documents(record)
        for document in made:
            held += MARKUP[:20] not in document
            if document in seen:
                continue  # a field that no page shows
            seen.add(document)
            watch.look(document, at)
    assert len(seen) > 10 and held


def test_markup_in_any_field_of_an_attribution_stays_text(browser, tmp_path):
    from tests.answers.test_attribution import foreign, record

    watch, seen = Watch(browser, tmp_path), set()
    whole = json.loads(record(instead="blue", settings={"chosen": ["x"]}).to_json())
    for at in paths(whole):
        inner = whole
        for step in at[:-1]:
            inner = inner[step]
        changed = [put(whole, at, MARKUP)] if at else []
        if at and isinstance(at[-1], str):
            changed.append(put(whole, at[:-1], {**inner, MARKUP: inner[at[-1]]}))
        for content in changed:
            with contextlib.suppress(AttnFlowError):
                found = foreign(tmp_path, content)
                for document in (found.to_html(), f"<!doctype html><body>{found._repr_html_()}</body>"):
                    if document not in seen:
                        watch.look(document, at)
                    seen.add(document)
    assert len(seen) > 10


def test_the_watch_sees_a_script_and_an_image(browser, tmp_path):
    watch = Watch(browser, tmp_path)
    for bad in ("<script>top.hit=1</script>", "<img src=x onerror=top.hit=1>", '<a href="javascript:1">x</a>'):
        with pytest.raises(AssertionError):
            watch.look(f"<!doctype html><body>{bad}</body>", bad)


def test_markup_in_a_finding_stays_text(browser, tmp_path):
    import pandas as pd

    table = pd.DataFrame({MARKUP: [MARKUP], "x": [1.0]})

    def draw(ax):
        ax.set_title(MARKUP)
        ax.plot([0, 1], [0, 1], label=MARKUP)
        ax.legend()

    finding = Finding("correlation", table, table, MARKUP, (MARKUP,), {MARKUP: MARKUP}, draw, {MARKUP: table})
    watch = Watch(browser, tmp_path)
    watch.look(report([finding], MARKUP, {MARKUP: MARKUP}), "report")
    watch.look(f"<!doctype html><body>{finding._repr_html_()}</body>", "notebook")


def test_a_frame_is_a_sandbox_and_every_page_has_a_policy(tmp_path):
    result = attnflow.raw(np.full((1, 2, 2), 0.5))
    plain = Relevance(result.scores, result.tokens, result.layers, "raw")
    for made in (result, plain):
        assert '<iframe sandbox="allow-scripts" srcdoc="' in made._repr_html_()
        assert 'http-equiv="Content-Security-Policy" content="default-src \'none\';' in made.to_html()
    assert "script-src" not in plain.to_html()
    assert "Content-Security-Policy" in report([], "title", {})
