"""The benchmark of the paper's tables: its records, its CSV files and its page."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
DOCS = FOLDER.parent / "docs"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("tables", "tables_page", "report", "probe_models"):
        sys.modules.pop(name, None)


def test_the_docs_page_is_drawn_from_its_csv_file(load, tmp_path):
    shutil.copytree(DOCS / "data", tmp_path / "data")
    shutil.copyfile(DOCS / "reproduction.md", tmp_path / "reproduction.md")
    load("tables").main(["--redraw", "--docs", str(tmp_path)])
    assert (tmp_path / "reproduction.md").read_text() == (DOCS / "reproduction.md").read_text()
    assert (tmp_path / "images" / "reproduction.svg").read_text().lstrip().startswith("<?xml")


def test_the_figures_show_the_recorded_numbers(load):
    page = load("tables_page")
    _, accuracy = page.read(DOCS)
    test, natural = page.by_attractors(accuracy).axes
    rows = accuracy[(accuracy["set"] == "test") & (accuracy["model"] == "seed 1") & (accuracy["attractors"] != "all")]
    assert list(test.containers[1].lines[0].get_ydata()) == rows["accuracy"].tolist()
    assert len(natural.containers) == 3 and len(rows) == 5
    saturation = pd.read_csv(DOCS / "data" / "reproduction-saturation.csv")
    (panel,) = page.by_depth(saturation).axes
    assert sorted(len(line.get_xdata()) for line in panel.lines) == [5, 11, 29]
    deepest = panel.lines[2]
    assert (deepest.get_xdata()[0], deepest.get_xdata()[-1]) == (2, 30)
    assert list(deepest.get_ydata()) == saturation[saturation["layers"] == 30]["share"].tolist()[1:]


def test_cells_tell_the_distance_in_spreads(load):
    page = load("tables_page")
    rows = pd.DataFrame({"model": ["seed 0", "seeds"], "mean": [0.5, 0.6], "std": [0.3, 0.05]})
    assert page._of_seeds(rows, 0.71) == "0.60 ± 0.05 (−2.2)"
    assert page._of_seeds(rows[:1], 0.71) == "0.50"


def test_the_recorded_rows_hold_the_papers_values(load):
    tables, page = load("tables"), load("tables_page")
    frame, _ = page.read(DOCS)
    recorded = frame[frame["model"] == "paper"].to_dict("records")
    found = list(tables.published())
    assert len(found) == len(recorded)
    for theirs, ours in zip(recorded, found, strict=True):
        assert {key: theirs[key] for key in ours} == ours


def test_records_mean_spread_and_seeds_by_hand(load, tmp_path):
    tables, page = load("tables"), load("tables_page")
    first = [v for v in tables.VARIANTS if v.table == "Table 1"]
    other = np.array([[0.0, 1.0], [0.5, np.nan]])  # [sentences, layers]
    runs = [{(v, m): values for v in first for m in tables.METHODS} for values in (np.ones((2, 2)), other)]
    rows = list(tables.records("Table 1", "test", runs, ["seed 0", "seed 1"], tables.VARIANTS))
    assert len(rows) == 3 * 2 * (3 + len(first) - 1)  # the first variant has two models and their mean
    flow = [r for r in rows if r["method"] == "flow" and r["variant"] == first[0].name and r["layer"] == 0]
    assert [(r["model"], r["mean"]) for r in flow] == [("seed 0", 1.0), ("seed 1", 0.25), ("seeds", 0.625)]
    assert flow[2]["std"] == pytest.approx(0.75 / np.sqrt(2))
    assert [r["missing"] for r in rows if r["model"] == "seed 1" and r["method"] == "raw"] == [0, 1]
    frame = tables.frame_of([*tables.published(), *rows])
    page.write(tmp_path, frame, frame[["mean"]])
    again, _ = page.read(tmp_path)
    assert page.short_table(again) == page.short_table(frame)
    assert "| flow | 0 | 0.32 | 0.62 ± 0.53 (+0.6) |" in page.short_table(frame)


def test_the_figure_of_the_probes_is_drawn_from_its_csv_files(load, tmp_path):
    shutil.copytree(DOCS / "data", tmp_path / "data")
    probes = load("probe_models")
    probes.draw(tmp_path)
    assert (tmp_path / "images" / "probe-models.svg").read_text().lstrip().startswith("<?xml")
    verbs, referents = (pd.read_csv(DOCS / "data" / f"probe-models-{name}.csv") for name in probes.NUMBERS)
    verb_panel, _, pronoun_panel = probes.layer_curves(verbs, referents).axes
    raw = verbs[(verbs["method"] == "raw") & (verbs["reference"] == "gradient")]
    assert list(verb_panel.lines[0].get_ydata()) == raw["mean"].tolist() and len(raw) == 30
    assert len(pronoun_panel.lines) == 6
