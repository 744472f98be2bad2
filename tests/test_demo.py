from __future__ import annotations

import torch

from attnflow import demo


def test_the_same_seed_gives_the_same_model_and_the_random_state_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    a, b = demo.model(), demo.model()
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_sentence_is_made_of_words_that_the_model_knows():
    tok = demo.tokenizer()
    tokens = tok.convert_ids_to_tokens(tok(demo.SENTENCE)["input_ids"])
    assert tokens == ["[CLS]", "the", "key", "to", "the", "cabinets", "[SEP]"]
    assert demo.NAME.endswith("(untrained)")
