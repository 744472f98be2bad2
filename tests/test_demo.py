from __future__ import annotations

import torch

from attnflow import demo, rollout
from attnflow.models.shipped import FOLDER


def test_every_call_gives_a_model_of_its_own():
    a, b = demo.model(), demo.model()
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert a is not b and not a.training


def test_it_knows_the_number_of_the_verb():
    net, tok = demo.model(), demo.tokenizer()
    for text, label in {demo.SENTENCE: "singular", "the keys to the door": "plural"}.items():
        logits = net(**tok(text, return_tensors="pt")).logits
        assert net.config.id2label[int(logits.argmax())] == label


def test_the_weights_inside_are_small_and_have_a_card():
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_000_000
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for wanted in ("Data", "Licence", "Accuracy", "seed", "python benchmarks/train_verb_number.py"):
        assert wanted in card


def test_the_sentence_is_made_of_words_that_the_model_knows():
    tok = demo.tokenizer()
    tokens = tok.convert_ids_to_tokens(tok(demo.SENTENCE)["input_ids"])
    assert tokens == ["<cls>", "the", "key", "to", "the", "doors", "<eos>"]


def test_a_result_names_the_model_and_no_path():
    assert rollout(demo.model(), demo.tokenizer(), demo.SENTENCE).model == demo.NAME
