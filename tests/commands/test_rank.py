"""``attnflow rank``: the table on the screen, the files that it writes, and what it refuses."""

from __future__ import annotations

import pytest

from attnflow.commands.app import main
from tests.tiny_models import tiny, tokenizer

CHEAP = ["--methods", "rollout", "--measures", "comprehensiveness,deletion", "--no-progress"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["rank", *map(str, arguments)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / "texts.csv").write_text("text\nthe key is on the table\na dull film was great\n")
    return folder


def test_a_league_with_all_its_files(saved, tmp_path, capsys):
    files = {"--table": tmp_path / "t.tex", "--plot": tmp_path / "p.png", "--page": tmp_path / "l.html"}
    given = [part for pair in files.items() for part in pair]
    code, out, err = run(capsys, saved, saved / "texts.csv", "--out", tmp_path / "run", *CHEAP, *given)
    assert code == 0 and "| rollout |" in out and "random (baseline)" in out and "comprehensiveness ↑ mask" in out
    assert "League(2 examples × 4 methods × 2 measures); records: " in err
    assert "toprule" in files["--table"].read_text() and "random ranking" in files["--page"].read_text()
    assert files["--plot"].stat().st_size > 1000
    code, again, _ = run(capsys, saved, saved / "texts.csv", "--out", tmp_path / "run", "--resume", *CHEAP)
    assert code == 0 and again == out
    code, _, err = run(capsys, saved, saved / "texts.csv", "--table", files["--table"], *CHEAP)
    assert code == 2 and "exists" in err


def test_the_task_of_the_package(capsys, tmp_path):
    csv = tmp_path / "t.csv"
    code, out, err = run(capsys, "inside", "--task", "verb-number", "--limit", 4, "--methods", "rollout", "--measures",
                         "pointing", "--no-progress", "--table", csv)  # fmt: skip
    assert code == 0 and "pointing ↑" in out and "of 4 examples are used" in err
    assert csv.read_text().startswith("method,")


def test_explain_shows_the_best_of_the_league_and_says_why(saved, tmp_path, capsys):
    from attnflow.scoring.registry import BEST

    with pytest.raises(SystemExit):
        main(["explain", str(saved), "the key is on the table"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"{BEST}: first in the league of faithfulness (docs/league.md)" in out and "rollout" in out
    with pytest.raises(SystemExit):
        main(["explain", str(saved), "the key is on the table", "--method", "raw"])
    assert "league" not in capsys.readouterr().out, "whoever names methods gets these"
    tiny("bert-mlm").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(tmp_path), "the key is on the table"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and f"Without {BEST}: BertForMaskedLM predicts at each of 8 positions" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "No DATA and no --task: name a file, a data set, or a task with its own:  --task verb-number"),
        (["--task", "verb-number", "--resume"], "--resume goes on with the run in a folder, and none is named"),
        (["--task", "chess"], "--task chess is not known. Use one of: verb-number"),
        (
            ["--task", "verb-number", "--blank", "mask"],
            "--blank mask is one kind, and every table",
        ),
        (["--task", "verb-number", "--layers", "x"], "--layers x is not known"),
        (["--task", "verb-number", "--page", "a.txt"], "--page a.txt ends in '.txt'. Use .html"),
    ],
)
def test_mistakes_are_one_paragraph(capsys, given, message):
    code, out, err = run(capsys, "inside", *given)
    assert code == 2 and message in err and not out
