"""One text, several methods, one object; and the ways in which people name a model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as tf

import attnflow
from attnflow import AttnFlowError, blankout, capture, compare, demo, explain, flow, gradient, raw, rollout
from attnflow.errors import AttnFlowWarning, InputError, SelectionError
from attnflow.flowgraph import flow_graph
from attnflow.inputs.example import examples
from attnflow.inputs.prediction import Prediction, prediction_of
from attnflow.models.shipped import FOLDER
from tests.capturing import tiny
from tests.inputs.test_encode import paired, wordpiece

TEXT = "the keys to the cabinet"


@pytest.fixture(scope="module")
def model():
    return demo.model()


@pytest.fixture(scope="module")
def tokenizer():
    return demo.tokenizer()


@pytest.fixture(scope="module")
def explained(model, tokenizer):
    return explain(model, tokenizer, TEXT)


def test_it_holds_what_each_method_gives_alone(explained, model, tokenizer):
    assert [r.method for r in explained] == ["raw", "rollout", "flow", "gradient", "blankout"]
    for method in (raw, rollout, flow):
        alone = method(model, tokenizer, TEXT, position="cls")
        assert np.allclose(explained[method.__name__].scores, alone.scores)
    assert np.allclose(explained["blankout"].scores, blankout(model, tokenizer, TEXT).scores)
    assert len(explained) == 5 and explained[-1] is explained["blankout"] and explained[:2] == explained.results[:2]
    with pytest.raises(SelectionError, match=r"'chefer' is not one of the methods of this explanation: raw, rollout"):
        explained["chefer"]


def test_table_check_plot_page_and_text(explained, tmp_path):
    table = explained.table(layer=2)
    assert list(table.columns) == ["token", "raw", "rollout", "flow", "gradient", "blankout"]
    assert np.allclose(table["rollout"], explained["rollout"].at(layer=2).scores[0])
    assert explained.table(special=False)["token"].tolist() == TEXT.split()
    check = explained.check()
    assert set(zip(check["method"], check["reference"], strict=True)) == {
        (m, r) for m in ("raw", "rollout", "flow") for r in ("gradient", "blankout")
    }
    assert check["layer"].max() == 5 and check["spearman"].between(-1, 1).all()
    assert explained.informative()["method"].tolist() == [r.method for r in explained]
    assert len(explained.plot().axes) == 10  # five heat-maps with a scale each
    page = explained.to_html(tmp_path / "page.html")
    assert "The model predicts plural" in page and (tmp_path / "page.html").read_text() == page
    assert "The model predicts plural" in explained._repr_html_()
    said = str(explained).splitlines()
    assert said[0] == "The model predicts plural (100.0 %); next singular (< 0.1 %)."
    assert "“keys” (by rollout, blankout)" in said[1]
    assert "\n" not in repr(explained)


def test_a_check_needs_a_reference(model, tokenizer):
    only = explain(model, tokenizer, TEXT, methods=["raw"])
    with pytest.raises(SelectionError, match="nothing to check against: every method reads attention"):
        only.check()


def test_rows_of_other_outputs_are_compared(explained, model, tokenizer):
    whole = flow(model, tokenizer, TEXT)
    assert explained["flow"].row_agreement == pytest.approx(whole.informative.rows, abs=0.05)
    assert explained["gradient"].row_agreement is None


def test_the_package_offers_it():
    assert attnflow.explain is explain and "explain" in attnflow.__all__


# What the model predicted


def test_predictions_of_every_kind():
    ids = [2, 5, 6, 4, 3]
    classifier = tf.BertForSequenceClassification(tf.BertConfig(**tiny.SMALL, num_labels=3)).eval()
    shares = classifier(torch.tensor([ids])).logits.softmax(-1)[0].detach()
    found = explain(classifier, None, ids, methods=["raw"]).prediction
    assert found.label == f"LABEL_{int(shares.argmax())}"
    assert found.probability == pytest.approx(float(shares.max()), rel=1e-5)
    assert [p for _, p in found.others] == pytest.approx(sorted(shares.tolist())[-2::-1], rel=1e-5)
    masked = tf.BertForMaskedLM(tf.BertConfig(**tiny.SMALL)).eval()
    assert explain(masked, wordpiece(), "the [MASK]").prediction.place == "at position 2 [MASK]"
    causal = explain(tiny.model("gpt2"), None, ids, methods=["raw"]).prediction
    assert causal.place == "as the next token" and causal.line.startswith("The model predicts ")
    assert explain(tiny.model("bert"), None, ids, methods=["raw"]).prediction is None
    one = tf.BertForSequenceClassification(tf.BertConfig(**tiny.SMALL, num_labels=1)).eval()
    assert "(one output, which is no probability)" in explain(one, None, ids, methods=["raw"]).prediction.line
    many = tf.BertConfig(**tiny.SMALL, num_labels=3, problem_type="multi_label_classification")
    several = explain(tf.BertForSequenceClassification(many).eval(), None, ids, methods=["raw"]).prediction
    assert 0 < several.probability < 1 and several.probability + sum(p for _, p in several.others) != pytest.approx(1)


def test_tokens_are_quoted_as_they_stand_in_the_text(model, tokenizer):
    causal = tiny.model("gpt2")
    example = examples(causal, wordpiece(), "the key")[0][0]
    assert prediction_of(example, example.predicted()).label.startswith("'")
    assert Prediction("a", 0.0004, (("b", 0.0),)).line == "The model predicts a (< 0.1 %); next b (0.0 %)."


def test_a_masked_model_without_a_mask_still_shows_its_attention():
    masked = tf.BertForMaskedLM(tf.BertConfig(**tiny.SMALL)).eval()
    found = explain(masked, wordpiece(), "the key")
    assert found.prediction is None and [r.method for r in found] == ["raw", "rollout", "flow"]
    assert explain(masked, wordpiece(), "the key", position="key").prediction.place == "at position 2 key"


def test_gradient_and_attention_pages_say_nothing_that_nobody_asked_the_model(model, tokenizer):
    assert rollout(model, tokenizer, TEXT).predicted is None


# However the model is named


def pipeline_of(model, tokenizer):
    """What a pipeline of transformers has; building a real one needs a framework check of its own."""
    return tf.pipeline("text-classification", model=model, tokenizer=tokenizer)


CALLS = [raw, rollout, flow, gradient, blankout, attnflow.direct, explain]


@pytest.mark.parametrize("call", CALLS)
def test_pipelines_names_and_folders(call, model, tokenizer):
    def scores(found):
        return found.results[0].scores if call is explain else found.scores

    want = scores(call(model, tokenizer, TEXT))
    pipe = pipeline_of(model, tokenizer)
    assert np.allclose(scores(call(pipe, text=TEXT)), want)
    assert np.allclose(scores(call(pipe, TEXT)), want)
    assert np.allclose(scores(call(str(FOLDER), text=TEXT)), want, atol=1e-5)
    if call is raw:
        assert np.allclose(scores(call(FOLDER, TEXT)), want, atol=1e-5)


@pytest.mark.parametrize("call", [*CALLS, capture])
def test_a_forgotten_tokenizer_gets_the_line_to_paste(call, model):
    line = rf"tokenizer = attnflow.demo.tokenizer\(\); {call.__name__}\(model, tokenizer, text\)"
    with pytest.raises(InputError, match=rf"second argument is the tokenizer, and it is a str .*{line}"):
        call(model, TEXT)
    with pytest.raises(InputError, match=rf"'the keys to the cabinet' needs a tokenizer and tokenizer is None.*{line}"):
        call(model, None, TEXT)


@pytest.mark.parametrize("call", [*CALLS, capture])
def test_what_is_no_model_is_an_error_that_says_so(call):
    with pytest.raises(
        InputError, match="The first argument is the model, and it is the text 'the keys to the cabinet'"
    ):
        call(TEXT)
    with pytest.raises(InputError, match="'no-such/model' could not be loaded"):
        call("no-such/model", text=TEXT)
    for odd in (SimpleNamespace(model=3), object(), 7):
        with pytest.raises((AttnFlowError, TypeError)):
            call(odd, None, TEXT)


def test_compare_takes_a_pipeline(model, tokenizer):
    c = compare(
        pipeline_of(model, tokenizer), None, [TEXT, "the key to the doors"], methods="raw", references="gradient"
    )
    assert c.examples == 2 if hasattr(c, "examples") else "2 examples" in repr(c)


def test_a_word_as_position_a_pair_and_a_cut(model, tokenizer):
    assert explain(model, tokenizer, TEXT, methods=["raw"], position="keys")[0].position == 2
    assert rollout(model, tokenizer, TEXT, position="cabinet").position_token == "cabinet"
    assert len(rollout(model, tokenizer, "the key " * 40, max_length=9).tokens) == 9
    assert rollout(model, tokenizer, "the key " * 40, truncation=True).notes[0].startswith("The text was cut to ")
    assert len(explain(model, tokenizer, "the key " * 40, methods=["raw", "blankout"], max_length=9)["raw"].tokens) == 9
    bert, pairs = tiny.model("bert"), paired()
    two = flow(bert, pairs, "the cabinets", text_pair="the key", position="cls")
    assert two.words().tokens == ("[CLS]", "the", "cabinets", "[SEP]", "the", "key", "[SEP]")
    assert np.allclose(two.scores, flow(bert, pairs, pairs("the cabinets", "the key"), position="cls").scores)
    with pytest.raises(SelectionError, match="explain takes one text, and 2 were given"):
        explain(model, tokenizer, [TEXT, TEXT])


def test_without_a_position_a_causal_model_is_read_at_its_last(tokenizer):
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "bos_token_id": 2, "eos_token_id": 3}
    causal = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=len(tokenizer), **sizes)).eval()
    found = explain(causal, tokenizer, TEXT, methods=["raw", "flow"])
    assert found[0].tokens.marks["cls"] == 0, "a causal model whose tokenizer has [CLS], which sees itself alone"
    assert [r.position for r in found] == [6, 6]
    assert flow_graph(capture(causal, tokenizer, TEXT)).outputs[0].row == 6


def test_a_name_needs_no_tokenizer_over_data_either(tmp_path):
    tiny.model("bert").save_pretrained(tmp_path)
    paired().save_pretrained(tmp_path)
    texts = ["the key", "the cabinets"]
    assert compare(str(tmp_path), dataset=texts, methods="raw", references="gradient").examples == 2
    with pytest.raises(InputError, match="dataset is None: give texts"):
        compare(str(tmp_path), texts)


def test_a_name_or_the_text_in_the_place_of_the_tokenizer(model, tokenizer):
    with pytest.raises(
        InputError, match=r"is the str 'bert'.*tokenizer = AutoTokenizer.from_pretrained\('bert'\); raw\("
    ):
        raw(model, "bert", TEXT)
    with pytest.raises(InputError, match=r"second argument is the text 'the keys.*third the tokenizer. The order is"):
        raw(model, TEXT, tokenizer)


def test_a_tokenizer_that_knows_no_pairs_is_said(model, tokenizer):
    with pytest.warns(AttnFlowWarning, match="adds 2 special tokens to one text and none to a pair"):
        found = rollout(model, tokenizer, TEXT, text_pair="the doors", position=0)
    assert found.notes[0].startswith("Text pair: ")
    assert not rollout(tiny.model("bert"), paired(), "the cabinets", text_pair="the key").notes


def test_transformers_does_not_warn_of_a_length_that_is_cut(model, tokenizer, caplog):
    tf.logging.enable_propagation()
    try:
        rollout(model, demo.tokenizer(), "the key " * 80, max_length=9)
    finally:
        tf.logging.disable_propagation()
    assert not caplog.records


def test_a_model_of_images_by_its_name(tmp_path):
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    tf.ViTModel(tf.ViTConfig(**sizes, intermediate_size=8)).save_pretrained(tmp_path)
    found = rollout(str(tmp_path), text={"pixel_values": torch.rand(1, 3, 8, 8)}, position="cls")
    assert len(found.tokens) == 5
    with pytest.raises(InputError, match="ViTModel reads pixel_values, and a text was given:  rollout"):
        rollout(str(tmp_path), text=TEXT)
