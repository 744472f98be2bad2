"""The report on all findings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from attnflow.audit import Finding
from attnflow.audit.registry import experiments
from attnflow.audit.report import summary, to_html, write_report
from attnflow.errors import FileError


def finding(name: str, verdict: str = "Yes.") -> Finding:
    table = pd.DataFrame({"x": [1.0]})
    return Finding(name, table, table, verdict, ("Little.",), {"seed": 0}, lambda ax: ax.plot([0, 1]) and None)


FOUND = [finding("uniform"), finding("correlation", "No <b>.")]


def test_the_summary_answers_every_question_in_the_order_of_the_debate():
    assert summary(FOUND) == [
        (experiments()["correlation"].question, "No <b>."),
        (experiments()["uniform"].question, "Yes."),
    ]


def test_html_escapes_what_it_is_told():
    page = to_html(FOUND, "<title>", {"Model": "<i>"})
    assert "No &lt;b&gt;." in page and "<b>." not in page and "&lt;i&gt;" in page and page.count("<svg") == 2


def test_markdown_has_its_figures_beside_it(tmp_path: Path):
    written = write_report(FOUND, tmp_path / "report.md", "Audit", {"Model": "m"})
    assert [p.name for p in written] == ["report.md", "report-uniform.svg", "report-correlation.svg"]
    text = written[0].read_text()
    assert "](report-uniform.svg)" in text and "## In short" in text and "Settings: seed = 0." in text


def test_nothing_is_written_if_one_file_is_in_the_way(tmp_path: Path):
    (tmp_path / "report-correlation.svg").write_text("mine")
    with pytest.raises(FileError, match="exists already"):
        write_report(FOUND, tmp_path / "report.md", "Audit", {})
    assert [p.name for p in tmp_path.iterdir()] == ["report-correlation.svg"]
    write_report(FOUND, tmp_path / "report.md", "Audit", {}, overwrite=True)


def test_all_tests_of_a_report_are_corrected_together():
    import pandas as pd

    from attnflow.audit.finding import Finding
    from attnflow.audit.report import tests, to_html, to_markdown

    empty = pd.DataFrame({"a": [1.0]})
    one = Finding("uniform", empty, empty, "Yes.", (), tests={"uniform: a": 0.01})
    two = Finding("guide", empty, empty, "No.", (), tests={"guide: b": 0.03, "guide: c": 0.04})
    found = tests([one, two])
    assert found["corrected p"].round(3).tolist() == [0.03, 0.06, 0.06] and found["holds"].tolist() == [
        "yes",
        "no",
        "no",
    ]
    text = to_markdown([one, two], "t", {}, {})
    assert "3 tests were made for this report" in text and "for all of them: 1 of them." in text
    assert "<td>guide: b</td>" in to_html([one, two], "t", {})
    assert "Tests" not in to_markdown([Finding("seeds", empty, empty, "", ())], "t", {}, {})
    # What only holds by itself is not answered as if it held.
    short = dict(summary([one, two]))
    note = "Not shown once all 3 tests of this report are corrected together: guide: b (p = 0.06); guide: c (p = 0.06)."
    assert short[experiments()["guide"].question] == f"No. {note}"
    assert short[experiments()["uniform"].question] == "Yes." and text.count(note) == 1


def test_a_claim_that_two_findings_make_is_two_tests():
    from attnflow.audit.report import tests

    empty = pd.DataFrame({"a": [1.0]})
    found = [Finding("permutation", empty, empty, "", (), tests={"peaked": p}) for p in (0.02, 0.5)]
    made = tests(found)
    assert made["claim"].tolist() == ["peaked", "peaked (2)"] and made["corrected p"].tolist() == [0.04, 0.5]
    assert len(tests([])) == 0
