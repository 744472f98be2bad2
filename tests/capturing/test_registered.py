"""Attention functions of the user's own: their weights, those of eager with the same output, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AfmoeConfig, AfmoeForCausalLM, AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnflow import AttnFlowError, capture
from tests.capturing import tiny
from tests.capturing.test_generate import close
from tests.capturing.test_restore import fingerprint


def sharper(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **kwargs: Any) -> Any:
    """Attention at half the temperature."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    scores = 2 * query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def silent(*args: Any, **kwargs: Any) -> Any:
    return sharper(*args, **kwargs)[0], None


def lying(*args: Any, **kwargs: Any) -> Any:
    out, weights = sharper(*args, **kwargs)
    return out, torch.full_like(weights, 1 / weights.shape[-1])


def counted(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
    """sdpa with something of the user's own around it."""
    module.calls = getattr(module, "calls", 0) + 1
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **kwargs)


@pytest.fixture
def register() -> Iterator[Any]:
    names: list[str] = []

    def add(name: str, function: Any, mask: Any = eager_mask) -> str:
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)
        names.append(name)
        return name

    yield add
    for name in names:
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_weights_that_the_model_computes_with(name: str, register: Any) -> None:
    model = tiny.model(name)
    eager = capture(model, None, tiny.IDS)
    assert eager.settings["implementation"] == "sdpa"
    model.set_attn_implementation(register("mine", sharper))
    before, mapping = fingerprint(model), dict(AttentionInterface._global_mapping)
    att = capture(model, None, tiny.IDS)
    assert att.settings["implementation"] == "mine"
    assert np.abs(att.weights - eager.weights).max() > 0.02
    assert fingerprint(model) == before and dict(AttentionInterface._global_mapping) == mapping
    with torch.no_grad():
        shown = model(torch.tensor([tiny.IDS]), output_attentions=True).attentions
    np.testing.assert_allclose(att.weights[0], shown[0].mean(1)[0], atol=1e-6)
    assert not ALL_ATTENTION_FUNCTIONS._local_mapping


def test_a_model_that_gives_the_mask_by_name(register: Any) -> None:
    def mine(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        return sharper(module, query, key, value, attention_mask, **kwargs)

    sizes = {**tiny.SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_dense_layers": 2, "moe_intermediate_size": 8}
    config = AfmoeConfig(**sizes, num_experts=2, num_experts_per_tok=1, layer_types=["full_attention"] * 2)
    config._attn_implementation = register("mine", mine)
    torch.manual_seed(0)
    model = AfmoeForCausalLM(config).eval()
    assert capture(model, None, tiny.IDS).settings["implementation"] == "mine"


def test_without_weights_eager_counts_if_it_gives_the_same_output(register: Any) -> None:
    model = tiny.model("llama")
    expected = capture(model, None, tiny.IDS)
    model.set_attn_implementation(register("counted", counted, sdpa_mask))
    att = capture(model, None, tiny.IDS)
    close(att, expected)
    assert any("eager's, with the same output" in n for n in att.notes)
    assert model.model.layers[0].self_attn.calls == 1


@pytest.mark.parametrize("function", [silent, lying])
def test_what_cannot_be_told_is_refused(function: Any, register: Any) -> None:
    model = tiny.model("bert")
    model.set_attn_implementation(register("odd", function))
    before = fingerprint(model)
    with pytest.raises(AttnFlowError, match=r"a function of your own \('odd', tests.*gives another output. Return"):
        capture(model, None, tiny.IDS)
    with capture(model) as taken:
        model(torch.tensor([tiny.IDS]))
    with pytest.raises(AttnFlowError, match="a function of your own"):
        _ = taken.attention
    assert fingerprint(model) == before


def test_weights_are_not_changed_behind_it(register: Any) -> None:
    model = tiny.model("bert-classifier")
    model.set_attn_implementation(register("mine", sharper))
    for options in ({"gradients": 1}, {"replace": lambda call, weights: weights}, {"edges": "norm"}):
        with pytest.raises(AttnFlowError, match="into which no other weights can be put"):
            capture(model, None, tiny.IDS, **options)


def test_a_name_of_transformers_that_was_taken_over() -> None:
    model = tiny.model("bert")
    before = AttentionInterface._global_mapping["sdpa"]
    AttentionInterface.register("sdpa", sharper)
    AttentionMaskInterface.register("sdpa", eager_mask)
    try:
        att = capture(model, None, tiny.IDS)
        with torch.no_grad():
            shown = model(torch.tensor([tiny.IDS]), output_attentions=True).attentions
        np.testing.assert_allclose(att.weights[0], shown[0].mean(1)[0], atol=1e-6)
    finally:
        AttentionInterface.register("sdpa", before)
        AttentionMaskInterface.register("sdpa", sdpa_mask)
