"""Training: what it reads, its recipes, the models that it keeps, and that a stopped run goes on."""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in (
        "train_sst2",
        "train_verb_number",
        "train_masked",
        "training_curve",
        "tables",
        "tables_page",
        "tables_rows",
        "weights",
    ):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("head", ["sentence\tlabel\n", ""])
def test_texts_with_tabs_and_labels_that_are_words(load, tmp_path, head):
    train = load("train_sst2")
    (tmp_path / "train.tsv").write_text(f"{head}a goal\tin time\tSports\nshares fell\u2028again\tBusiness\n")
    rows = train.read(tmp_path / "train.tsv")
    assert rows == [("a goal\tin time", "Sports"), ("shares fell\u2028again", "Business")]
    assert train.numbered(rows, ["Business", "Sports"]) == [(rows[0][0], 1), (rows[1][0], 0)]
    assert train.read(tmp_path / "train.tsv", 1) == rows[:1]


def tiny_classifier():
    from transformers import BertConfig, BertForSequenceClassification

    from attnflow.models.tokenizers import word_tokenizer

    words = word_tokenizer(["a", "dull", "fine", "film", "number", *map(str, range(64))])
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(BertConfig(vocab_size=len(words), **size)).train(), words


def test_batches_of_a_classifier_are_padded_to_their_longest(load):
    train = load("train_sst2")
    model, words = tiny_classifier()
    rows = train.encode(words, [("a dull film", 0), ("fine", 1)])
    assert [len(ids) for ids, _ in rows] == [5, 3] and [label for _, label in rows] == [0, 1]
    made = train.batch(words, rows)
    assert made["input_ids"].tolist() == [rows[0][0], [*rows[1][0], words.pad_token_id, words.pad_token_id]]
    assert made["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]] and made["labels"].tolist() == [0, 1]
    assert train.accuracy(model, words, rows) in (0.0, 0.5, 1.0)


def test_a_classifier_whose_training_was_stopped_goes_on_alike(load, monkeypatch, tmp_path):
    train = load("train_sst2")

    def run(folder):
        (tmp_path / folder).mkdir(exist_ok=True)
        model, words = tiny_classifier()
        given = train.numbered(train.read(train.made_up(tmp_path / folder) / "train.tsv"), ["0", "1"])
        options = argparse.Namespace(out=tmp_path / folder, rate=1e-2, epochs=3, freeze=0, save_every=2)
        rows, going = train.encode(words, given), train.Run(options, model, words)
        going.go(rows, np.random.default_rng(0))
        return model.state_dict()

    whole = run("whole")
    saved, keep = [], train.Run.save
    monkeypatch.setattr(train.Run, "save", lambda self: (keep(self), saved.append(self.step)))

    def stops(self, *given, **named):
        if saved:
            raise KeyboardInterrupt
        return forward(self, *given, **named)

    kind = type(tiny_classifier()[0])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", stops)
    with pytest.raises(KeyboardInterrupt):
        run("parts")
    monkeypatch.undo()
    assert saved == [2]
    again = run("parts")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_weights_of_an_onnx_file(load, tmp_path):
    onnx = pytest.importorskip("onnx")
    tensor, node = onnx.numpy_helper.from_array, onnx.helper.make_node
    held = {
        "norm.bias": np.array([0.5, -1.0], np.float32),
        "words.weight_quantized": np.array([[1, 2], [3, 4]], np.int8),
        "words.weight_zero_point": np.array(1, np.int8),
        "words.weight_scale": np.array(0.5, np.float32),
        "onnx::MatMul_1_quantized": np.array([[0, 2, 4]], np.int8),
        "onnx::MatMul_1_zero_point": np.array(2, np.int8),
        "onnx::MatMul_1_scale": np.array(2.0, np.float32),
    }
    product = node("MatMul", ["x", "onnx::MatMul_1_DequantizeLinear_Output"], ["y"], name="/layer.0/q_lin/MatMul")
    graph = onnx.helper.make_graph([product], "g", [], [], [tensor(v, k) for k, v in held.items()])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "m.onnx"))
    found = {name: value.tolist() for name, value in load("weights")._onnx_weights(tmp_path / "m.onnx").items()}
    # The matrix of a product stands as [in, out]; a linear layer holds [out, in].
    expected = {
        "norm.bias": [0.5, -1.0],
        "words.weight": [[0.0, 0.5], [1.0, 1.5]],
        "layer.0.q_lin.weight": [[-4.0], [0.0], [4.0]],
    }
    assert found == expected


def test_the_learning_rate_rises_falls_and_starts_again(load):
    train = load("train_verb_number")
    assert [train.rate(step, 100, 2.0) for step in (1, 4, 52, 100)] == [0.5, 2.0, 1.0, 0.0]
    # 10 steps, then 20, then 40: half a cosine each, from a peak that is 0.9 of the one before.
    found = [train.restarts(step, 10, 2.0, least=0.0) for step in (0, 5, 10, 20, 30, 50)]
    assert found == pytest.approx([2.0, 1.0, 1.8, 0.9, 1.62, 0.81])
    assert train.restarts(10**9 - 1, 10**9, 2.0) == pytest.approx(2.0 * 1e-3)


@pytest.mark.parametrize("p", [0.1, 0.6])
def test_dropout_keeps_the_mean_and_draws_from_torchs_generator(load, p):
    dropout = load("train_verb_number").dropout
    x = torch.full((7, 10_001), 3.0, requires_grad=True)
    torch.manual_seed(0)
    first, second = dropout(x, p), dropout(x, p)
    torch.manual_seed(0)
    assert torch.equal(dropout(x, p), first) and not torch.equal(first, second)
    kept = first != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=0.01)
    assert torch.allclose(first[kept], torch.tensor(3.0 / (1 - p)))
    first.sum().backward()
    assert torch.equal(x.grad != 0, kept)
    assert dropout(x, p, training=False) is x and dropout(x, 0.0) is x


def test_the_authors_recipe_stands_for_options_that_are_not_given(load):
    train = load("train_verb_number")
    theirs = train.options_of(["--out", "x", "--recipe", "authors"])
    assert (theirs.batch, theirs.rate, theirs.decay, tuple(theirs.dropout)) == (64, 1e-3, 1e-4, (0.2, 0.6, 0.4))
    assert train.options_of(["--out", "x", "--recipe", "authors", "--batch", "32"]).batch == 32
    ours = train.options_of(["--out", "x"])
    assert (ours.batch, tuple(ours.dropout)) == (128, (0.1, 0.1, 0.1))
    model = train.VerbNumberModel(train.VerbNumberConfig(n_layer=1, n_embd=8, n_head=2, vocab_size=8))
    adam, adamw = train.optimiser_of(model, theirs), train.optimiser_of(model, ours)
    # Σw² in the loss, 1e-4 times: its gradient is 2e-4 w.
    assert type(adam) is torch.optim.Adam and [g["weight_decay"] for g in adam.param_groups] == [2e-4, 0]
    names = {id(p): name for name, p in model.named_parameters()}
    held, free = ({names[id(p)] for p in group["params"]} for group in adam.param_groups)
    norms = {f"{norm}.{kind}" for norm in ("h.0.ln_1", "h.0.ln_2", "ln_f", "score") for kind in ("weight", "bias")}
    assert free == norms and held == set(names.values()) - norms
    assert type(adamw) is torch.optim.AdamW and adamw.param_groups[0]["weight_decay"] == 0.01


def test_the_authors_recipe_begins_with_wider_weights_in_its_blocks(load):
    train = load("train_verb_number")

    def spread(recipe):
        torch.manual_seed(0)
        model = train.VerbNumberModel(train.VerbNumberConfig(n_layer=1))
        train.begin(model, recipe)
        return dict(model.named_parameters())

    ours, theirs = spread("ours"), spread("authors")
    for name, p in theirs.items():
        if p.dim() == 2:
            # A normal distribution cut at two deviations keeps 0.88 of its deviation.
            assert p.abs().max() <= 0.1 and p.std().item() == pytest.approx(0.88 * 0.05, rel=0.12)
        else:
            assert torch.equal(p, ours[name])
    assert ours["h.0.attn.c_attn.weight"].std().item() == pytest.approx(0.02, rel=0.02)


def test_the_authors_recipe_lets_the_model_see_its_padding(load, monkeypatch, tmp_path):
    train = load("train_verb_number")
    ours, theirs = (train.options_of(["--out", "x", "--recipe", name, "--batch", "4"]) for name in ("ours", "authors"))
    assert (ours.padding, theirs.padding) == ("masked", "seen")
    assert train.options_of(["--out", "x", "--recipe", "authors", "--padding", "masked"]).padding == "masked"
    lengths = [5, 40] * 400
    alike, mixed = (train.batches(lengths, options, np.random.default_rng(0)) for options in (ours, theirs))
    for order in (alike, mixed):
        assert sorted(np.concatenate(order)) == list(range(800)) and {len(chosen) for chosen in order} == {4}
    apart = [np.mean([len({lengths[i] for i in chosen}) > 1 for chosen in order]) for order in (alike, mixed)]
    assert apart[0] < 0.05 and apart[1] == pytest.approx(1 - 2 * 0.5**4, abs=0.1)
    masks, forward = set(), train.VerbNumberModel.forward

    def seen(self, ids, mask=None, **rest):
        if self.training:
            masks.add(mask is None)
        return forward(self, ids, mask, **rest)

    monkeypatch.setattr(train.VerbNumberModel, "forward", seen)
    for padding, expected in (("masked", {False}), ("seen", {True})):
        masks.clear()
        train.main(["--quick", "--out", str(tmp_path / padding), "--padding", padding, "--threads", "1"])
        assert masks == expected
    assert json.loads((tmp_path / "seen" / "training.json").read_text())["padding"] == "seen"


def test_gradients_are_clipped_together_or_each_by_itself(load):
    train = load("train_verb_number")

    def lengths(recipe):
        model = train.VerbNumberModel(train.VerbNumberConfig(n_layer=1, n_embd=8, n_head=2, vocab_size=8))
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        train.clip(model, recipe)
        return torch.stack([p.grad.norm() for p in model.parameters()])

    assert lengths("ours").norm().item() == pytest.approx(1.0, abs=1e-4)
    assert torch.allclose(lengths("authors"), torch.ones(()), atol=1e-4)


@pytest.mark.slow
def test_models_are_kept_on_the_way_and_measured(load, tmp_path, capsys):
    out = tmp_path / "run"
    load("train_verb_number").main(["--quick", "--out", str(out), "--keep-every", "10", "--threads", "1"])
    facts = json.loads((out / "training.json").read_text())
    assert facts["recipe"] == "ours" and facts["batch"] == 64
    curve = load("training_curve")
    assert [seen for seen, _ in curve.checkpoints(out)] == [0, 640, 1280, 1920]
    frame = curve.main(["--quick", "--run", str(out)])
    # Four models of two layers: two references by three methods, and how uneven raw attention is.
    assert len(frame) == 4 * 2 * (2 * 3 + 1) and set(frame["layer"]) == {0, 1} and frame["mean"].between(-1, 1).all()
    apart = frame.loc[frame["table"] == curve.UNEVEN, "mean"]
    assert len(apart) == 8 and apart.between(0, 1).all() and apart.nunique() > 4
    assert [seen for seen, _ in curve.checkpoints(out, [10, 30])] == [640, 1920]
    left, right = curve.curves(frame).axes
    rollout = frame[(frame["table"] == "Table 2") & (frame["method"] == "rollout") & (frame["layer"] == 1)]
    assert rollout["mean"].tolist() in [list(line.get_ydata()) for line in right.lines] and len(left.lines) >= 3


def test_how_uneven_a_row_is_by_hand(load, monkeypatch):
    curve = load("training_curve")
    rows = {"even": [[0.25] * 4, [1.0, 0, 0, 0]], "two": [[0.5, 0.5], [0.75, 0.25]]}
    monkeypatch.setattr(curve, "capture", lambda model, tokenizer, text: text)
    monkeypatch.setattr(curve, "raw", lambda text, position: types.SimpleNamespace(scores=np.array(rows[text])))
    assert curve.uneven(None, None, [("even", 0), ("two", 1)]).tolist() == [[0.0, 0.75], [0.0, 0.25]]


def test_curves_by_layer_are_darker_the_later(load):
    curve = load("training_curve")
    frame = pd.DataFrame(
        [["authors", at, 0.5, table, method, layer, at / 1000 + layer / 10, 0.01, 9]
         for at in (0, 100, 200) for table in ("Table 1", "Table 2") for method in ("raw", "rollout", "flow")
         for layer in range(6)],
        columns=["run", "sentences", "accuracy", "table", "method", "layer", "mean", "half_width", "n"],
    )  # fmt: skip
    panels = curve.layer_curves(frame, "authors").axes
    assert len(panels) == 6
    early, late, paper, _ = panels[0].lines  # the untrained model is left out
    assert list(early.get_ydata())[:2] == pytest.approx([0.1, 0.2]) and paper.get_linestyle() == "--"
    assert late.get_ydata().max() == pytest.approx(0.7) and paper.get_ydata().max() == 0.69
    assert sum(late.get_color()[:3]) < sum(early.get_color()[:3])


def test_a_run_without_kept_models_says_how_to_keep_them(load, tmp_path):
    with pytest.raises(SystemExit, match=r"holds no step-\* folders: train with  --keep-every 500"):
        load("training_curve").checkpoints(tmp_path)


def test_sentences_for_a_masked_model_are_long_enough_and_held_out_ones_are_not_seen(load, tmp_path):
    train = load("train_masked")
    texts = [f"sentence number {i} stands in this file ." for i in range(9)]
    for name, rows in (("train", texts), ("test", [texts[0], "one more is only in the other file ."])):
        (tmp_path / "sst2").mkdir(exist_ok=True)
        (tmp_path / "sst2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(f"{t}\t1\n" for t in rows))
    (tmp_path / "verb-number").mkdir()
    with gzip.open(tmp_path / "verb-number" / "train.tsv.gz", "wt") as file:
        file.write("prefix\tlabel\tverb\tother_form\nthe old keys to the door\tplural\tare\tis\n")
        file.write("the NNP keys to the door\tplural\tare\tis\nthe keys\tplural\tare\tis\n")
    known, held = train.load_texts(tmp_path, 100, 10, 0)
    assert sorted(known) == sorted([*texts, "the old keys to the door are"])
    assert held == ["one more is only in the other file ."]
    with pytest.raises(SystemExit, match="holds none of sst2/train.tsv"):
        train.load_texts(tmp_path / "sst2", 1, 1, 0)


def test_masks_are_on_words_alone(load):
    train = load("train_masked")
    _, tokenizer, texts = train.made_up()
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    ids, attended = encoded["input_ids"], encoded["attention_mask"]
    given, asked = train.masked(ids, attended, tokenizer, np.random.default_rng(0), all_masks=True)
    assert (given[asked] == tokenizer.mask_token_id).all() and torch.equal(given[~asked], ids[~asked])
    assert not np.isin(ids[asked].numpy(), tokenizer.all_special_ids).any()
    given, asked = train.masked(ids, attended, tokenizer, np.random.default_rng(0), all_masks=False)
    share = float((given[asked] == tokenizer.mask_token_id).float().mean())
    assert 0.6 < share < 0.95 and torch.equal(given[~asked], ids[~asked])


def test_frequencies_alone_by_hand(load):
    from attnflow.models.tokenizers import word_tokenizer

    train = load("train_masked")
    words = word_tokenizer(["a", "b"])
    found = train.of_frequencies(words, ["a a b"], ["a b"])
    rest = len(words) - 2  # each counted once
    assert found == pytest.approx((3 / (5 + rest) * 2 / (5 + rest)) ** -0.5)


def test_a_page_tells_how_its_model_was_trained(load, tmp_path):
    probes = load("probe_models")
    assert probes.training_of(tmp_path) == []
    (tmp_path / "training.json").write_text('{"steps": 400, "perplexity": 515.98}')
    (tmp_path / "runs.csv").write_text("day,command,duration\n2026-01-02,python x,3 s\n")
    (said,) = probes.training_of(tmp_path)
    assert "steps 400, perplexity 516" in said and "Trained by `python x` on 2026-01-02 in 3 s." in said


def test_a_masked_training_that_was_stopped_goes_on_alike(load, monkeypatch, tmp_path):
    train = load("train_masked")
    whole = train.main(["--quick", "--out", str(tmp_path / "a")])
    assert set(whole) >= {"perplexity", "top-1", "most frequent token", "held out"} and whole["steps"] == 3
    torch.manual_seed(0)
    model, tokenizer, texts = train.made_up()
    (tmp_path / "b").mkdir()
    options = argparse.Namespace(
        out=tmp_path / "b", steps=3, batch=32, rate=3e-4, freeze=0, seed=0, bfloat16=False, measure_every=0
    )
    run, ask = train.Run(options, model, tokenizer), train.asked_of

    def stopped(*given):
        if run.step == 2:
            run.save()
            raise KeyboardInterrupt
        return ask(*given)

    monkeypatch.setattr(train, "asked_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        run.go(texts[:64], texts[64:])
    monkeypatch.setattr(train, "asked_of", ask)
    again = train.main(["--quick", "--out", str(tmp_path / "b")])
    assert again["perplexity"] == pytest.approx(whole["perplexity"], rel=1e-6)


def test_a_masked_training_notes_its_progress_and_may_multiply_in_bfloat16(load, tmp_path):
    train = load("train_masked")
    facts = train.main(["--quick", "--bfloat16", "--measure-every", "1", "--out", str(tmp_path)])
    noted = pd.read_csv(tmp_path / "progress.csv")
    assert noted["steps"].tolist() == [1, 2, 3] and noted["sentences seen"].tolist() == [32, 64, 96]
    assert noted["perplexity"].iloc[-1] == pytest.approx(facts["perplexity"]) and facts["bfloat16"]
    model = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"]
    assert {value.dtype for value in model.values()} == {torch.float32}
