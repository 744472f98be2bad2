"""A head that was drawn at random is said, and refused where it would be explained."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers as tf

from attnflow import blankout, capture, compare, gradient, rank, raw, rollout
from attnflow.errors import AttnFlowWarning, InputError
from attnflow.inputs.untrained import check_trained, untrained, untrained_notes
from attnflow.models.loading import load
from tests.tiny_models import tiny, tokenizer

HEAD = ("classifier.weight", "classifier.bias")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base model whose configuration names a classifier, as a checkpoint that was cut by hand may."""
    place = tmp_path_factory.mktemp("base")
    tiny("base").save_pretrained(place)
    tokenizer().save_pretrained(place)
    config = tf.AutoConfig.from_pretrained(place)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(place)
    return place


@pytest.fixture
def headless(folder):
    return tf.BertForSequenceClassification.from_pretrained(folder).eval()


def test_which_weights_were_drawn(headless, folder):
    assert untrained(headless) == HEAD
    assert untrained(load(str(folder))[0]) == HEAD


@pytest.mark.parametrize("name", ["bert", "bert-mlm", "llama", "t5", "bart", "gpt2", "albert", "deberta-v2", "vit"])
def test_a_whole_model_has_none(name, tmp_path):
    model = tiny(name)
    assert untrained(model) == ()
    model.save_pretrained(tmp_path)
    assert untrained(type(model).from_pretrained(tmp_path)) == ()


def test_a_head_without_bias(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    assert untrained(tf.LlamaForSequenceClassification.from_pretrained(tmp_path)) == ("score.weight",)


def test_the_pooler_of_a_bare_encoder_does_not_count(tmp_path):
    tiny("bert-mlm").save_pretrained(tmp_path)
    assert untrained(tf.BertModel.from_pretrained(tmp_path)) == ()


def test_a_head_counts_as_trained_after_a_step(headless):
    headless(input_ids=torch.tensor([[3, 4, 5]]), labels=torch.tensor([1])).loss.backward()
    torch.optim.AdamW(headless.parameters(), lr=1e-3).step()
    assert untrained(headless) == ()
    check_trained(headless, "gradient")


def test_results_of_attention_say_it(headless):
    note = untrained_notes(headless)[0]
    assert "classifier.weight, classifier.bias are not in the saved model" in note
    assert note in capture(headless, tokenizer(), "the key").notes
    for method in (raw, rollout):
        assert note in method(headless, tokenizer(), "the key").notes
    assert raw(tiny("bert"), tokenizer(), "the key").notes == ()


@pytest.mark.parametrize("method", [gradient, blankout])
def test_what_explains_the_answer_is_refused_unless_asked_for(method, headless):
    with pytest.raises(InputError, match=r"classifier.weight, classifier.bias of BertForSequenceClassification are "
                                         r"not in the saved model.*untrained=True"):  # fmt: skip
        method(headless, tokenizer(), "the key")
    with pytest.warns(AttnFlowWarning, match="drawn at random"):
        found = method(headless, tokenizer(), "the key", untrained=True)
    assert found.notes == untrained_notes(headless)
    with pytest.raises(InputError):  # the permission ended with the call
        method(headless, tokenizer(), "the key")


@pytest.mark.parametrize("by_name", [True, False])
def test_compare_is_refused_unless_asked_for(by_name, headless, folder, tmp_path):
    model, tok = (str(folder), None) if by_name else (headless, tokenizer())
    with pytest.raises(InputError, match="^Comparing explains what the model answers"):
        compare(model, tok, ["the key"], on_error="skip", out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare(model, tok, ["the key"], references="gradient", untrained=True, out=tmp_path / "run")
    assert found.examples == 1


def test_ranking_is_refused_unless_asked_for(headless):
    texts, one = ["the key to the table", "the author talked"], {"methods": "raw", "measures": "leave_one_out"}
    with pytest.raises(InputError, match="^Ranking explains what the model answers"):
        rank(headless, tokenizer(), texts, **one)
    with pytest.warns(AttnFlowWarning, match="drawn at random"):
        assert rank(headless, tokenizer(), texts, untrained=True, **one).examples == 2


def test_untrained_is_true_or_false(headless):
    with pytest.raises(TypeError, match="untrained='yes'"):
        gradient(headless, tokenizer(), "the key", untrained="yes")


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"knows no words.*no tokenizer in it.*save_pretrained\(folder\)"):
        load(str(tmp_path))
    empty = tf.AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="knows no words"):
        raw(tiny("bert"), empty, "the key")


def test_unknown_words_are_said():
    with pytest.warns(AttnFlowWarning, match=r"Most tokens of a text are \[UNK\]"):
        found = raw(tiny("bert"), tokenizer(), "zwei Wörter key")
    assert any(note.startswith("Unknown words: 2 of 3 tokens") for note in found.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert raw(tiny("bert"), tokenizer(), "the key Wörter").notes == ()
