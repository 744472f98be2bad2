"""``attnflow audit`` on the papers' model, a small transformer and a saved classifier."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from attnflow import demo
from attnflow.commands.app import main
from attnflow.errors import AttnFlowError, InputError

GOOD, BAD = "a good film", "a bad film"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + f"{GOOD},pos\n{BAD},neg\nthe good one here,pos\nsome bad one,neg\n" * 10)
    return path


def run(*arguments: object) -> None:
    """A call within this process; it leaves by SystemExit."""
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    assert not left.value.code


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        main(["audit", *(str(a) for a in arguments)])
    assert left.value.code == 2
    return capsys.readouterr().err


QUICK = ["--label-column", "label", "--limit", 4, "--permutations", 5, "--steps", 5, "--seeds", "1",
         "--penalties", "0,0.001", "--epochs", 1, "--min-count", 1]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_all_experiments_in_one_report(name, data, tmp_path, capsys):
    out, work = tmp_path / "report.html", tmp_path / "work"
    run("audit", "all", name, data, *QUICK, "--work", work, "--out", out)
    page, said = out.read_text(), capsys.readouterr().out
    for experiment in ("correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter"):
        assert f"<h2>{experiment}</h2>" in page and f"### {experiment}" in said
    names = (
        "http-equiv",
        "http://www.w3.org",
        "http://purl.org",
        "http://creativecommons.org",
        "https://matplotlib.org",
    )
    for known in names:
        page = page.replace(known, "")
    assert "http" not in page
    assert (work / "seed-0").is_dir()
    saved = {path.name.split("-")[0]: len(pd.read_csv(path)) for path in (work / "records").glob("*.csv")}
    assert len(saved) == 7 and min(saved.values()) > 0


def test_a_saved_classifier_is_read_as_it_is(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demo.model().save_pretrained("model")
    demo.tokenizer().save_pretrained("model")
    run("audit", "permutation", "model", data, "--limit", 2, "--permutations", 3, "--out", "report.md")
    assert "### permutation" in capsys.readouterr().out
    assert "![Does the output change" in Path("report.md").read_text()
    assert Path("report-permutation.svg").is_file()


def test_the_records_of_an_experiment_are_kept(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demo.model().save_pretrained("model")
    demo.tokenizer().save_pretrained("model")
    given = ("audit", "permutation", "model", data, "--limit", 2, "--permutations", 3)
    run(*given)
    folder = Path("attnflow-audit/records").resolve()
    (file,) = folder.glob("*.csv")
    assert f"Records: {file}" in capsys.readouterr().out.replace("\n", "")
    told = json.loads(file.with_suffix(".json").read_text())
    assert told["facts"]["model"] == "model" and told["settings"]["permutations"] == 3
    assert told["records"] == file.name and told["verdict"] and told["limits"]
    before = file.read_bytes()
    run(*given)
    assert len(list(folder.glob("*.csv"))) == 1 and file.read_bytes() == before
    # Another setting is another file: what was measured before stays.
    run(*given[:-1], 4)
    assert len(list(folder.glob("*.csv"))) == 2 and file.read_bytes() == before


def test_edges_go_with_the_methods_that_are_compared(data, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demo.model().save_pretrained("model")
    demo.tokenizer().save_pretrained("model")
    run("audit", "correlation", "model", data, "--limit", 2, "--edges", "alti", "--edges", "gradient")
    said = capsys.readouterr().out
    assert "rollout:alti" in said and "flow:gradient" in said


def test_what_is_wrong_is_said_before_anything_runs(data, tmp_path, capsys):
    assert "'magic' is no experiment. Use one of: correlation" in refused(capsys, "magic", "lstm", data)
    assert "Use .html or .md" in refused(capsys, "all", "lstm", data, "--out", tmp_path / "report.pdf")
    assert "--penalties a is not known" in refused(capsys, "imposter", "lstm", data, "--penalties", "a")
    assert "--layers x is not known" in refused(capsys, "permutation", "lstm", data, "--layers", "x")
    assert "Training needs labels" in refused(capsys, "uniform", "lstm", data, "--work", tmp_path / "w")
    assert "'no/model' could not be loaded" in refused(
        capsys, "uniform", "no/model", data, "--label-column", "label", "--work", tmp_path / "w"
    )


def test_errors_are_the_librarys_own():
    from attnflow.models.factories import pretrained

    with pytest.raises(InputError, match="could not be loaded as a classifier of 2 classes.*attnflow audit all"):
        pretrained("no/model")(0)
    assert issubclass(InputError, AttnFlowError)
