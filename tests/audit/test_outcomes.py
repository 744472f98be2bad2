"""Which row of a trained model's attention is compared."""

from __future__ import annotations

import pytest

from attnflow.audit import AttentionRow, Recipe, fit, seeds, uniform
from attnflow.audit.outcomes import row_of
from attnflow.errors import InputError
from tests.audit.tiny import bert, gpt2, lstm, splits


@pytest.fixture(scope="module")
def data():
    return splits(16, 8, 8)


def test_a_causal_model_is_compared_at_its_last_token_where_no_row_is_given(data):
    assert row_of(None, gpt2(), data) == AttentionRow(position="last")
    assert row_of(None, bert(), data) == row_of(None, lstm(), data) == AttentionRow()
    assert row_of(AttentionRow(position="cls"), gpt2(), data).position == "cls"


def test_seeds_of_a_causal_model_differ_in_attention(data):
    short = Recipe(epochs=1, batch=8)
    assert (seeds(gpt2, data, seeds=[1], recipe=short).records["jsd"] > 0).all(), "the first token sees itself alone"
    assert "row 'last'" in uniform(gpt2, data, recipe=short).settings["attention"]


@pytest.mark.parametrize("pad", [None, 5])
def test_a_causal_classifier_that_would_answer_at_padding_is_refused(data, pad):
    said = rf"pad_token_id={pad}\), and the texts are padded with 0.*model.config.pad_token_id = 0"
    with pytest.raises(InputError, match=said):
        fit(gpt2(pad=pad), data)
