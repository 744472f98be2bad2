"""People who run the model themselves, also step by step with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, capture
from tests import standin
from tests.capturing import tiny

GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


def close(a: Any, b: Any, atol: float = 1e-5) -> None:
    assert set(a.blocks) == set(b.blocks)
    for key in a.blocks:
        assert a[key].layers == b[key].layers
        for x, y in zip(a[key].weights, b[key].weights, strict=True):
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, atol=atol)


def test_a_model_that_generates_is_known_as_one_whoever_runs_it() -> None:
    for name, generates in (("llama", True), ("bert", False)):
        model = tiny.model(name)
        with capture(model) as taken:
            model(torch.tensor([tiny.IDS]))
        assert taken.attention.generates is capture(model, None, tiny.IDS).generates is generates


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


BEAMS = {"num_beams": 4, "max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
WINDOW_FIRST = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}


def alone(model: Any, ids: list[int]) -> Any:
    return capture(model, None, ids)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("llama", {}), ("bloom", {}), ("mistral", {}), ("gemma3", WINDOW_FIRST), ("gpt-oss", WINDOW_FIRST)],
)
@pytest.mark.parametrize("options", [{}, {"num_return_sequences": 3}, {"use_cache": False}])
def test_beams_give_one_result_for_each_returned_sequence(name: str, changes: Any, options: dict[str, Any]) -> None:
    model = tiny.model(name, **changes)
    prompts = torch.tensor([tiny.IDS, tiny.IDS[::-1]])
    with capture(model) as taken:
        out = model.generate(prompts, **BEAMS, **options)
    for ids, att in zip(out[:, :-1].tolist(), taken.attentions, strict=True):
        close(att, alone(model, ids), atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_beams_that_the_user_moves_himself(name: str) -> None:
    """Without generate(), rows that change places are seen by the keys in the cache, of which a window holds few."""
    model = tiny.model(name, **(WINDOW_FIRST if name == "gemma3" else {}))
    ids = torch.tensor([tiny.IDS, [*tiny.IDS[:3], 30, *tiny.IDS[4:]], tiny.IDS[::-1]])
    order = torch.tensor([1, 2, 0])
    with capture(model) as taken, torch.no_grad():
        past = model(ids, use_cache=True).past_key_values
        past.reorder_cache(order)
        model(torch.tensor([[9], [9], [9]]), past_key_values=past, use_cache=True)
    for row, att in zip(ids[order].tolist(), taken.attentions, strict=True):
        close(att, alone(model, [*row, 9]), atol=2e-5)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("several", [1, 2])
def test_beams_of_an_encoder_decoder(name: str, several: int) -> None:
    model, texts = tiny.model(name), [tiny.IDS, [*tiny.IDS[:4], 0, 0, 0]]
    mask = (torch.tensor(texts) != 0).long()
    with capture(model, standin.tokenizer()) as taken:
        out = model.generate(torch.tensor(texts), attention_mask=mask, num_return_sequences=several, **BEAMS)
    for number, (ids, att) in enumerate(zip(out[:, :-1], taken.attentions, strict=True)):
        row = [i for i in texts[number // several] if i]
        inputs = {"input_ids": torch.tensor([row]), "decoder_input_ids": ids[None]}
        expected = capture(model, standin.tokenizer(), inputs=inputs)
        close(att, expected, atol=2e-5)
        assert att["cross"].keys == expected["cross"].keys and att["cross"].queries == expected["cross"].queries


def test_what_a_batch_goes_on_with_behind_the_end_is_cut() -> None:
    model = tiny.model("llama")
    prompts = torch.tensor([tiny.IDS, tiny.IDS[::-1], [9] * 7])
    ends = list(range(3, 13))
    for beams in (1, 3):
        with capture(model) as taken:
            out = model.generate(prompts, num_beams=beams, max_new_tokens=9, do_sample=False, eos_token_id=ends)
        lengths = set()
        for ids, att in zip(out.tolist(), taken.attentions, strict=True):
            end = next((i for i in range(7, len(ids)) if ids[i] in ends), len(ids) - 1)
            lengths.add(end)
            close(att, alone(model, ids[:end]), atol=2e-5)
        assert len(lengths) > 1


def test_several_calls_of_generate_in_one_capture() -> None:
    model = tiny.model("llama")
    with capture(model) as taken:
        first = model.generate(torch.tensor([tiny.IDS]), num_beams=2, **GREEDY)
        second = model.generate(torch.tensor([tiny.IDS[:3]]), prompt_lookup_num_tokens=2, **GREEDY)
        third = model.generate(torch.tensor([tiny.IDS[:4]]), num_return_sequences=2, max_new_tokens=3, do_sample=True)
    rows = [*first.tolist(), *second.tolist(), *third.tolist()]
    for ids, att in zip(rows, taken.attentions, strict=True):
        end = next((i for i in range(3, len(ids)) if ids[i] == 2), len(ids) - 1)
        close(att, alone(model, ids[:end]), atol=2e-5)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt-oss"])
def test_a_static_cache_and_padding_on_the_left(name: str, beams: int) -> None:
    model = tiny.model(name, **(WINDOW_FIRST if name in ("gemma3", "gpt-oss") else {}))
    ids = torch.tensor([tiny.IDS, [0, 0, 0, *tiny.IDS[:4]]])
    static = {"cache_implementation": "static", "disable_compile": True, "num_beams": beams}
    with capture(model, standin.tokenizer()) as taken:
        out = model.generate(input_ids=ids, attention_mask=(ids != 0).long(), **static, **GREEDY)
    first, second = taken.attentions
    close(first, alone(model, out[0, :-1].tolist()), atol=2e-5)
    close(second, alone(model, out[1, 3:-1].tolist()), atol=2e-5)
    assert second.only.queries[:4] == first.only.queries[:4]


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
