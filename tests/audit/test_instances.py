"""Which output position of a text an experiment examines."""

from __future__ import annotations

import pytest
import torch

from attnflow.audit import correlation, permutation
from attnflow.audit.instances import open_texts
from tests.audit.tiny import TOKENIZER, bert, gpt2, lstm

TEXTS = ["w0 good w1 w2", "bad w3 w4"]


@pytest.mark.parametrize(("make", "rows"), [(gpt2, [5, 4]), (bert, [0, 0]), (lstm, [0, 0])])
def test_a_causal_classifier_is_examined_at_its_last_position_though_its_tokenizer_has_cls(make, rows):
    torch.manual_seed(0)
    found = list(open_texts(TEXTS).instances(make().eval(), TOKENIZER))
    assert [one.row for one in found] == rows and all(one.example.tokens.marks["cls"] == 0 for one in found)
    (first,) = open_texts(TEXTS[:1], position="cls").instances(make().eval(), TOKENIZER)
    assert first.row == 0, "where it is asked for"


def test_the_weights_of_a_causal_classifier_can_be_shuffled_and_ranked():
    torch.manual_seed(0)
    model = gpt2().eval()
    shuffled = permutation(model, TOKENIZER, TEXTS, permutations=8)
    assert (shuffled.records["change"] > 0).all() and (shuffled.records["movable"] > 0).all()
    ranked = correlation(model, TOKENIZER, TEXTS, methods="raw").records
    assert ranked["tau"].notna().all(), "[CLS] sees itself alone, and would rank nothing"
