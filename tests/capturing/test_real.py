"""On real weights: equal to eager, and the model's own outputs unchanged bit for bit afterwards."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from attnflow import capture
from attnflow.scoring.rollout_stream import rollout_matrix, rollout_row
from tests import real
from tests.capturing import tiny

pytestmark = pytest.mark.real
TEXT = "The key to the cabinets of the old museums is rusty, but it opens them."


def _check(model: Any, tokenizer: Any, route: str) -> Any:
    batch = tokenizer(TEXT, return_tensors="pt")
    batch = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        before = model(**batch)[0]
    precision = "float64" if before.dtype == torch.float64 else "float32"
    att = capture(model, tokenizer, TEXT, heads="all", dtype=precision)
    with torch.no_grad():
        assert torch.equal(model(**batch)[0], before)
    theirs = tiny.eager_attentions(model, **batch).attentions
    exact = tiny.eager_attentions(copy.deepcopy(model).double(), **batch).attentions
    assert att.route == route and len(att.layers) == len(theirs)
    for mine, other, true in zip(att.only.weights, theirs, exact, strict=True):
        # The model runs with its own kernel and the reference in eager: neither may be much farther from the truth.
        rounding = float((other - true).abs().max())
        np.testing.assert_allclose(
            mine, true[0].numpy(), rtol=0, atol=1e-12 if precision == "float64" else 2 * rounding + 2e-7
        )
    mean = capture(model, tokenizer, TEXT)
    np.testing.assert_allclose(mean.weights, att.weights.mean(1), atol=1e-6)
    return att


def test_minilm() -> None:
    model, tokenizer = real.minilm()
    _check(copy.deepcopy(model).double(), tokenizer, "interface")
    att = _check(model, tokenizer, "interface")
    assert att.tokens[1:3] == ("the", "key") and att.tokens.marks["cls"] == 0
    batch = [TEXT, "Short.", "One more of them, somewhat longer."]
    for one, text in zip(capture(model, tokenizer, batch), batch, strict=True):
        alone = capture(model, tokenizer, text)
        assert alone.tokens == one.tokens
        np.testing.assert_allclose(alone.weights, one.weights, atol=1e-5)


@pytest.mark.slow
def test_smollm2() -> None:
    model, tokenizer = real.smollm2()
    att = _check(model, tokenizer, "interface")
    assert att.only.causal and att.weights.shape[:2] == (30, 9)
    with capture(model, tokenizer) as taken:
        out = model.generate(**tokenizer("The capital of France is", return_tensors="pt"), max_new_tokens=5)
    whole = capture(model, tokenizer, out[0, :-1])
    np.testing.assert_allclose(taken.attention.weights, whole.weights, atol=1e-5)
    assert taken.attention.tokens == whole.tokens


@pytest.mark.slow
def test_mpnet() -> None:
    _check(*real.mpnet(), route="tap")


@pytest.mark.slow
def test_flan_t5() -> None:
    model, tokenizer = real.flan_t5()
    text = "translate English to German: The house is wonderful."
    batch = dict(tokenizer(text, return_tensors="pt"))
    batch = {k: batch[k] for k in ("input_ids", "attention_mask")}
    att = capture(model, tokenizer, text, heads="all")
    assert set(att.blocks) == {"encoder", "decoder", "cross"}
    said = tokenizer.decode(tokenizer.convert_tokens_to_ids(list(att["decoder"].queries)), skip_special_tokens=True)
    assert said == "Das Haus ist wunderbar."
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(list(att["decoder"].queries))])
    with torch.no_grad():
        before = model(**batch, decoder_input_ids=ids)[0]
    out = tiny.eager_attentions(model, **batch, decoder_input_ids=ids)
    for key, theirs in (
        ("encoder", out.encoder_attentions), ("decoder", out.decoder_attentions), ("cross", out.cross_attentions),
    ):  # fmt: skip
        for mine, other in zip(att[key].weights, theirs, strict=True):
            np.testing.assert_allclose(mine, other[0].numpy(), atol=1e-6)
    told = capture(model, tokenizer, text, text_target="Das Haus ist wunderbar.")
    assert told["decoder"].queries == att["decoder"].queries
    with torch.no_grad():
        assert torch.equal(model(**batch, decoder_input_ids=ids)[0], before)


def test_streaming_on_minilm() -> None:
    from attnflow import rollout

    model, tokenizer = real.minilm()
    stored = rollout(capture(model, tokenizer, TEXT), layer=-1)
    np.testing.assert_allclose(rollout_matrix(model, tokenizer, TEXT).scores, stored.scores[0], atol=1e-6)
    row = rollout_row(model, tokenizer, TEXT, position="cls")
    np.testing.assert_allclose(row.scores, stored.scores[0][0], atol=1e-6)
