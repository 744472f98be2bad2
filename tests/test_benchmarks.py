"""Every benchmark with ``--quick``: it ends, and the docs are as they were."""

from __future__ import annotations

import hashlib
import importlib
import os
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
# Run by benchmarks/edges.py --quick.
PARTS = {"edges_certificate", "edges_compare", "edges_speed"}


def docs() -> str:
    files = sorted(path for path in (ROOT / "docs").rglob("*") if path.is_file())
    return hashlib.blake2b(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """As at the command line: modules of the folder come first, and nothing of them is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    before, environment, threads = (
        set(sys.modules),
        dict(os.environ),
        importlib.import_module("torch").get_num_threads(),
    )
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == FOLDER:
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)
    importlib.import_module("torch").set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in PARTS])
def test_every_benchmark_runs_quickly_and_records_nothing(name, alone, monkeypatch, capsys):
    before = docs()
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), "--quick"])
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    except SystemExit as left:
        assert not left.code, left.code
    assert capsys.readouterr().out.strip(), "it says nothing"
    assert docs() == before


def test_every_benchmark_has_a_small_form():
    for name in NAMES:
        text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        assert "--quick" in text or "quick()" in text, name


def test_a_small_run_leaves_recorded_pages_alone(alone, monkeypatch, capsys, tmp_path):
    report = importlib.import_module("report")
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("a\n<!-- key -->\n\nold\n\n<!-- /key -->\nb\n")
    monkeypatch.setattr(report, "DOCS", page.parent)
    monkeypatch.setattr(report, "FOLDER", page.parent)
    for quick, expected in ((True, "old"), (False, "new")):
        monkeypatch.setattr(sys, "argv", ["page.py", *["--quick"] * quick])
        report.insert(page, "key", "new")
        report.write("made", "Title", ["x"], [[1]], "Text.", "python benchmarks/made.py")
        assert expected in page.read_text() and (page.parent / "made.md").exists() is not quick
    assert "--quick: page.md stays as it is." in capsys.readouterr().out
    for given, small in (("--qui", True), ("--", False), ("--quicker", False)):
        monkeypatch.setattr(sys, "argv", ["page.py", given])
        assert report.quick() is small
    few = report.fewer("--count", 5, 9)
    assert report.stays(page, few) and not report.stays(tmp_path / "elsewhere.md", few)
    assert not report.stays(page, report.fewer("--count", 9, 9))
    assert "--count 5 is fewer than the 9 recorded: page.md stays as it is." in capsys.readouterr().out
    text = (page.parent / "made.md").read_text()
    for part in ("Made by `python benchmarks/made.py` on ", " in ", "torch ", "transformers ", "Python ", "cores."):
        assert part in text
    for quick in (True, False):
        monkeypatch.setattr(sys, "argv", ["page.py", "--work", "build/x", *["--quick"] * quick])
        report.record_run(page.parent / "runs.csv")
    head, line = (page.parent / "runs.csv").read_text().splitlines()
    assert head == "day,command,duration,versions,machine"
    assert ",python benchmarks/page.py --work build/x," in line and "torch " in line and line.endswith("cores")
    report.record_run(page.parent / "runs.csv")
    assert len((page.parent / "runs.csv").read_text().splitlines()) == 3
    with (tmp_path / report.RUNS).open("w") as trained:
        trained.write("day,command,duration,versions,machine\n1,train,2 s,a,b\n2,train,3 s,a,b\n")
    for _ in range(2):  # a training is told once, before the first run that read its folder
        report.record_run(page.parent / "runs.csv", [tmp_path, tmp_path / "nothing"])
    days = [line.split(",")[0] for line in (page.parent / "runs.csv").read_text().splitlines()]
    assert [days[i] for i in (0, 3, 4)] == ["day", "1", "2"] and len(days) == 7
    report.insert(page, "key", report.markdown(["model", "value"], [["a", 1], ["b", 2]]))
    assert report.table_rows(page, "key") == [["a", "1"], ["b", "2"]]
    with pytest.raises(SystemExit, match="has no <!-- other -->"):
        report.insert(page, "other", "x")


def test_a_command_is_told_without_the_users_folders(alone, monkeypatch, tmp_path):
    report = importlib.import_module("report")
    monkeypatch.setattr(sys, "argv", ["/x/tables.py", "--data", str(tmp_path), "--count", "5", "--file", "/no/file"])
    assert "`python benchmarks/tables.py --data FOLDER --count 5 --file FILE`" in report.made()
    monkeypatch.setattr(sys, "argv", ["/x/tables.py", "--model", "build/seed1", "--data", "../own"])
    assert report.given_command() == "python benchmarks/tables.py --model build/seed1 --data FILE"


def test_a_new_sweep_of_the_zoo_keeps_the_recorded_edges(alone, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["zoo.py"])
    zoo_page, report = importlib.import_module("zoo_page"), importlib.import_module("report")
    row = {"status": "equal", "model": "BertModel", "route": "interface", "blocks": {"self": 2}}
    row |= {"sums": [1.0, 1.0], "compared": 2, "reason": "", "longer": "equal"}
    rows = dict.fromkeys(("bert", "new"), row)
    page, edges = tmp_path / "zoo.md", tmp_path / "edges.csv"
    zoo_page.write(page, {"bert": rows["bert"]}, edges)
    assert report.between(page, "edges") == "" and "parts add up" not in page.read_text()
    report.insert(page, "edges", "## Edges\n\n| all | 1 |")
    edges.write_text("type,decomposed,parts error,value zeroing,replay error\nbert,yes,1.0e-06,no,\n")
    for _ in range(2):
        zoo_page.write(page, rows, edges)
    assert report.between(page, "edges") == "## Edges\n\n| all | 1 |"
    table = page.read_text().split("## Captured\n")[1].split("##")[0]
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    assert lines["type"].endswith("| second length | parts add up | value zeroing |")
    assert lines["`bert`"].endswith("| 1e-06 | no |") and lines["`new`"].endswith("|  |  |")
