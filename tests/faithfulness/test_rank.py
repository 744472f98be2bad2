"""The league: who wins where the truth is known, records that survive a kill, Ray, cost, words and every message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attnflow import demo, gradient, rank, register
from attnflow.errors import FileError, InputError, SelectionError
from attnflow.faithfulness import League
from attnflow.faithfulness.plan import COLUMNS
from attnflow.faithfulness.reading import verdict
from attnflow.probes.data import VerbExample
from attnflow.probes.grammar import sentences
from attnflow.relevance import Relevance
from attnflow.scoring.gradient import NOISE
from attnflow.scoring.registry import unregister
from tests.faithfulness.bag import WORDS, bag, texts, tokenizer, true_weights
from tests.tiny_models import state, tiny

FAST = {"methods": ["rollout"], "measures": ["comprehensiveness", "deletion"]}
KEYS = ["example", "method", "layer", "measure", "kind"]
WEIGHTS = [float(w) for w in np.random.default_rng(3).permutation(np.arange(1, len(WORDS) + 1))]


def noisy_weights(example, goal):
    found = true_weights(example, goal)
    noise = np.random.default_rng(int(example.inputs["input_ids"].sum())).normal(0, 5, found.scores.shape)
    return Relevance(found.scores + noise, found.tokens, ("input",), "noisy")


def constant(example, goal):
    return Relevance(np.ones((1, len(example.tokens))), example.tokens, ("input",), "constant")


NOISY = pytest.mark.filterwarnings("ignore::attnflow.errors.AttnFlowWarning")


@pytest.fixture(scope="module")
def own_methods():
    given = {"true weights": true_weights, "noisy weights": noisy_weights, "constant": constant}
    for name, function in given.items():
        register(name, needs="model")(function)
    yield list(given)
    for name in given:
        unregister(name)


@pytest.fixture(scope="module")
def known(own_methods):
    return rank(bag(WEIGHTS), tokenizer(), texts(24), methods=own_methods)


def test_the_true_weights_win_and_the_random_ranking_is_last(known):
    table = known.standings()
    order = [m for m in table["method"] if m in ("true weights", "noisy weights", "random")]
    assert order == ["true weights", "noisy weights", "random"]
    best = table.iloc[0]
    assert best["method"] == "true weights" and best["p"] < 0.001 and best["wins"] > 0.95
    means = known.to_frame().pivot_table(index="method", columns=["measure", "kind"], values="mean")
    for measure, kind in known.columns:
        sign = -1 if measure in ("sufficiency", "deletion") else 1
        true, noisy, random = (sign * means.loc[name, (measure, kind)] for name in order)
        assert true > noisy > random, (measure, kind)
    said = known.verdict()
    assert said.startswith("Use true weights for this model: it wins ") and "more than every other method" in said
    assert "2 of 5 beat the random ranking; " in said and "constant" in said.partition("ranking; ")[2]


def test_the_true_weights_alone_have_no_infidelity(own_methods):
    league = rank(bag(WEIGHTS), tokenizer(), texts(4), methods=own_methods, measures="infidelity")
    means = league.to_frame().groupby("method")["mean"].max()
    assert means["true weights"] == pytest.approx(0, abs=1e-9)
    assert (means.drop("true weights") > 1).all() and means["random"] == means.drop(["raw", "length"]).max()


def test_a_constant_score_is_the_random_ranking_within_its_interval(known):
    frame = known.to_frame().set_index(["method", "measure", "kind"])
    for column in known.columns:
        constant, random = (frame.loc[(name, *column)] for name in ("constant", "random"))
        assert random["low"] <= constant["mean"] <= random["high"]
    table = known.standings().set_index("method")
    assert table.loc["constant", "ties"] == 1.0 and table.loc["random", "ties"] == 1.0
    assert table.loc["true weights", "ties"] == 0.0


def test_chance_does_not_beat_chance_where_values_are_skewed():
    """A mean of ranks would win against most single rankings, so that single ones are compared."""
    rng = np.random.default_rng(1)

    @register("coin", needs="model")
    def coin(example, goal):
        return Relevance(rng.random((1, len(example.tokens))), example.tokens, ("input",), "coin")

    try:
        rows = [{"text": t, "truth": 2} for t in texts(60)]
        league = rank(tiny("bert"), tokenizer(), rows, methods=["coin"], truth_column="truth",
                      measures=["pointing", "reciprocal_rank"])  # fmt: skip
    finally:
        unregister("coin")
    table = league.standings().set_index("method")
    assert table.loc["coin", "p"] > 0.05 and abs(table.loc["coin", "wins"] - table.loc["random", "wins"]) < 0.15
    frame = league.to_frame().set_index(["method", "measure"])
    assert frame.loc[("random", "pointing"), "mean"] == pytest.approx(1 / 8, abs=0.05)
    few = rank(tiny("bert"), tokenizer(), texts(3), **FAST)
    assert few.verdict() == "3 texts are too few to tell 3 methods from a random ranking: give more."
    assert "Believe none of them" in league.verdict() or "coin" not in league.verdict().partition(":")[0]


def test_every_table_has_two_kinds_of_blanks_and_the_baselines(known):
    assert {kind for _, kind in known.columns} == {"mask", "delete"}
    assert {"random", "length", "raw"} <= {method for method, _ in known.lines}
    roles = known.standings().set_index("method")["role"]
    assert roles["random"] == roles["length"] == roles["raw"] == "baseline" and roles["constant"] == "method"


def test_blank_out_stands_as_a_ceiling_and_is_not_judged_by_itself():
    league = rank(tiny("bert"), tokenizer(), texts(6), methods=["rollout", "blankout", "blankout-delete", "gradient"])
    roles = league.standings().set_index("method")["role"]
    assert roles["blankout"] == roles["blankout-delete"] == "ceiling"
    judged = set(league.records[league.records["method"] == "blankout"]["measure"])
    assert "leave_one_out" not in judged and "deletion" in judged
    assert "stands as a ceiling" in league.verdict()


def test_blank_out_shares_its_texts_with_leaving_one_out():
    ran = {}
    for methods in (["rollout"], ["rollout", "blankout", "blankout-delete"]):
        league = rank(tiny("bert"), tokenizer(), texts(2), methods=methods, measures="leave_one_out")
        ran[len(methods)] = league.records.groupby("example")["variants"].first().tolist()
    assert ran[1] == ran[3]


def test_ten_methods_cost_at_most_three_times_one():
    """Counted in texts that the model is given, on texts of 32 tokens; baselines are always there."""
    model, tok = tiny("bert"), tokenizer()
    rng = np.random.default_rng(0)
    data = [" ".join(rng.choice(WORDS, 30)) for _ in range(2)]
    ten = ["raw", "rollout", "flow", "direct", "rollout:norm", "rollout:alti", "flow:alti", "gradient",
           "input_x_gradient", "gradient-paper"]  # fmt: skip
    measures = ["comprehensiveness", "sufficiency", "deletion", "insertion"]
    cost = {}
    for methods in (ten[1:2], ten):
        found = rank(model, tok, data, methods=methods, measures=measures).records
        cost[len(methods)] = found.groupby("example")[["passes", "variants"]].first().sum()
    assert cost[10]["variants"] <= 3 * cost[1]["variants"] and cost[10]["passes"] <= 3 * cost[1]["passes"]


def test_layers_measures_of_the_model_and_words():
    model = tiny("bert")
    before = state(model)
    league = rank(model, tokenizer(), ["the key to the cabinets is great", "sara was on the table"], layers=None,
                  methods=["rollout", "gradient"], unit="word", randomised=1,
                  measures=["deletion", "max_sensitivity", "randomisation"])  # fmt: skip
    assert ("rollout", 0) in league.lines and ("raw", 1) in league.lines and ("gradient", -1) in league.lines
    assert league.name(("rollout", 1)) == "rollout (layer 1)" and league.name(("gradient", -1)) == "gradient"
    frame = league.records
    assert set(frame[frame["example"] == 0]["n"]) == {7}
    stages = list(dict.fromkeys(frame[frame["measure"] == "randomisation"]["kind"]))
    assert stages == ["head", "layer 1", "layer 0", "embeddings"]
    assert set(frame[frame["measure"] == "randomisation"]["example"]) == {0}
    assert league.columns[-1] == ("randomisation", "embeddings")
    sensitive = frame[(frame["measure"] == "max_sensitivity") & (frame["method"] == "gradient")]["value"]
    assert (sensitive > 0).all(), "noise moves a gradient"
    assert state(model) == before


def test_a_score_that_survives_random_weights_is_named():
    def places(attention, position):
        block = attention.only
        rows = np.tile(np.arange(len(block.keys), dtype=float), (len(block.layers), 1))
        return Relevance(rows, block.keys, block.layers, "places")

    league = rank(tiny("bert"), tokenizer(), texts(3), methods={"places": places, "gradient": {}},
                  measures=["deletion", "randomisation"])  # fmt: skip
    assert league.survival(("places", 1)) == pytest.approx(1.0)
    assert "places keeps its ranking when all weights of the model are random" in league.verdict()


def test_measures_that_rank_nothing_say_so():
    league = rank(tiny("bert"), tokenizer(), texts(1), methods="gradient", measures="randomisation")
    assert league.verdict().startswith("These measures rank no method") and "gradient" in league.to_markdown()
    assert league.standings()["wins"].isna().all() and "<svg" in league.to_html()


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "llama"])
def test_language_models(name):
    data = ["the key [MASK] on the table", "a dull film [MASK] great"] if name == "bert-mlm" else [
        "the key is on the table", "a dull film was great"]  # fmt: skip
    league = rank(
        tiny(name), tokenizer(), data, methods=["rollout", "blankout"], measures=["deletion", "leave_one_out"]
    )
    assert league.examples == 2 and league.to_frame()["mean"].notna().all()


def test_verb_number_points_to_the_subject():
    league = rank(demo.model(), demo.tokenizer(), task="verb-number", limit=9, methods=["gradient"],
                  measures=["pointing", "reciprocal_rank", "relevance_mass"])  # fmt: skip
    assert "examples are used" in league.settings["examples"]
    truth = {e.prefix: e.prefix.split()[e.subject] for e in sentences(9)}
    assert len(truth) == 9 and 1 <= league.examples <= 9
    chance = league.to_frame().set_index(["method", "measure"]).loc[("random", "pointing")]
    lengths = league.records.groupby("example")["n"].first()
    assert chance["mean"] == pytest.approx((1 / lengths).mean(), abs=0.12), "one of n words, by chance"


def test_verb_number_of_language_models_finds_the_subject_in_the_text():
    from attnflow.faithfulness.tasks import _row, true_positions
    from attnflow.inputs.datasets import Row

    example = VerbExample("the key to the cabinets", "singular", "is", "are", subject=1)
    for name, kind in (("bert-mlm", "masked"), ("llama", "causal")):
        row = _row(tiny(name), tokenizer(), example, kind)
        assert row is not None and row.text[slice(*row.truth[0])].lower() == "key" and len(row.target) == 2
    low = Row(0, "the key to the cabinets", None, ((4, 7), (15, 23)))
    assert true_positions(tokenizer(), low, 8, None) == (2, 5, 6)


def test_a_column_says_what_must_matter():
    rows = [{"text": "the key is great", "truth": "key"}, {"text": "a dull film was great", "truth": 1},
            {"text": "sara talked about the book", "truth": ["sara", 4]}]  # fmt: skip
    league = rank(tiny("bert"), tokenizer(), rows, methods=["rollout"], truth_column="truth", measures=["pointing"])
    assert league.examples == 3


def test_records_come_back_and_settings_are_not_mixed(tmp_path):
    run = {**FAST, "out": tmp_path / "run"}
    made = rank(tiny("bert"), tokenizer(), texts(4), **run)
    assert made.table.column_names == list(COLUMNS)
    again = rank(tiny("bert"), tokenizer(), texts(4), resume=True, **run)
    assert again.records.equals(made.records)
    made.save(tmp_path / "league.parquet")
    for path in (tmp_path / "run", tmp_path / "league.parquet"):
        loaded = League.load(path)
        assert loaded.records.equals(made.records) and loaded.verdict() == made.verdict()
    with pytest.raises(FileError, match="draws: 10 then, 12 now"):
        rank(tiny("bert"), tokenizer(), texts(4), resume=True, draws=12, **run)
    from attnflow import compare
    from attnflow.comparing.comparison import Comparison

    with pytest.raises(FileError, match="attnflow compare did not write it"):
        Comparison.load(tmp_path / "run")
    compare(tiny("bert"), tokenizer(), texts(1), methods="raw", references="gradient").save(tmp_path / "c.parquet")
    with pytest.raises(FileError, match="League.save did not write it"):
        League.load(tmp_path / "c.parquet")


PAPER = {**FAST, "methods": ["gradient", "gradient-paper", "blankout"]}
SAID = "gradient-paper is rounding error here: |Σg| is "


@NOISY
def test_a_method_that_is_rounding_error_is_named_wherever_the_standings_are_shown():
    league = rank(tiny("bert"), tokenizer(), texts(3), **PAPER)
    left = league.records.groupby(["method", "example"])["rounding"].agg(list)
    alone = [gradient(tiny("bert"), tokenizer(), text, reduce="paper").rounding for text in texts(3)]
    assert [set(left["gradient-paper", i]) for i in range(3)] == [{share} for share in alone] and max(alone) < NOISE
    table = league.standings().set_index("method")["rounding"]
    assert table["gradient-paper"] == np.median(alone) and table.drop("gradient-paper").isna().all()
    note = f"{SAID}{np.median(alone):.0e} of Σ|g| (median over 3 examples)"
    assert repr(league).endswith(f" measures; careful: {note})")
    assert league.to_markdown().endswith(f" |\n\n{note}")
    assert (
        league.to_latex().partition(r"\end{tabular}")[2].startswith("\n\\par{\\footnotesize gradient-paper is rounding")
    )
    assert f"</table><p>{note}</p><p>Wins" in league.to_html()
    assert note in " ".join(" ".join(text.get_text().split()) for text in league.plot().texts)


@pytest.mark.parametrize(("name", "methods"), [("bert", ["gradient", "blankout"]), ("llama", ["gradient-paper"])])
def test_where_no_score_is_rounding_error_nothing_is_said(name, methods):
    league = rank(
        tiny(name), tokenizer(), ["the key is on the table", "a dull film was great"], **{**FAST, "methods": methods}
    )
    assert league.records["rounding"].isna().all() and league.standings()["rounding"].isna().all()
    shown = [repr(league), league.to_markdown(), league.to_latex(), league.to_html()]
    assert not any("rounding" in text for text in shown)
    assert [text.get_text() for text in league.plot().texts] == ["random ranking"]


@NOISY
def test_what_is_rounding_error_is_known_after_loading_and_resuming(tmp_path):
    whole = rank(tiny("bert"), tokenizer(), texts(3), **PAPER)
    rank(tiny("bert"), tokenizer(), texts(1), out=tmp_path / "run", **PAPER)
    resumed = rank(tiny("bert"), tokenizer(), texts(3), out=tmp_path / "run", resume=True, **PAPER)
    resumed.save(tmp_path / "league.parquet")
    for other in (resumed, League.load(tmp_path / "run"), League.load(tmp_path / "league.parquet")):
        assert other.records.equals(whole.records) and repr(other) == repr(whole)
        assert other.to_markdown().partition(SAID)[1:] == whole.to_markdown().partition(SAID)[1:] != ("", "")


@NOISY
def test_records_of_an_earlier_version_are_read_and_gone_on_with(tmp_path):
    import pyarrow.parquet as pq

    from attnflow.comparing.records import sealed

    before = rank(tiny("bert"), tokenizer(), texts(1), out=tmp_path / "run", **PAPER)
    before.save(tmp_path / "league.parquet")
    (part,) = (tmp_path / "run" / "parts").glob("*.parquet")
    for path in (part, tmp_path / "league.parquet"):
        pq.write_table(sealed(pq.read_table(path).drop_columns("rounding")), path)
    for path in (tmp_path / "run", tmp_path / "league.parquet"):
        old = League.load(path)
        assert old.records.drop(columns="rounding").equals(before.records.drop(columns="rounding"))
        assert old.verdict() == before.verdict() and SAID not in old.to_markdown() + repr(old)
    more = rank(tiny("bert"), tokenizer(), texts(3), out=tmp_path / "run", resume=True, **PAPER)
    assert more.to_markdown().endswith("(median over 2 of 3 examples)")


CHILD = """
import sys, torch
torch.set_num_threads(1)
from attnflow import rank
from attnflow.comparing import runs
from tests.faithfulness.bag import texts, tokenizer
from tests.tiny_models import tiny
runs.PART_EXAMPLES = 2
print("ready", flush=True)
rank(tiny("bert"), tokenizer(), texts(24), methods=("rollout", "gradient"), out=sys.argv[1], resume=True)
"""


@pytest.mark.slow
def test_a_run_killed_again_and_again_loses_and_doubles_nothing(tmp_path):
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def start(folder):
        return subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], env=environment, cwd=root,
                                stdout=subprocess.PIPE)  # fmt: skip

    assert start(tmp_path / "whole").wait(timeout=600) == 0
    kills = 0
    for wanted in range(3, 40, 4):
        child = start(tmp_path / "killed")
        child.stdout.readline()
        deadline = time.monotonic() + 300
        while child.poll() is None and time.monotonic() < deadline:
            if len(list((tmp_path / "killed").glob("parts/*.parquet"))) >= wanted:
                break
            time.sleep(0.002)
        if child.poll() is not None:
            break
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
    assert kills >= 2 and child.returncode == 0
    a, b = (
        League.load(tmp_path / name).records.sort_values(KEYS).reset_index(drop=True) for name in ("whole", "killed")
    )
    assert len(a) == len(b) and not b.duplicated(KEYS).any()
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-6)


@NOISY
def test_what_a_worker_of_a_cluster_makes_is_what_is_made_here(monkeypatch):
    """The plan as it is sent, the actor as Ray calls it, the table as it comes back: without a cluster."""
    import pickle
    import types

    import pyarrow as pa

    from attnflow.comparing.cluster import Actor
    from attnflow.faithfulness.plan import make_plan
    from attnflow.inputs.datasets import Row

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(get=lambda held: held))
    rest = {"unit": "token", "draws": 10, "steps": 10, "batch_size": 64, "randomised": 0, "max_length": None}
    run = {**FAST, "methods": ["rollout", "gradient-paper"]}
    plan = make_plan(run["methods"], run["measures"], ("auto", "delete"), -1, False, on_error="raise", **rest)
    actor = Actor(tiny("bert"), tokenizer(), pickle.loads(pickle.dumps(plan)))
    sent = actor({"row": [pickle.dumps(Row(i, text)) for i, text in enumerate(texts(3))]})
    league = League(pa.ipc.open_stream(sent["table"][0]).read_all())
    assert "gradient-paper is rounding error here" in repr(league), "a warning would stay with the worker"
    there = league.records.sort_values(KEYS).reset_index(drop=True)
    here = rank(tiny("bert"), tokenizer(), texts(3), **run).records.sort_values(KEYS).reset_index(drop=True)
    assert sent["error"] == [""] and there.drop(columns=["value", "drawn"]).equals(
        here.drop(columns=["value", "drawn"])
    )
    np.testing.assert_allclose(there["value"], here["value"], atol=1e-6)


@pytest.mark.slow
def test_ray_gives_the_same_records():
    ray = pytest.importorskip("ray")
    from attnflow.comparing.cluster import start

    start(ray, num_cpus=4)
    try:
        there = rank(tiny("bert"), tokenizer(), texts(6), engine="ray", workers=2, **FAST)
    finally:
        ray.shutdown()
    here = rank(tiny("bert"), tokenizer(), texts(6), **FAST)
    a, b = (x.records.sort_values(KEYS).reset_index(drop=True) for x in (here, there))
    assert a.drop(columns=["value", "drawn"]).equals(b.drop(columns=["value", "drawn"]))
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-6)


def test_tables_figure_and_page(known, tmp_path):
    shown = known.to_markdown()
    assert "| true weights |" in shown and "comprehensiveness ↑ mask" in shown and "random (baseline)" in shown
    latex = known.to_latex()
    assert r"\toprule" in latex and r"$\uparrow$" in latex and latex.startswith("% Use true weights")
    page = known.to_html()
    assert "<svg" in page and "Content-Security-Policy" in page and "Use true weights" in page
    axes = known.plot()
    assert axes.get_yticklabels()[-1].get_text() == "true weights"
    assert repr(known) == "League(24 examples × 6 methods × 5 measures)"
    assert "<iframe" in known._repr_html_()


def test_a_name_of_a_method_is_no_markup():
    def odd(attention, position):
        block = attention.only
        return Relevance([w[position] for w in block.weights], block.keys, block.layers, "odd")

    league = rank(tiny("bert"), tokenizer(), texts(2), methods={"<b>&": odd}, measures="deletion")
    assert "<b>&" not in league.to_html() and "&lt;b&gt;&amp;" in league.to_html()


def test_progress_is_shown(capsys):
    rank(tiny("bert"), tokenizer(), texts(2), show_progress=True, **FAST)
    assert "ranking" in capsys.readouterr().err


WRONG = {
    "measures='aopc'": "measures: 'aopc' is not known. Use some of: comprehensiveness, sufficiency",
    "measures=()": "measures is empty: choose from comprehensiveness",
    "measures='pointing'": "'pointing' asks whether a score points to the input that must matter, and the data do not",
    "methods=['flw']": "methods: 'flw' is not known. Use raw, rollout",
    "methods={'random': {'method': 'rollout'}}": "methods: 'random' is the name of a baseline, which is always there",
    "blank='mask'": "blank='mask' is one kind, and every table shows at least two",
    "blank=()": "blank is empty: give at least two kinds",
    "blank=('auto', 'mask')": "two of them are the same for BertForSequenceClassification: mask",
    "blank=('star', 'delete')": "blank='star' is not known",
    "draws=3": "draws=3, but at least 10 is needed",
    "unit='letter'": "unit='letter' is not known. Use one of: token, word",
    "on_error='ignore'": "on_error='ignore' is not known",
    "engine='spark'": "engine='spark' is not known. Use one of: local, ray",
    "engine='ray', workers=0": "workers=0, but at least 1 is needed",
    "task='chess'": "task='chess' is not known. Use one of: verb-number",
    "task='verb-number'": "task='verb-number' reads examples with prefix and label, and the data hold a str",
    "data=[], task='verb-number'": "reads examples with prefix and label, and the data hold 0 examples",
    "bootstrap=-1": "bootstrap=-1, but at least 0 is needed",
    "target_column='label'": "target_column='label', but the columns are none",
    "truth_column='truth'": "truth_column='truth', but the columns are none",
    "data=None": "data is None: give texts, a datasets.Dataset or a file, or a task",
    "data=['the key is great', 'film']": "Example 1: 1 of its 3 positions ([CLS] film [SEP]) can be blanked",
    "data=[{'text': 'the key', 'label': 7}], target_column='label'": "target=7, but the model has 2 classes",
    "data=[{'text': 'the key', 'label': 'good'}], target_column='label'": "target='good', but the model's labels are",
    "data=[{'text': 'the key', 'label': None}], target_column='label'": "Row 0 (from 0) has nothing in the column",
    "data=[{'text': 'the key', 'truth': 'door'}], truth_column='truth'": "names 'door' as what must matter",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_come_before_anything_runs(wrong):

    def never(*a, **k):
        raise AssertionError("the model was run")

    model = tiny("bert")
    handle = model.register_forward_pre_hook(never)
    try:
        with pytest.raises((SelectionError, InputError)) as caught:
            rank(model, tokenizer(), **{"data": texts(2), **eval(f"dict({wrong})")})
        assert WRONG[wrong] in str(caught.value)
    finally:
        handle.remove()


def test_verb_number_says_what_is_missing(tmp_path):
    text, gold = tmp_path / "a.text", tmp_path / "a.gold"
    text.write_text("the key to the cabinets is on the table\n")
    gold.write_text("5\tis\tare\t1\n")
    with pytest.raises(InputError, match=r"says of none which word is the subject.*Linzen's \.gold files"):
        rank(demo.model(), demo.tokenizer(), str(text), task="verb-number")
    with pytest.raises(InputError, match="has none of the heads that this probe reads"):
        rank(tiny("bert"), tokenizer(), task="verb-number")


def test_examples_that_cannot_be_judged_are_left_out():
    league = rank(tiny("bert"), tokenizer(), ["the key is great", "film", "a dull film"], on_error="skip", **FAST)
    assert league.examples == 2 and "1 of its 3 positions" in league.failed[1]
    assert repr(league).startswith("League(2 examples, 1 failed × ")


def test_a_method_that_the_length_of_words_beats_is_not_recommended():
    """Standings in which the baseline that asks no model comes first."""
    lines = [
        ("length", "baseline", 0.8, 0.7, 0.9, 0.001, float("nan")),
        ("gradient", "method", 0.7, 0.6, 0.8, 0.2, 0.3),
        ("raw", "baseline", 0.5, 0.4, 0.6, 0.9, 0.001),
        ("random", "baseline", 0.4, 0.3, 0.5, float("nan"), 0.001),
    ]
    table = pd.DataFrame(lines, columns=["method", "role", "wins", "low", "high", "p", "p_best"])
    said = verdict(table.assign(name=table["method"], randomised=float("nan")), 30)
    assert said.startswith(
        "Believe none of them for this model and these data: the length of the words, which asks no model, wins more "
        "of its duels than every method, 80% (70%–90%) over 30 texts; the data cannot tell gradient from it"
    )
    assert "Use length" not in said


def test_rounding_error_that_wins_is_not_recommended():
    lines = [
        ("gradient-paper", "method", 0.8, 0.7, 0.9, 0.001, float("nan"), 1e-8),
        ("gradient", "method", 0.7, 0.6, 0.8, 0.2, 0.3, float("nan")),
        ("random", "baseline", 0.4, 0.3, 0.5, float("nan"), 0.001, float("nan")),
    ]
    table = pd.DataFrame(lines, columns=["method", "role", "wins", "low", "high", "p", "p_best", "rounding"])
    table = table.assign(name=table["method"], randomised=float("nan"))
    assert verdict(table, 30).startswith(
        "Believe none of them for this model and these data: gradient-paper, whose scores are rounding error, wins "
        "more of its duels than every other method, 80% (70%–90%) over 30 texts; the data cannot tell gradient from it"
    )
    for known in (table.assign(rounding=float("nan")), table.drop(columns="rounding")):
        assert verdict(known, 30).startswith("Use gradient-paper for this model: it wins 80%")
