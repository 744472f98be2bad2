"""A comparison against its parts computed alone, killed runs against a whole one, and every message."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from attnflow import blankout, demo, flow, gradient, raw, rollout
from attnflow.comparing import runs
from attnflow.comparing.compare import compare
from attnflow.comparing.comparison import Comparison
from attnflow.correlation import correlate
from attnflow.errors import AttnFlowError, FileError, InputError, SelectionError
from attnflow.relevance import Relevance
from attnflow.scoring.gradient import NOISE
from tests.audit.tiny import lstm
from tests.tiny_models import IDS, state, tiny, tokenizer

TEXTS = ["the key to the cabinets is on the table", "the author talked about the book", "a dull film", "sara was great"]
FAST = {"methods": ("raw", "rollout"), "references": ("gradient",)}


@pytest.fixture(scope="module")
def result():
    references = ["gradient", "input_x_gradient", "integrated_gradients", "blankout", "blankout-delete"]
    return compare(tiny("bert"), tokenizer(), TEXTS, references=references, correlation=["spearman", "kendall"])


@pytest.mark.parametrize("special", [True, False])
def test_every_record_equals_the_parts_computed_alone(result, special):
    model, tok, text = tiny("bert"), tokenizer(), TEXTS[0]
    methods = {name: f(model, tok, text, position="cls") for name, f in
               {"raw": raw, "rollout": rollout, "flow": flow}.items()}  # fmt: skip
    references = {
        "gradient": gradient(model, tok, text),
        "input_x_gradient": gradient(model, tok, text, method="input_x_gradient"),
        "integrated_gradients": gradient(model, tok, text, method="integrated_gradients"),
        "blankout": blankout(model, tok, text, blank="mask"),
        "blankout-delete": blankout(model, tok, text, blank="delete"),
    }
    frame = result.records[(result.records["example"] == 0) & (result.records["special"] == special)]
    assert len(frame) == 3 * 5 * 2 * 2
    for row in frame.itertuples():
        alone = correlate(methods[row.method], references[row.reference], row.correlation, special_tokens=special)
        at = alone.layers.index(row.layer)
        assert row.value == pytest.approx(alone.values[at], abs=1e-6, nan_ok=True), row
        assert row.n == alone.n and row.ties == pytest.approx(alone.ties[at])
        assert row.target == references["gradient"].settings["target_label"]


def test_the_summary_is_mean_deviation_interval_and_counts(result):
    frame = result.to_frame()
    assert len(frame) == 3 * 5 * 2 * 2 * 2
    one = frame.iloc[0]
    records = result.records
    for key in ("method", "reference", "correlation", "special", "layer"):
        records = records[records[key] == one[key]]
    values = records["value"].to_numpy()
    assert one["mean"] == pytest.approx(values.mean()) and one["std"] == pytest.approx(values.std(ddof=1))
    assert one["n"] + one["nan"] == len(TEXTS) and one["low"] <= one["mean"] <= one["high"]
    assert result.examples == 4 and result.failed == {}
    assert set(result.costs) >= {"capture", "raw", "rollout", "flow", "gradient", "blankout", "correlate"}
    assert repr(result) == "Comparison(4 examples × 3 methods × 5 references × 2 layers)"


@pytest.mark.parametrize("name", ["bert-mlm", "llama", "t5", "base", "vit"])
def test_every_kind_of_model(name):
    if name == "vit":
        pixels = torch.randn(2, 1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
        given, tok = [{"pixel_values": p} for p in pixels], None
    else:
        given, tok = ["the key [MASK] on the table"] if name == "bert-mlm" else [IDS, IDS[::-1]], tokenizer()
    found = compare(tiny(name), tok, given, references=["gradient", "blankout"])
    assert found.examples == len(given) and found.records["value"].notna().any()
    if name == "vit":
        assert set(found.records["n"]) == {9}, "nine patches; the pixels say nothing of [CLS]"


def test_words_layers_targets_and_options():
    rows = [{"sentence": t, "label": i % 2} for i, t in enumerate(TEXTS)]
    found = compare(
        tiny("bert"), tokenizer(), rows, target_column="label", unit="word", layers=-1, special_tokens=False,
        methods={"half": {"method": "rollout"}, "none": {"method": "rollout", "residual": "none"}},
        references={"l2": {"method": "gradient", "reduce": "l2", "score": "prob"},
                    "tvd": {"method": "blankout", "blank": "unk", "score": "tvd"}},
    )  # fmt: skip
    frame = found.records
    assert set(frame["layer"]) == {1} and set(frame["special"]) == {False} and set(frame["method"]) == {"half", "none"}
    assert frame[frame["example"] == 0]["n"].iloc[0] == len(TEXTS[0].split())
    assert list(frame.groupby("example")["target"].first()) == ["LABEL_0", "LABEL_1", "LABEL_0", "LABEL_1"]
    model, tok = tiny("bert"), tokenizer()
    alone = correlate(
        rollout(model, tok, TEXTS[1], position="cls").words(),
        blankout(model, tok, TEXTS[1], blank="unk", score="tvd", unit="word", target=1),
        special_tokens=False,
    )
    row = frame[(frame["example"] == 1) & (frame["method"] == "half") & (frame["reference"] == "tvd")]
    assert row["value"].iloc[0] == pytest.approx(alone.values[-1], abs=1e-6)


def test_functions_of_ones_own():
    def first(attention, position):
        scores = np.zeros((1, len(attention.tokens)))
        scores[0, 0] = 1
        return Relevance(scores, attention.tokens, (7,), "first")

    def backwards(model, tokenizer, inputs):
        return np.arange(inputs["input_ids"].shape[1])[::-1]

    found = compare(tiny("bert"), tokenizer(), TEXTS[:2], methods={"first": first}, references={"back": backwards},
                    special_tokens=True)  # fmt: skip
    assert (found.records["value"] > 0).all() and set(found.records["layer"]) == {7}


def test_a_constant_scoring_is_nan_and_counted():
    def flat(model, tokenizer, inputs):
        return np.ones(inputs["input_ids"].shape[1])

    frame = compare(tiny("bert"), tokenizer(), TEXTS[:3], methods="raw", references={"flat": flat}).to_frame()
    assert set(frame["nan"]) == {3} and set(frame["n"]) == {0} and frame["mean"].isna().all()


PAPER = {"methods": ("raw", "rollout"), "references": ("gradient", "gradient-paper")}
# What reads the embeddings of BERT and GPT-2 is a norm that takes the mean away; that of Llama and the LSTM is none.
NOISY = pytest.mark.filterwarnings("ignore::attnflow.errors.AttnFlowWarning")


@NOISY
@pytest.mark.parametrize(("name", "unit"), [("bert", "token"), ("bert", "word"), ("gpt2", "token")])
def test_a_reference_that_is_rounding_error_is_on_record_and_said(name, unit):
    found = compare(tiny(name), tokenizer(), TEXTS, unit=unit, **PAPER)
    shares = found.records.groupby(["reference", "example"])["reference_rounding"].agg(list)
    for number, text in enumerate(TEXTS):
        alone = gradient(tiny(name), tokenizer(), text, reduce="paper").rounding
        assert set(shares["gradient-paper", number]) == {alone} and 0 < alone < NOISE
    assert np.isnan(np.concatenate(shares["gradient"])).all() and found.records["rounding"].isna().all()
    said = "gradient-paper is rounding error here: |Σg| is "
    assert f"; careful: {said}" in repr(found) and found.to_markdown().count(said) == 1
    assert found.to_markdown().endswith(" of Σ|g| (median over 4 examples)") and "is rounding error" in found.to_latex()
    assert len(found.plot(reference="gradient-paper").texts) == 1 and not found.plot(reference="gradient").texts
    none = compare(tiny(name), tokenizer(), TEXTS, unit=unit, **{**PAPER, "references": "gradient"})
    assert "rounding" not in repr(none) + none.to_markdown() + none.to_latex() and not none.plot().texts


@NOISY
def test_a_method_that_is_rounding_error_is_on_record_and_said():
    def mine(attention, position):
        block = attention.only
        rows = [layer[position] for layer in block.weights]
        return Relevance(rows, block.keys, block.layers, "mine", rounding=3e-8)

    found = compare(tiny("bert"), tokenizer(), TEXTS, methods={"mine": mine, "raw": {}}, references="gradient")
    assert set(found.records[found.records["method"] == "mine"]["rounding"]) == {3e-8}
    assert found.to_markdown().endswith(
        "\n\nmine is rounding error here: |Σg| is 3e-08 of Σ|g| (median over 4 examples)"
    )


@pytest.mark.parametrize("name", ["llama", "lstm"])
def test_where_no_norm_takes_the_mean_away_nothing_is_said(name):
    model = tiny("llama") if name == "llama" else lstm(vocab_size=40)
    found = compare(model, tokenizer(), TEXTS, **{**PAPER, "methods": "raw"})
    assert found.records["reference_rounding"].isna().all() and "rounding" not in repr(found) + found.to_markdown()


@NOISY
def test_what_is_rounding_error_is_known_after_loading_and_resuming(tmp_path):
    whole = compare(tiny("bert"), tokenizer(), TEXTS, out=tmp_path / "whole", **PAPER)
    compare(tiny("bert"), tokenizer(), TEXTS[:1], out=tmp_path / "run", **PAPER)
    resumed = compare(tiny("bert"), tokenizer(), TEXTS, out=tmp_path / "run", resume=True, **PAPER)
    for other in (resumed, Comparison.load(tmp_path / "run"), Comparison.load(tmp_path / "whole")):
        assert other.records.equals(whole.records) and other.records["reference_rounding"].notna().any()
        assert repr(other) == repr(whole) and other.to_markdown() == whole.to_markdown()


@NOISY
def test_a_run_of_an_earlier_version_is_gone_on_with_and_says_what_it_knows(tmp_path):
    import pyarrow.parquet as pq

    from attnflow.comparing.records import sealed

    before = compare(tiny("bert"), tokenizer(), TEXTS[:1], out=tmp_path / "run", **PAPER)
    (part,) = (tmp_path / "run" / "parts").glob("*.parquet")
    pq.write_table(sealed(pq.read_table(part).drop_columns(["rounding", "reference_rounding"])), part)
    old = Comparison.load(tmp_path / "run")
    shares = ["rounding", "reference_rounding"]
    assert old.records.drop(columns=shares).equals(before.records.drop(columns=shares))
    assert "rounding" not in repr(old) + old.to_markdown()
    more = compare(tiny("bert"), tokenizer(), TEXTS, out=tmp_path / "run", resume=True, **PAPER)
    assert more.to_markdown().endswith("(median over 3 of 4 examples)")


def test_a_long_text_is_cut_or_refused_or_left_out():
    long = ["the " * 60, *TEXTS[:1]]
    with pytest.raises(InputError, match=r"Example 0: The text has 62 tokens.*\nLeave such examples out by on_error"):
        compare(tiny("bert"), tokenizer(), long, **FAST)
    assert compare(tiny("bert"), tokenizer(), long, max_length=20, **FAST).examples == 2
    skipped = compare(tiny("bert"), tokenizer(), long, on_error="skip", **FAST)
    assert skipped.examples == 1 and "62 tokens" in skipped.failed[0]
    assert repr(skipped) == "Comparison(1 examples, 1 failed × 2 methods × 1 references × 2 layers)"


def test_a_model_by_name(tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    by_name = compare(str(tmp_path), None, TEXTS[:2], **FAST)
    by_model = compare(tiny("bert"), tokenizer(), TEXTS[:2], **FAST)
    np.testing.assert_allclose(by_name.records["value"], by_model.records["value"], atol=1e-6)


def test_nothing_of_the_model_is_changed():
    model = tiny("bert")
    before = state(model)
    compare(model, tokenizer(), TEXTS[:1], **FAST)
    with pytest.raises(AttnFlowError):
        compare(model, tokenizer(), [""], **FAST)
    assert state(model) == before


def test_records_are_written_as_they_are_made_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "PART_EXAMPLES", 2)
    seen = []

    def spy(model, tokenizer, inputs):
        seen.append(len(list((tmp_path / "run").glob("parts/*.parquet"))))
        if len(seen) == 4:
            raise KeyboardInterrupt
        return np.arange(inputs["input_ids"].shape[1])

    options = {"methods": "raw", "references": {"spy": spy}, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        compare(tiny("bert"), tokenizer(), TEXTS, **options)
    assert seen == [0, 0, 1, 1], "a part after every two examples"
    assert Comparison.load(tmp_path / "run").examples == 3, "what was made before the interruption is kept"
    whole = compare(tiny("bert"), tokenizer(), TEXTS, resume=True, **options)
    assert len(seen) == 5 and whole.examples == 4, "one example was left to do"
    more = compare(tiny("bert"), tokenizer(), [*TEXTS, "the end"], resume=True, **options)
    assert more.examples == 5, "data may grow"


def test_changed_settings_model_or_data_are_not_mixed(tmp_path):
    run = {"out": tmp_path / "run", **FAST}
    compare(tiny("bert"), tokenizer(), TEXTS, **run)
    with pytest.raises(FileError, match="holds the records of a run already"):
        compare(tiny("bert"), tokenizer(), TEXTS, **run)
    with pytest.raises(FileError, match='unit: "token" then, "word" now'):
        compare(tiny("bert"), tokenizer(), TEXTS, resume=True, unit="word", **run)
    with pytest.raises(FileError, match=r"references.gradient.reduce: nothing then, \"l2\" now"):
        changed = {**run, "references": {"gradient": {"reduce": "l2"}}}
        compare(tiny("bert"), tokenizer(), TEXTS, resume=True, **changed)
    with pytest.raises(FileError, match=r"model.class: .* then, .*RobertaForSequenceClassification"):
        compare(tiny("roberta"), tokenizer(), TEXTS, resume=True, **run)
    with pytest.raises(FileError, match=r"model.weights: "):
        other = tiny("bert", num_labels=2, hidden_dropout_prob=0.2)
        with torch.no_grad():
            other.classifier.weight += 1
        compare(other, tokenizer(), TEXTS, resume=True, **run)
    with pytest.raises(FileError, match="Example 1 has another text or target than on record"):
        compare(tiny("bert"), tokenizer(), [TEXTS[0], "changed", *TEXTS[2:]], resume=True, **run)
    with pytest.raises(FileError, match="holds example 3, but the data now end at 1"):
        compare(tiny("bert"), tokenizer(), TEXTS, limit=2, resume=True, **run)
    assert compare(tiny("bert"), tokenizer(), TEXTS, resume=True, **run).examples == 4


CHILD = """
import sys, torch
torch.set_num_threads(1)
from attnflow.comparing.compare import compare
from tests.tiny_models import tiny, tokenizer
from attnflow.comparing import runs
runs.PART_EXAMPLES = 3
words = "the key to is are on table a film was great dull author talked sara about book".split()
texts = [" ".join(words[i % 7 : i % 7 + 3 + i % 5]) for i in range(60)]
print("ready", flush=True)
compare(tiny("bert"), tokenizer(), texts, methods=("raw", "rollout"), references=("gradient", "blankout"),
        out=sys.argv[1], resume=True)
"""


def start(folder):
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], env=environment, cwd=root,
                            stdout=subprocess.PIPE)  # fmt: skip


@pytest.mark.slow
def test_a_run_killed_again_and_again_equals_an_uninterrupted_one(tmp_path):
    """SIGKILL at moments chosen by chance: nothing lost, nothing doubled, no value changed."""
    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=300) == 0
    rng, kills = np.random.default_rng(0), 0
    for _ in range(30):
        child = start(tmp_path / "killed")
        child.stdout.readline()
        before = len(list((tmp_path / "killed").glob("parts/*.parquet")))
        deadline = time.monotonic() + 60
        # Let it write a few of its twenty parts, then wait a moment that has nothing to do with them.
        wanted = before + int(rng.integers(3, 7))
        while child.poll() is None and time.monotonic() < deadline:
            if len(list((tmp_path / "killed").glob("parts/*.parquet"))) >= wanted:
                break
            time.sleep(0.002)
        time.sleep(float(rng.uniform(0, 0.05)))
        if child.poll() is not None:
            break
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
    assert kills >= 3 and child.returncode == 0
    a, b = (Comparison.load(tmp_path / name).records for name in ("whole", "killed"))
    keys = ["example", "method", "reference", "special", "layer"]
    a, b = (x.sort_values(keys).reset_index(drop=True) for x in (a, b))
    assert len(b) == len(a) and not b.duplicated(keys).any()
    assert a.drop(columns="value").equals(b.drop(columns="value"))
    np.testing.assert_allclose(a["value"], b["value"], atol=1e-6)


def test_progress_shows_rate_and_remaining_time(capsys):
    compare(tiny("bert"), tokenizer(), TEXTS, show_progress=True, **FAST)
    shown = capsys.readouterr().err
    assert "4/4" in shown and "a second" in shown and "left" in shown
    compare(tiny("bert"), tokenizer(), TEXTS, **FAST)
    assert capsys.readouterr().err == ""


def test_the_demo_model_runs():
    assert compare(demo.model(), demo.tokenizer(), [demo.SENTENCE], **FAST).examples == 1


def test_errors_come_before_anything_runs():
    def never(*a, **k):
        raise AssertionError("the model was run")

    model = tiny("bert")
    handle = model.register_forward_pre_hook(never)
    try:
        for wrong, message in {
            "methods=('flw',)": "methods: 'flw' is not known. Use raw, rollout, flow, direct, chefer; with other",
            "methods=()": "methods is empty: choose from raw, rollout, flow",
            "methods={'rollout': {'depth': 3}}": "methods: 'rollout' has no option 'depth'. Its options: ",
            "references='lime'": "references: 'lime' is not known. Use gradient, gradient-paper",
            "references={'gradient': {'stps': 3}}": "references: 'gradient' has no option 'stps'",
            "correlation='spear'": "correlation='spear' is not known. Use one of: spearman, kendall",
            "unit='letter'": "unit='letter' is not known. Use one of: token, word",
            "on_error='ignore'": "on_error='ignore' is not known. Use one of: raise, skip",
            "engine='spark'": "engine='spark' is not known. Use one of: local, ray",
        }.items():
            with pytest.raises(SelectionError) as caught:
                compare(model, tokenizer(), TEXTS, **eval(f"dict({wrong})"))
            assert message in str(caught.value)
    finally:
        handle.remove()


def test_a_method_or_reference_that_gives_nonsense_is_named():
    with pytest.raises(AttnFlowError, match=r"A method gave 5, and a Relevance of one position"):
        compare(tiny("bert"), tokenizer(), TEXTS[:1], methods={"five": lambda attention, position: 5})
    with pytest.raises(AttnFlowError, match="The reference two scores 2 inputs, the methods 1"):
        compare(tiny("bert"), tokenizer(), TEXTS[:1], methods="raw", references={"two": lambda m, t, i: [1, 2]})


def test_the_published_protocols_of_the_docs_run():
    rows = [{"text": t, "label": 1} for t in TEXTS[:2]]
    model, tok = tiny("bert"), tokenizer()
    one = compare(model, tok, rows, references="blankout-unk", target_column="label", special_tokens=True)
    assert set(one.records["target"]) == {"LABEL_1"}
    two = compare(model, tok, rows, references="gradient-paper", special_tokens=True)
    assert set(two.records["target"]) <= {"LABEL_0", "LABEL_1"}
    jain = {
        "gradient": {"method": "input_x_gradient", "reduce": "abs_of_sum", "score": "prob"},
        "loo": {"method": "blankout-delete", "score": "tvd"},
    }
    three = compare(model, tok, rows, references=jain, correlation="kendall", special_tokens=False)
    alone = correlate(
        raw(model, tok, TEXTS[0], position="cls"),
        gradient(model, tok, TEXTS[0], method="input_x_gradient", reduce="abs_of_sum", score="prob"),
        "kendall",
        special_tokens=False,
    )
    frame = three.records
    found = frame[(frame["example"] == 0) & (frame["method"] == "raw") & (frame["reference"] == "gradient")]
    np.testing.assert_allclose(found.sort_values("layer")["value"], alone.values, atol=1e-9)
    ig = {"ig": {"method": "integrated_gradients", "baseline": "pad"}}
    assert compare(model, tok, rows, references=ig, correlation="kendall", layers=-1).examples == 2


def test_resume_refuses_weights_any_number_of_which_has_changed(tmp_path):
    run = {"out": tmp_path / "run", **FAST}
    compare(tiny("bert"), tokenizer(), TEXTS, **run)
    for change in ("a weight in the middle", "the configuration"):
        other = copy.deepcopy(tiny("bert"))
        if change == "the configuration":
            other.config.layer_norm_eps = 0.5
        else:
            weight = other.bert.embeddings.word_embeddings.weight
            with torch.no_grad():
                weight.view(-1)[weight.numel() // 2 + 1] += 1e-3
        with pytest.raises(FileError, match=r"other settings.*\n  model\.(weights|config): "):
            compare(other, tokenizer(), TEXTS, resume=True, **run)
    assert compare(tiny("bert"), tokenizer(), TEXTS, resume=True, **run).examples == 4


def test_resume_refuses_a_folder_of_a_model_that_has_changed(tmp_path):
    model, folder = copy.deepcopy(tiny("bert")), str(tmp_path / "model")
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    run = {"out": tmp_path / "run", **FAST}
    compare(folder, None, TEXTS, **run)
    assert compare(folder, None, TEXTS, resume=True, **run).examples == 4
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight[1, 2] += 1e-3
    model.save_pretrained(folder)
    with pytest.raises(FileError, match=r"\n  model.content: "):
        compare(folder, None, TEXTS, resume=True, **run)


def test_resume_refuses_an_image_any_pixel_of_which_has_changed(tmp_path):
    pixels = torch.randn(2, 1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    run = {"out": tmp_path / "run", **FAST}
    compare(tiny("vit"), None, [{"pixel_values": p} for p in pixels], **run)
    changed = pixels.clone()
    changed[1, 0, 1, 12, 12] += 1e-3
    with pytest.raises(FileError, match="Example 1 has another text or target"):
        compare(tiny("vit"), None, [{"pixel_values": p} for p in changed], resume=True, **run)
    assert compare(tiny("vit"), None, [{"pixel_values": p.clone()} for p in pixels], resume=True, **run).examples == 2
