"""People who run the model themselves, also step by step with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, capture
from attnflow.capturing import generate
from tests.capturing import tiny

GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


def close(a: Any, b: Any, atol: float = 1e-5) -> None:
    assert set(a.blocks) == set(b.blocks)
    for key in a.blocks:
        assert a[key].layers == b[key].layers
        for x, y in zip(a[key].weights, b[key].weights, strict=True):
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, atol=atol)


def test_one_forward() -> None:
    model = tiny.model("bert")
    with capture(model) as taken:
        model(torch.tensor([tiny.IDS]))
    close(taken.attention, capture(model, None, tiny.IDS))
    assert [r.call.layer for r in taken.records] == [0, 1]
    assert {r.call.kind for r in taken.records} == {"self"}


def test_several_forwards_give_several_results() -> None:
    model = tiny.model("gpt2")
    with capture(model) as taken, torch.no_grad():
        model(torch.tensor([tiny.IDS, tiny.IDS]))
        model(torch.tensor([tiny.IDS[:4]]))
    assert [len(a.tokens) for a in taken.attentions] == [7, 7, 4]
    with pytest.raises(AttnFlowError, match="3 were captured"):
        _ = taken.attention


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss", "bloom", "qwen3"])
def test_generated_rows_make_one_causal_matrix(name: str) -> None:
    model = tiny.model(name)
    with capture(model) as taken:
        out = model.generate(torch.tensor([tiny.IDS]), **GREEDY)
    att = taken.attention
    assert att.only.causal and att.settings["runs"] == 6
    close(att, capture(model, None, out[0, :-1].tolist()), atol=2e-5)


def test_left_padded_batch() -> None:
    model = tiny.model("llama")
    ids = torch.tensor([tiny.IDS, [0, 0, 0, *tiny.IDS[:4]]])
    mask = torch.tensor([[1] * 7, [0, 0, 0, 1, 1, 1, 1]])
    with capture(model) as taken:
        out = model.generate(input_ids=ids, attention_mask=mask, **GREEDY)
    first, second = taken.attentions
    close(first, capture(model, None, out[0, :-1].tolist()), atol=2e-5)
    close(second, capture(model, None, out[1, 3:-1].tolist()), atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_beams_that_change_places(name: str) -> None:
    model = tiny.model(name)
    with capture(model) as taken:
        model.generate(torch.tensor([tiny.IDS]), num_beams=4, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    session = taken._session
    orders = generate._orders(session, generate.chains(session)[0])
    assert any(order is not None for order in orders)
    _, given = generate.stitch(session, generate.chains(session)[0])
    for ids, att in zip(given.inputs["input_ids"].tolist(), taken.attentions, strict=True):
        close(att, capture(model, None, ids), atol=2e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoder(name: str) -> None:
    model = tiny.model(name)
    with capture(model) as taken:
        out = model.generate(torch.tensor([tiny.IDS]), **GREEDY)
    inputs = {"input_ids": torch.tensor([tiny.IDS]), "decoder_input_ids": out[:, :-1]}
    close(taken.attention, capture(model, inputs=inputs), atol=2e-5)


def test_a_static_cache() -> None:
    model = tiny.model("llama")
    with capture(model) as taken:
        out = model.generate(torch.tensor([tiny.IDS]), cache_implementation="static", disable_compile=True, **GREEDY)
    close(taken.attention, capture(model, None, out[0, :-1].tolist()), atol=2e-5)


def test_a_cache_filled_before() -> None:
    model = tiny.model("llama")
    with torch.no_grad():
        past = model(torch.tensor([tiny.IDS]), use_cache=True).past_key_values
        with capture(model) as taken:
            model(torch.tensor([[9]]), past_key_values=past, use_cache=True)
    whole = capture(model, None, [*tiny.IDS, 9])
    np.testing.assert_allclose(taken.attention.weights, whole.weights[:, -1:], atol=1e-5)


def test_output_attentions_still_reach_the_user() -> None:
    model = tiny.model("bert")
    with capture(model) as taken:
        out = model(torch.tensor([tiny.IDS]), output_attentions=True)
    assert len(out.attentions) == 2
    np.testing.assert_allclose(out.attentions[0].mean(1)[0].detach().numpy(), taken.attention.weights[0], atol=1e-6)


def test_gradients_by_the_users_own_backward() -> None:
    model = tiny.model("bert-classifier")
    with capture(model, gradients=True) as taken:
        model(torch.tensor([tiny.IDS])).logits[0, 1].backward()
    model.zero_grad(set_to_none=True)
    expected = capture(model, None, tiny.IDS, gradients=1)
    for a, b in zip(taken.attention.only.gradients, expected.only.gradients, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_capture_is_not_entered_twice() -> None:
    taken = capture(tiny.model("bert"))
    with taken, pytest.raises(AttnFlowError, match="in use already"):
        taken.__enter__()
    with pytest.raises(AttnFlowError, match="was not run inside the with block"):
        _ = taken.attentions
