"""What the benchmarks of answers count and say, on made-up records with known answers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """A benchmark by its name, as at the command line; nothing of the folder is left behind."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


def line(gold: int, shares: list[float], without: list[float], right: bool = True) -> dict:
    found = {"length": 200, "gold": gold, "right": right}
    return (
        {**found, "shares": {"direct": shares}, "without": without, "tokens_of": [9, 1, 1, 1, 1, 1]} if right else found
    )


def test_needles_are_counted_where_the_model_answers_right(module):
    lines = [
        line(0, [6, 1, 1, 1, 1, 1], [0, 3, 0, 0, 0, 0]),
        line(1, [6, 1, 1, 1, 1, 1], [0, 3, 0, 0, 0, 0]),
        line(5, [], [], right=False),
    ]
    rows = {row[3]: row for row in module("answers").accuracy(lines)}
    assert rows["direct"][:6] == [200, 3, 2, "direct", 2, 0.5] and rows["direct"][6] < 0.5 < rows["direct"][7]
    assert rows["leave-one-out"][5] == rows["longest document"][5] == rows["first document"][5] == 0.5
    assert rows["last document"][5] == 0


def costs(model: str, tokens: int, ratio: float, mib: float, passes: float = 10.9) -> pd.DataFrame:
    said = f"{passes} forwards for 20 sources"
    rows = [[model, tokens, "plain", 10.0, 1.0, 0.0, ""], [model, tokens, "direct", 10.0 * ratio, ratio, mib, ""],
            [model, tokens, "leave-one-out", 90.0, 9.0, 0.0, said]]  # fmt: skip
    return pd.DataFrame(rows, columns=["model", "tokens", "way", "seconds", "ratio", "mib", "said"])


@pytest.mark.parametrize(("given", "missed"), [
    (("smollm2", 2048, 2.9, 599), "nothing"), (("smollm2", 2048, 3.1, 0), "direct of smollm2 at 2,048 tokens"),
    (("llama", 2048, 1.0, 601), "direct of llama at 2,048 tokens"), (("llama", 8192, 1.0, 601), "nothing"),
    (("llama", 8192, 1.0, 0, 20.5), "leave-one-out"),
])  # fmt: skip
def test_the_targets_of_cost_can_be_missed(module, given, missed):
    assert module("answers_cost").targets(costs(*given)).endswith(f"Missed: {missed}.")


def test_new_costs_take_the_place_of_those_of_their_model_and_length_alone(module, monkeypatch, tmp_path):
    bench, shown = module("answers_cost"), []
    monkeypatch.setattr(bench, "CSV", tmp_path / "cost.csv")
    monkeypatch.setattr(bench, "insert", lambda page, key, text: shown.append((key, text)))
    for given in (("llama", 2048, 1.5, 10), ("smollm2", 2048, 1.5, 10), ("llama", 2048, 2.5, 20)):
        bench.record(costs(*given))
    kept = pd.read_csv(tmp_path / "cost.csv").query("way == 'direct'")
    assert kept[["model", "ratio"]].to_numpy().tolist() == [["smollm2", 1.5], ["llama", 2.5]]
    assert shown[-1][0] == "cost" and "| `direct` | 2.50 | 20 |" in shown[-1][1]


def test_a_model_that_was_not_run_stays_as_recorded(module, monkeypatch, tmp_path):
    bench = module("edges_compare")
    monkeypatch.setattr(bench, "CSV", tmp_path / "edges.csv")
    monkeypatch.setattr(bench, "redraw", lambda: None)
    runs = (("SmolLM2", "norm", 0.1), ("MiniLM", "alti", 0.2), ("SmolLM2", "attention", 0.4), ("SmolLM2", "norm", 0.3))
    for model, edges, mean in runs:
        bench.write(pd.DataFrame({"model": [model], "edges": [edges], "mean": [mean]}))
    found = pd.read_csv(tmp_path / "edges.csv").to_numpy().tolist()
    assert found == [["MiniLM", "alti", 0.2], ["SmolLM2", "attention", 0.4], ["SmolLM2", "norm", 0.3]]


def test_fewer_sentences_than_recorded_leave_the_recorded_ones(module, monkeypatch, tmp_path):
    bench = module("edges_compare")
    monkeypatch.setattr(bench, "CSV", tmp_path / "edges.csv")
    rows = pd.DataFrame({"model": "MiniLM", "edges": ["norm", "norm", "alti"], "mean": 0.1, "n": [120, 119, 500]})
    assert bench.fewer_than_recorded(rows) == ""
    rows.to_csv(bench.CSV, index=False)
    assert bench.fewer_than_recorded(rows.assign(n=[120, 60, 500])) == ""
    assert bench.fewer_than_recorded(rows[:2].assign(n=3)) == "MiniLM with norm has 3 sentences, 120 are recorded"
    assert bench.fewer_than_recorded(rows.assign(model="SmolLM2", n=3)) == ""


def test_edges_with_fewer_sentences_are_named(module):
    said = module("edges_compare").said
    assert said("MiniLM", pd.Series({"attention": 500, "norm": 120})) == "MiniLM 500 (norm 120)"
    assert said("MiniLM", pd.Series({"attention": 500, "norm": 500})) == "MiniLM 500"
