"""The benchmark of the paper's tables: its records, its CSV files and its page."""

from __future__ import annotations

import importlib
import shutil
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
DOCS = FOLDER.parent / "docs"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("tables", "tables_page", "tables_rows", "report", "probe_models", "training_curve"):
        sys.modules.pop(name, None)


def test_the_docs_page_is_drawn_from_its_csv_file(load, tmp_path):
    shutil.copytree(DOCS / "data", tmp_path / "data")
    shutil.copyfile(DOCS / "reproduction.md", tmp_path / "reproduction.md")
    load("tables").main(["--redraw", "--docs", str(tmp_path)])
    assert (tmp_path / "reproduction.md").read_text() == (DOCS / "reproduction.md").read_text()
    assert (tmp_path / "images" / "reproduction.svg").read_text().lstrip().startswith("<?xml")


def test_the_figures_show_the_recorded_numbers(load):
    page = load("tables_page")
    _, accuracy, _ = page.read(DOCS)
    test, natural = page.by_attractors(accuracy).axes
    seeds = sorted(set(accuracy.loc[accuracy["set"] == "test", "model"]))
    rows = accuracy[(accuracy["set"] == "test") & (accuracy["model"] == seeds[-1]) & (accuracy["attractors"] != "all")]
    assert list(test.containers[len(seeds) - 1].lines[0].get_ydata()) == rows["accuracy"].tolist()
    assert len(natural.containers) == len(seeds) and len(rows) == 5
    saturation = pd.read_csv(DOCS / "data" / "reproduction-saturation.csv")
    (panel,) = page.by_depth(saturation).axes
    assert sorted(len(line.get_xdata()) for line in panel.lines) == [5, 11, 29]
    deepest = panel.lines[2]
    assert (deepest.get_xdata()[0], deepest.get_xdata()[-1]) == (2, 30)
    assert list(deepest.get_ydata()) == saturation[saturation["layers"] == 30]["share"].tolist()[1:]


def test_cells_tell_the_distance_in_spreads(load):
    page = load("tables_page")
    names = ["seed 0", "seed 1", "seed 2", "seeds"]
    rows = pd.DataFrame({"model": names, "mean": [0.65, 0.6, 0.55, 0.6], "std": [0.3, 0.3, 0.3, 0.05]})
    assert page._of_seeds(rows, 0.71) == "0.60 ± 0.05 (−2.2)"
    assert page._of_seeds(rows[1:], 0.71) == "0.55 and 0.60"  # two seeds have no spread
    assert page._of_seeds(rows[:1], 0.71) == "0.65"


def test_the_authors_recipe_is_shown_beside_the_seeds_and_is_none_of_them(load):
    page = load("tables_page")
    means = {"seed 0": 0.5, "seed 1": 0.7, page.AUTHORS: -0.1}
    places = [(method, layer) for method in page.METHODS for layer in (0, 5)]
    rows = [["Table 1", "valid", "lead", name, *place, mean] for name, mean in means.items() for place in places]
    rows += [["Table 1", "test", "lead", "seed 0", *place, 0.8] for place in places]
    rows += [["Table 1", "test", "lead", page.AUTHORS, *places[-1], -0.2]]  # flow at the last layer alone
    rows += [["Table 1", None, None, page.PAPER, *place, 0.3] for place in places]
    frame = pd.DataFrame(rows, columns=["table", "set", "variant", "model", "method", "layer", "mean"])
    lines = page.short_table(frame).splitlines()
    shown = "| test sentences, authors' recipe | natural sentences, authors' recipe |"
    assert lines[0].endswith(f"| paper | test sentences (hard) | natural sentences {shown}")
    assert "| blank-out | rollout | 5 | 0.30 | 0.80 | 0.50 and 0.70 | – | −0.10 |" in lines
    assert "| blank-out | flow | 5 | 0.30 | 0.80 | 0.50 and 0.70 | −0.20 | −0.10 |" in lines
    paper, hard, ours, theirs, _ = page.layer_curves(frame).axes[1].lines
    assert list(paper.get_ydata()) == [0.3, 0.3] and list(theirs.get_ydata()) == [-0.1, -0.1]
    assert list(hard.get_ydata()) == [0.8, 0.8]
    assert list(ours.get_ydata()) == pytest.approx([0.6, 0.6])


def test_the_table_of_trainings_has_three_models_of_each(load):
    rows = load("tables_rows")
    frame = pd.DataFrame(
        [[run, seen, seen / 1000, table, method, layer, layer / 10 if method != "flow" else np.nan]
         for run, every in (("own", (0, 7)), ("authors", (0, 10, 20, 30, 40))) for seen in every
         for table in ("Table 1", "Table 2") for method in ("raw", "rollout", "flow") for layer in (0, 5)],
        columns=["run", "sentences", "accuracy", "table", "method", "layer", "mean"],
    )  # fmt: skip
    lines = rows.training_table(frame).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| authors' recipe, 0", "| authors' recipe, 10", "| authors' recipe, 40",
        "| own, 0", "| own, 7",
    ]  # fmt: skip
    assert lines[3] == "| authors' recipe, 10 | 0.010 | 0.00 | 0.50 | – | 0.00 | 0.50 | – |"


def test_table_3_is_shown_for_every_classifier(load):
    page = load("tables_page")
    ways = [("CLS row, Σ abs(gradient)", 0.0), ("CLS row, Σ abs(gradient), CLS and SEP left out", 0.1)]
    rows = [
        ["Table 3", "sst2", way, name, method, layer, base + more + layer / 10]
        for name, base in (("minilm-sst2", -0.5), ("distilbert-sst2", 0.2))
        for way, more in ways
        for method in page.METHODS
        for layer in (0, 1)
    ]
    rows += [["Table 3", None, None, page.PAPER, method, layer, 0.12] for method in page.METHODS for layer in (0, 1)]
    frame = pd.DataFrame(rows, columns=["table", "set", "variant", "model", "method", "layer", "mean"])
    lines = page.sentiment_table(frame).splitlines()
    assert lines[0].startswith("| method | paper, layer 0 | paper, layer 1 | MiniLM, layer 0 |")
    assert lines[2] == "| raw | 0.12 | 0.12 | −0.50 | −0.40 | 0.20 | 0.30 | −0.30 | 0.40 |" and len(lines) == 5
    for panel in page.sentiment_curves(frame).axes:
        dashed, minilm, distilbert, _ = panel.lines
        assert dashed.get_linestyle() == "--" and list(minilm.get_ydata()) == [-0.5, -0.4]
        assert list(distilbert.get_ydata()) == pytest.approx([0.2, 0.3])


def test_the_recorded_rows_hold_the_papers_values(load):
    tables, page = load("tables"), load("tables_page")
    frame, _, _ = page.read(DOCS)
    recorded = frame[frame["model"] == "paper"].to_dict("records")
    found = list(tables.published())
    assert len(found) == len(recorded)
    for theirs, ours in zip(recorded, found, strict=True):
        assert {key: theirs[key] for key in ours} == ours


def test_records_mean_spread_and_seeds_by_hand(load, tmp_path):
    tables, page = load("tables"), load("tables_page")
    every = [v for v in tables.VARIANTS if v.table == "Table 1"]
    lead = [v for v in tables.MAIN if v.table == "Table 1"]
    assert [v.reference for v in every if v not in lead] == ["delete", "predicted"]
    other = np.array([[0.0, 1.0], [0.5, np.nan]])  # [sentences, layers]
    runs = [
        {(v, m): values for v in variants for m in tables.METHODS}
        for variants, values in ((every, np.ones((2, 2))), (lead, other))
    ]
    made = tables.frame_of(list(tables.records("Table 1", "test", runs, ["seed 0", "seed 1"], tables.VARIANTS)))
    rows = tables.with_seeds(made).to_dict("records")
    # Three methods, two layers: two seeds and their mean of the leading variants, one seed of the others.
    assert len(rows) == 3 * 2 * (3 * len(lead) + len(every) - len(lead))
    flow = [r for r in rows if r["method"] == "flow" and r["variant"] == every[0].name and r["layer"] == 0]
    assert [(r["model"], r["mean"]) for r in flow] == [("seed 0", 1.0), ("seed 1", 0.25), ("seeds", 0.625)]
    assert flow[2]["std"] == pytest.approx(0.75 / np.sqrt(2))
    raw = [r for r in rows if r["model"] == "seed 1" and r["method"] == "raw" and r["variant"] == every[0].name]
    assert [r["missing"] for r in raw] == [0, 1]
    apart = tables.frame_of(list(tables.records("Table 1", "test", runs, ["a", "b"], tables.VARIANTS)))
    assert set(tables.with_seeds(apart)["model"]) == {"a", "b"}  # classifiers are no seeds of one model
    frame = tables.frame_of([*tables.published(), *rows])
    noise = pd.DataFrame({"set": ["test"], "ratio": [1.23e-8]})
    page.write(tmp_path, (frame, frame[["mean"]], noise))
    again, _, ratios = page.read(tmp_path)
    assert ratios["ratio"].tolist() == [1.2e-8]
    assert page.short_table(again) == page.short_table(frame)
    assert "| blank-out | rollout | 0 | 0.32 | 0.25 and 1.00 |" in page.short_table(frame)
    assert len(page.layer_curves(frame).axes) == 3  # nothing of Table 2 was computed


def test_a_model_is_added_to_those_that_are_recorded(load, tmp_path):
    tables, page = load("tables"), load("tables_page")
    same = {"table": "Table 1", "set": "test", "variant": "v", "method": "raw", "layer": 0}
    old = tables.frame_of([*tables.published(), same | {"model": "seed 0", "mean": 0.5}])
    new = tables.frame_of([*tables.published(), same | {"model": "seed 1", "mean": 0.7}])
    one = tables.with_seeds(page.added(old, new, "model"))
    assert one[one["set"] == "test"][["model", "mean"]].to_numpy().tolist()[:2] == [["seed 0", 0.5], ["seed 1", 0.7]]
    (seeds,) = one[one["model"] == "seeds"].to_dict("records")
    assert (seeds["mean"], seeds["std"]) == pytest.approx((0.6, 0.02**0.5)) and len(one) == len(old) + 2
    again = tables.with_seeds(page.added(one, new, "model"))  # the same model once more takes its old rows' place
    assert again.to_dict("records")[-1]["std"] == pytest.approx(0.02**0.5) and len(again) == len(one)
    runs = pd.DataFrame([["b", 9, 1], ["a", 5, 2], ["a", 50, 3]], columns=["run", "sentences", "mean"])
    more = pd.DataFrame([["a", 50, 4], ["a", 7, 5]], columns=runs.columns)
    assert page.added(runs, more, "run").to_numpy().tolist() == [["b", 9, 1], ["a", 50, 4], ["a", 7, 5]]
    by_model = page.added(runs, more, "run", "sentences").to_numpy().tolist()
    assert by_model == [["b", 9, 1], ["a", 5, 2], ["a", 7, 5], ["a", 50, 4]]  # in order, as a curve needs them
    (tmp_path / "training.json").write_text('{"seed": 7}')
    assert (tables.name_of(None), tables.name_of(tmp_path)) == ("seed 0", "seed 7")
    kept = tmp_path / "step-000010"
    kept.mkdir()
    assert tables.name_of(kept) == "seed 7"
    (kept / "training.json").write_text('{"seed": 0, "recipe": "authors"}')
    assert tables.name_of(kept) == "authors' recipe"
    alone = tmp_path.parent / "alone"  # nothing is known of it, so it takes no recorded model's place
    assert tables.name_of(alone / "own") == "own"


def test_the_sum_of_the_gradient_is_rounding_error_and_its_size_is_not(load):
    tables = load("tables")
    from attnflow.probes import grammar, verb_number

    model, tokenizer = verb_number.load()
    texts = [(e.prefix, int(model.config.label2id[e.label])) for e in grammar.sentences(3)]
    two = tuple(v for v in tables.VARIANTS if v.reference in ("abs_sum", "paper") and v.special)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the demonstration is labelled, and does not warn
        found = tables.correlations(model, tokenizer, texts, two)
    (noise,) = tables.noise_records("grammar", [found], ["seed 0"])
    assert noise["n"] == 3 and 0 < noise["median"] <= noise["largest"] < 1e-6
    assert {v.table for v, _ in found} == {"Table 2", "noise"} and two[0] == tables.MAIN[3]


def test_a_run_that_was_stopped_goes_on_with_what_was_kept(load, monkeypatch, tmp_path):
    tables = load("tables")
    lead = tables.MAIN[:1]
    found = {(lead[0], m): np.full((2, 6), 0.5) for m in tables.METHODS} | {tables.RATIO: np.full((2, 1), 1e-8)}
    asked = []
    monkeypatch.setattr(tables, "correlations", lambda *given: asked.append(given) or found)
    for _ in range(2):
        again = tables.kept(tmp_path, None, [("a text", 0)], (None, None), lead)
        assert {key: values.tolist() for key, values in again.items()} == {k: v.tolist() for k, v in found.items()}
    assert len(asked) == 1


def test_classifiers_without_sentences_say_what_is_missing(load, capsys):
    with pytest.raises(SystemExit):
        load("tables").options_of(["--sst2", "a", "--sst2", "b"])
    assert "--sst2 names a classifier and --sst2-data no sentences" in capsys.readouterr().err


def test_table_3_takes_several_classifiers(load, monkeypatch, tmp_path):
    tables = load("tables")
    file = tmp_path / "test.tsv"
    file.write_text("sentence\tlabel\na fine film\t1\na dull film\t0\n")

    class Fine:
        """Says 1 of every text."""

        def __call__(self, **_):
            return types.SimpleNamespace(logits=torch.tensor([[0.0, 1.0]]))

    values = {(v, m): np.zeros((2, 2)) for v in tables.VARIANTS_3 for m in tables.METHODS}
    monkeypatch.setattr("attnflow.models.loading.load", lambda _: (Fine(), lambda *a, **k: {}))
    monkeypatch.setattr(tables, "correlations", lambda *given: values | {tables.RATIO: np.full((2, 1), 1e-8)})
    found, accuracy, noise = tables.sst2_records([Path("x/one"), Path("x/two")], file, 2, None)
    assert [(a["model"], a["n"], a["accuracy"]) for a in accuracy] == [("one", 2, 0.5), ("two", 2, 0.5)]
    assert {r["model"] for r in found} == {"one", "two"} and len(found) == 2 * 3 * 2 * len(tables.VARIANTS_3)
    assert found[0]["variant"] == "CLS row, Σ abs(gradient)" and [n["model"] for n in noise] == ["one", "two"]


@pytest.fixture
def docs(tmp_path):
    """The recorded page of the tables and its data, to be written to."""
    shutil.copytree(DOCS / "data", tmp_path / "docs" / "data")
    shutil.copyfile(DOCS / "reproduction.md", tmp_path / "docs" / "reproduction.md")
    return tmp_path / "docs"


def numbers(docs):
    """The CSV files of the tables, to the byte."""
    return [(docs / "data" / f"reproduction-{name}.csv").read_bytes() for name in ("correlations", "accuracy", "noise")]


def only(tables, *models):
    """What a run that computes these models would find: their recorded rows."""
    one, two, three = (frame[frame["model"].isin([*models, "paper"])] for frame in tables.tables_page.read(DOCS))
    return lambda options: (tables.with_seeds(one), two, three)


@pytest.mark.parametrize("model", ["seed 0", "seed 1", "minilm-sst2"])
def test_a_run_keeps_the_models_that_it_does_not_name(load, monkeypatch, docs, tmp_path, model):
    tables, before = load("tables"), numbers(docs)
    monkeypatch.setattr(tables, "compute", only(tables, model))
    tables.main(["--data", str(tmp_path), "--docs", str(docs)])
    assert numbers(docs) == before
    assert (docs / "reproduction.md").read_text() == (DOCS / "reproduction.md").read_text()


def test_a_fresh_run_drops_them(load, monkeypatch, docs, tmp_path):
    tables = load("tables")
    monkeypatch.setattr(tables, "compute", only(tables, "seed 0"))
    tables.main(["--data", str(tmp_path), "--docs", str(docs), "--fresh"])
    assert [set(frame["model"]) - {"paper"} for frame in tables.tables_page.read(docs)] == [{"seed 0"}] * 3


@pytest.mark.parametrize(
    ("given", "named"),
    [([], ["seed 0"]), (["--model", "own"], ["own"]), (["--sst2", "x"], []), (["--add"], ["seed 0"]),
     (["--fresh", "--model", "own"], ["seed 0", "own"]), (["--fresh", "--sst2", "x"], ["seed 0"])],
)  # fmt: skip
def test_a_run_computes_what_is_named_and_otherwise_seed_0(load, monkeypatch, given, named):
    tables = load("tables")
    row = {"set": "test", "model": "any"}
    monkeypatch.setattr(tables.verb_number, "load", lambda folder: (None, None))
    monkeypatch.setattr(tables, "sst2_records", lambda *given: ([], [row], [row]))
    monkeypatch.setattr(tables, "verb_records", lambda models, *rest: (asked.extend(models) or [], [row]))
    monkeypatch.setattr(tables, "accuracy_records", lambda *given: [row])
    asked = []
    tables.compute(tables.options_of([*given, "--sst2-data", "file"]))
    assert [tables.name_of(folder) for folder in asked] == named


def test_a_model_that_takes_the_place_of_seed_0_has_all_of_its_variants(load, monkeypatch, tmp_path):
    tables, asked = load("tables"), []
    (tmp_path / "training.json").write_text('{"seed": 0}')
    model = types.SimpleNamespace(config=types.SimpleNamespace(label2id={"singular": 0, "plural": 1}))
    found = {tables.RATIO: np.zeros((2, 1))}
    monkeypatch.setattr(tables, "kept", lambda *given: asked.append(given[-1]) or found)
    folders = [tmp_path, tmp_path / "none" / "own"]
    tables.verb_records(folders, [(model, None)] * 2, None, 2, None)
    assert asked == [tables.VARIANTS, tables.MAIN]


def test_the_heat_maps_are_drawn_alone(load, monkeypatch, docs, tmp_path, capsys):
    tables, before = load("tables"), numbers(docs)
    monkeypatch.setattr(tables, "compute", only(tables, "seed 0"))
    tables.main(["--data", str(tmp_path), "--docs", str(docs), "--figures"])
    assert numbers(docs) == before
    assert sorted(path.stem for path in (docs / "images").iterdir()) == sorted(tables.EXAMPLES)
    assert capsys.readouterr().out.startswith("the article on NNP large systems: singular (0.996)")
    shutil.rmtree(docs / "images")
    tables.main(["--docs", str(docs), "--figures", "--quick"])
    assert not (docs / "images").exists()


def test_depth_keeps_the_models_that_are_not_installed(load, monkeypatch, docs, capsys):
    tables = load("tables")
    file, runs = (docs / "data" / f"reproduction-{name}.csv" for name in ("saturation", "runs"))
    before, noted = pd.read_csv(file), runs.read_bytes()
    monkeypatch.setattr(tables, "saturation_records", lambda small: iter(()))
    tables.main(["--depth", "--docs", str(docs)])
    assert pd.read_csv(file).equals(before) and runs.read_bytes() == noted
    there = before[before["model"] != "all-mpnet-base-v2"].assign(share=0.25)
    monkeypatch.setattr(tables, "saturation_records", lambda small: there.to_dict("records"))
    tables.main(["--depth", "--docs", str(docs)])
    after = pd.read_csv(file)
    assert after["share"].where(after["model"] == "all-mpnet-base-v2", before["share"]).equals(before["share"])
    assert set(after.loc[after["model"] != "all-mpnet-base-v2", "share"]) == {0.25} and len(after) == len(before)
    assert "all-mpnet-base-v2 is not installed: its recorded rows stay." in capsys.readouterr().out
    assert runs.read_bytes() != noted


def test_a_curve_keeps_the_runs_and_models_that_it_does_not_name(load, monkeypatch, docs, tmp_path):
    curve = load("training_curve")
    file = docs / "data" / "reproduction-training.csv"
    before = file.read_bytes()
    every = pd.read_csv(file)
    first = every[(every["run"] == "seed1") & (every["sentences"] == 129_280)]
    named = ["--data", str(tmp_path), "--docs", str(docs), "--run", "build/seed1"]
    monkeypatch.setattr(curve, "records", lambda *given: first.to_dict("records"))
    curve.main([*named, "--step", "1010"])
    assert file.read_bytes() == before
    curve.main(named)  # the run has this model alone now
    after = pd.read_csv(file)
    assert (
        after[after["run"] != "seed1"]
        .reset_index(drop=True)
        .equals(every[every["run"] != "seed1"].reset_index(drop=True))
    )
    assert set(after.loc[after["run"] == "seed1", "sentences"]) == {129_280}
    curve.main([*named, "--fresh"])
    assert set(pd.read_csv(file)["run"]) == {"seed1"}


def test_a_page_of_probes_is_not_replaced_by_that_of_another_model(load, monkeypatch, tmp_path, capsys):
    probes = load("probe_models")
    folder = tmp_path / "docs" / "benchmarks"
    folder.mkdir(parents=True)
    page = folder / "probe_models.md"
    shutil.copyfile(DOCS / "benchmarks" / "probe_models.md", page)
    frames = [pd.read_csv(DOCS / "data" / f"probe-models-{name}.csv") for name in probes.NUMBERS]
    monkeypatch.setattr(probes, "FOLDER", folder)
    monkeypatch.setattr(probes, "page_of", lambda options, *given: (f"# Probes on {options.model}\n", frames))
    many = ["--data", "own", "--count", "7489", "--pronouns", "3168"]
    with pytest.raises(SystemExit):
        probes.main([*many, "--model", "build/Other-1.5"], loaded=(None, None))
    assert page.read_text() == (DOCS / "benchmarks" / "probe_models.md").read_text()
    said = capsys.readouterr().err
    assert "probe_models.md is of SmolLM2-135M-Instruct.Q4_1.gguf, and --model is Other-1.5." in said
    line = "python benchmarks/probe_models.py --data own --model build/Other-1.5 --page probe_other_1_5"
    assert said.endswith(f"  {line}\n")
    probes.main([*many, "--model", "build/Other-1.5", "--page", "probe_other_1_5"], loaded=(None, None))
    assert (folder / "probe_other_1_5.md").read_text() == "# Probes on build/Other-1.5\n"
    probes.main([*many, "--model", "any/SmolLM2-135M-Instruct.Q4_1.gguf"], loaded=(None, None))
    assert page.read_text() == "# Probes on any/SmolLM2-135M-Instruct.Q4_1.gguf\n"  # its own model takes its place


def recorded():
    """What the docs hold, to the byte."""
    return {path: path.read_bytes() for path in DOCS.rglob("*") if path.is_file()}


def test_fewer_sentences_leave_the_docs_as_they_are(load, monkeypatch, tmp_path, capsys):
    tables, before = load("tables"), recorded()
    monkeypatch.setattr(tables, "compute", lambda options: tables.tables_page.read(DOCS))
    tables.main(["--data", str(tmp_path), "--count", "1999"])
    curve = load("training_curve")
    row = {"run": "x", "sentences": 1, "accuracy": 1.0, "table": "Table 1", "method": "raw", "layer": 0, "mean": 0.0}
    monkeypatch.setattr(curve, "records", lambda *given: [row])
    curve.main(["--data", str(tmp_path), "--run", str(tmp_path), "--count", "499"])
    probes = load("probe_models")
    monkeypatch.setattr(probes, "page_of", lambda *given: ("", None))
    probes.main(["--data", str(tmp_path), "--pronouns", "3167"], loaded=(None, None))
    said = capsys.readouterr().out
    assert "--count 1999 is fewer than the 2000 recorded: reproduction.md stays as it is." in said
    assert "--count 499 is fewer than the 500 recorded: reproduction-training.csv stays as it is." in said
    assert "--pronouns 3167 is fewer than the 3168 recorded: probe_models.md stays as it is." in said
    assert recorded() == before
    assert probes.fewer_than(tmp_path / "new.md", (1, 1, 1)) == ""


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
