"""The demo makes sense to somebody who has never heard of attention."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from attnflow import demo, explain
from attnflow.commands.app import app


def test_the_subject_noun_wins_and_the_demo_says_why(tmp_path):
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "page.html")], env={"COLUMNS": "100"})
    assert done.exit_code == 0, done.output
    before, table = done.output.split("│ 0 ", 1)
    assert "says whether the verb is singular or plural" in before
    assert "the keys to the cabinet …" in before
    assert "The model predicts plural (100.0 %)" in before
    assert f"It drew most on “{demo.SUBJECT}” (by {demo.METHOD}" in before
    assert "the verb goes with the subject, keys" in table
    assert "The model predicts plural" in (tmp_path / "page.html").read_text()


def test_the_method_of_the_demo_and_the_check_agree():
    found = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=[demo.METHOD, "blankout"], position="cls")
    assert [r.top(1)[0][0] for r in found] == [demo.SUBJECT] * 2


@pytest.mark.slow
def test_the_counts_that_the_demo_names():
    counts = demo.subject_first([demo.METHOD, "blankout", "rollout"])
    assert counts == {demo.METHOD: 15, "blankout": 8, "rollout": 1}
    assert (
        f"on {len(demo.SENTENCES)} such sentences, this one among them, the first column ranks the subject "
        "first in 15, blankout in 8, rollout of attention in 1 " in demo.WHY
    )


def test_the_tokenizer_alone_says_nothing():
    code = "from attnflow import demo; demo.tokenizer()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
