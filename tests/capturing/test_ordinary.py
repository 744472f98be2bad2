"""Ordinary ways of calling: layers by number, arrays and tables, autocast, inference mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from attnflow import AttnFlowError, capture
from tests import standin
from tests.capturing import tiny
from tests.capturing.test_generate import close

TEXTS = ["the key to the cabinets", "a book"]


def test_layers_that_were_not_asked_for_are_not_said_to_have_no_attention() -> None:
    att = capture(tiny.model("bert", num_hidden_layers=6), None, tiny.IDS, layers=[4, 5])
    assert att.layers == (4, 5)
    assert not any("no attention" in n for n in att.notes)
    assert "Only layers 4, 5 were asked for." in att.notes


def test_layers_without_attention_are_still_said() -> None:
    att = capture(tiny.model("qwen3-next"), None, tiny.IDS, layers=-1)
    assert att.layers == (3,) and any("layers 0, 1, 2 have no attention" in n for n in att.notes)


def test_negative_layers_count_in_each_tower() -> None:
    model = tiny.model("bart", encoder_layers=3, decoder_layers=2)
    inputs = {"input_ids": torch.tensor([tiny.IDS]), "decoder_input_ids": torch.tensor([tiny.IDS[:3]])}
    whole, last = capture(model, inputs=inputs), capture(model, inputs=inputs, layers=-1)
    assert {k: b.layers for k, b in last.blocks.items()} == {"encoder": (2,), "decoder": (1,), "cross": (1,)}
    for key, block in last.blocks.items():
        np.testing.assert_array_equal(block.weights[0], whole[key].weights[-1])
    assert capture(model, inputs=inputs, layers=np.int64(-1))["encoder"].layers == (2,)
    only = capture(model, inputs=inputs, layers=2)
    np.testing.assert_array_equal(only.weights[0], whole["encoder"].weights[2])
    assert any("Only layers 2 were asked for; model.decoder.layers has none of them." in n for n in only.notes)
    with pytest.raises(AttnFlowError, match="layers=-4, but the layers with attention are 0, 1, 2"):
        capture(model, inputs=inputs, layers=-4)


@pytest.mark.parametrize("heads", [np.int64(1), [np.int64(0), np.int64(1)], np.array([0, 1])])
def test_heads_as_numpy_numbers(heads: Any) -> None:
    model = tiny.model("bert")
    plain = int(heads) if np.ndim(heads) == 0 else [int(h) for h in heads]
    close(capture(model, None, tiny.IDS, heads=heads), capture(model, None, tiny.IDS, heads=plain))


def test_arrays_and_tables_of_texts() -> None:
    model, tokenizer = standin.model(layers=1), standin.tokenizer()
    expected = capture(model, tokenizer, TEXTS)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="np")
    given = [np.array(TEXTS), np.array(TEXTS, dtype=object), pd.Series(TEXTS), pd.Series(TEXTS, index=[7, 3]),
             pd.DataFrame({"text": TEXTS})["text"], encoded, dict(encoded)]  # fmt: skip
    for texts in given:
        found = capture(model, tokenizer, texts)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
            assert list(one.tokens) == list(other.tokens)
    ids = [tokenizer(t)["input_ids"] for t in TEXTS]
    rows = [[np.array(i) for i in ids], pd.Series(ids), [[np.int64(j) for j in i] for i in ids]]
    for given_ids in rows:
        for one, other in zip(capture(model, None, given_ids), expected, strict=True):
            close(one, other)
    for one_row in (np.array(ids[0]), pd.Series(ids[0]), [np.int64(i) for i in ids[0]], np.array(ids[0], np.int32)):
        close(capture(model, None, one_row), expected[0])
    close(capture(model, tokenizer, np.str_(TEXTS[0])), expected[0])
    close(capture(model, tokenizer, np.array(TEXTS[0])), expected[0])


@pytest.mark.parametrize("name", ["bert", "llama", "gpt-oss", "mpnet", "gemma2", "t5"])
@pytest.mark.parametrize("options", [{}, {"gradients": lambda out: out[0].float().sum()}, {"block": 3}])
def test_autocast(name: str, options: dict[str, Any]) -> None:
    model = tiny.model(name)
    ids = torch.tensor([tiny.IDS])
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if name == "t5" else {})}
    plain = capture(model, inputs=inputs, **options)
    with torch.autocast("cpu", torch.bfloat16):
        att = capture(model, inputs=inputs, **options)
    for key in plain.blocks:
        for a, b in zip(att[key].weights, plain[key].weights, strict=True):
            # bfloat16 has eight bits, and the weights of these models are six times as sharp as usual.
            assert np.abs(a - b).mean() < 0.05


@pytest.mark.parametrize("name", ["bert-classifier", "mpnet"])
def test_gradients_inside_inference_mode(name: str) -> None:
    model = tiny.model(name)

    def target(out: Any) -> torch.Tensor:
        return out[0].sum()

    expected = capture(model, None, tiny.IDS, gradients=target)
    with torch.inference_mode():
        att = capture(model, None, tiny.IDS, gradients=target)
        given = capture(model, inputs={"input_ids": torch.tensor([tiny.IDS])}, gradients=target)
        built = tiny.model(name)
    for found in (att, given):
        for a, b in zip(found.only.gradients, expected.only.gradients, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(AttnFlowError, match="made inside torch.inference_mode"):
        capture(built, None, tiny.IDS, gradients=target)
