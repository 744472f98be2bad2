"""The three experiments on trained weights."""

from __future__ import annotations

import pytest

from attnflow.audit import adversary, permutation
from attnflow.audit.measures import LN2
from tests.real import smollm2

pytestmark = [pytest.mark.real, pytest.mark.slow]
TEXTS = ["The capital of France is", "When she opened the door, she saw a"]


def test_shuffling_the_last_layer_of_a_language_model_is_seen_in_its_next_token():
    model, tokenizer = smollm2()
    found = permutation(model, tokenizer, TEXTS, permutations=10)
    assert found.settings["layers"] == [29] and (found.records["change"] > 0.01).all()


def test_other_weights_of_one_head_give_nearly_the_same_next_token():
    model, tokenizer = smollm2()
    found = adversary(model, tokenizer, TEXTS, heads=0, epsilon=0.05, steps=30, candidates=2, start="own").records
    assert (found["tvd"] <= 0.05).all() and found["jsd"].between(0.005, LN2).all()
