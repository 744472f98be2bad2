"""Each example of a padded batch is what it would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import capture
from tests.capturing import tiny

ROWS = [[5, 6, 7, 8, 9, 3], [11, 12, 13], [14, 15, 16, 17]]


def padded(side: str) -> dict[str, torch.Tensor]:
    width = max(map(len, ROWS))
    ids = torch.zeros(len(ROWS), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(ROWS):
        where = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        ids[i, where] = torch.tensor(row)
        mask[i, where] = 1
    return {"input_ids": ids, "attention_mask": mask}


def same(together: list[Any], model: Any, **options: Any) -> None:
    assert len(together) == len(ROWS)
    for row, one in zip(ROWS, together, strict=True):
        alone = capture(model, None, row, **options)
        assert set(alone.blocks) == set(one.blocks)
        for key in alone.blocks:
            assert alone[key].queries == one[key].queries
            for a, b in zip(alone[key].weights, one[key].weights, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt-oss", "mpnet", "bloom", "mistral", "roberta", "opt"])
def test_rows_that_we_pad(name: str) -> None:
    model = tiny.model(name)
    same(capture(model, None, ROWS), model)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt-oss", "bloom", "mistral", "gemma2", "mpnet"])
def test_rows_that_the_user_padded(name: str, side: str) -> None:
    model = tiny.model(name)
    if name == "mpnet" and side == "left":
        pytest.skip("MPNet counts positions from the pad id itself")
    same(capture(model, inputs=padded(side)), model)


@pytest.mark.parametrize("heads", ["max", "min", 1, [0, 2], "all"])
def test_reductions_in_a_batch(heads: Any) -> None:
    model = tiny.model("llama")
    same(capture(model, inputs=padded("left"), heads=heads), model, heads=heads)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoder(name: str) -> None:
    model = tiny.model(name)
    short = {"max_new_tokens": 5}
    same(capture(model, None, ROWS, **short), model, **short)


def test_longformer() -> None:
    model = tiny.model("longformer")
    same(capture(model, None, ROWS), model)
