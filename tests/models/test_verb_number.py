from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attnflow import capture, flow, rollout
from attnflow.models.tokenizers import word_tokenizer
from attnflow.models.verb_number import VerbNumberConfig, VerbNumberModel


def test_the_paper_s_size():
    config = VerbNumberConfig()
    assert (config.n_layer, config.n_head, config.n_embd) == (6, 8, 128)


def test_every_position_sees_every_other(classifier):
    attention = capture(*classifier, "the key to the books")
    assert attention.route == "interface" and not attention.only.causal
    assert (attention.weights > 0).all()
    assert np.allclose(attention.weights.sum(-1), 1, atol=1e-5)


def test_padding_changes_nothing(classifier):
    model, tokenizer = classifier
    one = tokenizer("the key", return_tensors="pt")
    padded = torch.nn.functional.pad(one["input_ids"], (0, 5))
    mask = torch.nn.functional.pad(one["attention_mask"], (0, 5))
    with torch.no_grad():
        expected = model(**one).logits
        found = model(padded, mask).logits
    torch.testing.assert_close(found, expected)


def test_embeddings_may_be_given_and_labels_give_a_loss(classifier):
    model, tokenizer = classifier
    ids = tokenizer("the key", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, expected)
        loss = model(ids, labels=torch.tensor([1])).loss
    torch.testing.assert_close(loss, -expected.log_softmax(-1)[0, 1])


def test_the_word_embeddings_can_be_replaced():
    model = VerbNumberModel(VerbNumberConfig(n_layer=1, n_embd=8, n_head=2, vocab_size=20))
    table = torch.nn.Embedding(30, 8)
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table


def test_all_of_the_library_runs_on_it(classifier):
    r = rollout(*classifier, "the key to the books", position="cls")
    f = flow(*classifier, "the key to the books", position="cls")
    assert tuple(r.tokens) == ("<cls>", "the", "key", "to", "the", "books", "<eos>")
    assert np.allclose(r.scores[0], f.scores[0], atol=1e-6)  # the two are the same at the first layer


def test_saved_and_loaded_it_is_the_same(classifier, tmp_path):
    from attnflow.models.loading import load

    model, tokenizer = classifier
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, words = load(str(tmp_path))
    ids = words("the key", return_tensors="pt")
    assert ids["input_ids"].tolist() == tokenizer("the key", return_tensors="pt")["input_ids"].tolist()
    with torch.no_grad():
        torch.testing.assert_close(again(**ids).logits, model(**ids).logits)


def test_words_tags_and_punctuation():
    tokenizer = word_tokenizer(["the", "key", ",", "NNP", "PRP$"])
    assert tokenizer.tokenize("The key, NNP PRP$ nnp") == ["the", "key", ",", "NNP", "PRP$", "<unk>"]
    assert tokenizer("the")["input_ids"] == [2, 4, 3]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.slow
def test_training_learns_the_grammar_goes_on_where_it_stopped_and_makes_the_tables(benchmarks, tmp_path):
    import tables
    import train_verb_number

    arguments = ["--out", str(tmp_path), "--quick", "--threads", "1"]
    reached = train_verb_number.main(arguments)
    assert reached > 0.6 and (tmp_path / "model.safetensors").is_file()
    assert train_verb_number.main(arguments) == reached
    text = tables.main(["--quick", "--model", str(tmp_path)])
    assert (
        text.startswith("| compared with | method | layer | paper |") and "| blank-out | rollout | 0 | 0.32 | " in text
    )


def test_the_tables_without_a_model_say_what_to_do(benchmarks, tmp_path, capsys):
    import tables

    assert tables.main(["--quick", "--model", str(tmp_path)]) == ""
    assert "train_verb_number.py" in capsys.readouterr().out
