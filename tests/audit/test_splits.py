from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError
from attnflow.audit.splits import Splits, length_batches

from .tiny import TOKENIZER, splits

ONE = (["good w1"], [1])


def test_batches_hold_every_text_once_and_are_padded_behind():
    data = splits()
    for rng in (None, np.random.default_rng(0)):
        seen = []
        for batch in data.train.batches(8, data.pad, rng):
            seen += batch.index.tolist()
            for row, i in enumerate(batch.index):
                ids = data.train.ids[i]
                assert batch.ids[row, : len(ids)].tolist() == list(ids)
                assert batch.mask[row].tolist() == [1] * len(ids) + [0] * (batch.ids.shape[1] - len(ids))
            assert batch.labels.tolist() == data.train.labels[batch.index].tolist()
        assert sorted(seen) == list(range(64))


def test_batches_are_of_like_length():
    lengths = np.random.default_rng(0).integers(1, 100, 400).tolist()
    spread = [np.ptp([lengths[i] for i in b]) for b in length_batches(lengths, 8, np.random.default_rng(1))]
    assert np.mean(spread) < 10


def test_words_leave_out_what_the_tokenizer_added():
    data = splits()
    ids = torch.tensor([[2, 4, 1, 3, 0], [2, 3, 0, 0, 0]])
    mask = (ids != 0).long()
    assert data.text_tokens(ids, mask).int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert data.edges


def test_weights_make_the_classes_count_the_same():
    data = Splits.of(TOKENIZER, (["good"] * 3 + ["bad"], [1, 1, 1, 0]), ONE, ONE)
    np.testing.assert_allclose(data.weights(), [2, 2 / 3])


def test_longer_texts_are_cut():
    data = Splits.of(TOKENIZER, (["good w1 w2 w3", "bad"], [1, 0]), ONE, ONE, max_length=4)
    assert [len(x) for x in data.train.ids] == [4, 3]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (([], []), "The part valid has 0 texts: training needs train, valid, test"),
        ((["good"], [1, 0]), "valid has 1 texts and 2 labels"),
        ((["good", " "], [1, 0]), "Text 1 of valid is empty"),
        ((["good"], [2]), "Label 2 of text 0 in valid, and there are 2 classes, 0 to 1.*classes=3"),
        ((["good"], [-1]), "Label -1 of text 0 in valid.*Number the labels from 0"),
        (("good", [1]), "texts of valid are one str"),
    ],
)
def test_bad_parts_are_refused(part, message):
    with pytest.raises(AttnFlowError, match=message):
        Splits.of(TOKENIZER, ONE, part, ONE)
