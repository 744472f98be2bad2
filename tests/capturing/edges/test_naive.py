"""Norm, ALTI and the mixing ratio equal what the numbers of the model's modules give, family by family."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from attnflow.capturing.capture import capture
from tests.capturing.edges import naive
from tests.zoo.build import build

QUICK = [
    "bert", "roberta", "distilbert", "albert", "modernbert", "gpt2", "llama", "mistral", "gemma2", "granite", "gpt_oss",
    "bart", "t5", "vit", "clip",
]  # fmt: skip
MORE = [
    "electra", "xlm-roberta", "camembert", "data2vec-text", "deit", "dinov2", "ernie", "esm", "gpt_neo", "qwen2",
    "qwen3", "qwen2_moe", "qwen3_moe", "phi3", "olmo", "olmo2", "olmoe", "starcoder2", "stablelm", "smollm3", "glm",
    "glm4", "gemma", "gemma3_text", "mixtral", "ministral", "exaone4", "arcee", "apertus", "helium", "nemotron",
    "persimmon", "mbart", "marian", "pegasus", "m2m_100", "blenderbot", "plbart", "whisper", "speech_to_text",
    "wav2vec2", "hubert", "unispeech", "siglip_vision_model", "clip_vision_model", "beit", "vit_msn", "vivit",
    "videomae", "audio-spectrogram-transformer", "xglm", "megatron-bert", "layoutlm", "roberta-prelayernorm",
    "roc_bert", "splinter", "mobilebert", "nomic_bert", "eurobert", "deepseek_v3", "jetmoe", "seed_oss",
    "hunyuan_v1_dense", "dots1", "bitnet", "biogpt", "time_series_transformer", "trocr", "luke", "ijepa", "yolos",
    "dpt", "altclip", "blip_text_model",
]  # fmt: skip


def shaken(kind: str, wide: bool = False) -> tuple[Any, dict[str, Any]]:
    """A small model whose norms have gains and biases, and whose attention is not uniform; in float64 if ``wide``."""
    tiny = build(kind)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in tiny.model.parameters():
            parameter.copy_(parameter * 3 if parameter.ndim > 1 else parameter + torch.randn_like(parameter) / 5)
    if not wide:
        return tiny.model, tiny.inputs
    floats = {k: v.double() for k, v in tiny.inputs.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    return tiny.model.double(), {**tiny.inputs, **floats}


def difference(kind: str, edges: str, wide: bool = False) -> tuple[int, float]:
    """(how many calls the naive way saw, the largest difference from a captured matrix)."""
    model, inputs = shaken(kind, wide)
    wanted = naive.naive(model, inputs, edges)
    got = capture(model, inputs=copy.deepcopy(inputs), edges=edges, dtype="float64" if wide else "float32")
    found = [w for block in (got[0] if isinstance(got, list) else got).blocks.values() for w in block.weights]
    return len(wanted), max(min(np.abs(one - w).max() for w in found if w.shape == one.shape) for one in wanted)


def compare(kind: str, edges: str) -> int:
    """How many calls the naive way saw; all are equal, or differ by rounding, which double precision takes away."""
    count, far = difference(kind, edges)
    assert far < 2e-5 or difference(kind, edges, wide=True)[1] < 1e-5, (kind, edges, far)
    return count


@pytest.mark.parametrize("edges", ["norm", "alti"])
@pytest.mark.parametrize("kind", QUICK)
def test_equal_to_the_naive_form(kind: str, edges: str):
    assert compare(kind, edges) >= 2


@pytest.mark.slow
def test_equal_to_the_naive_form_on_sixty_families():
    seen, other = set(QUICK), []
    for kind in MORE:
        try:
            compare(kind, "alti")
            compare(kind, "norm")
            seen.add(kind)
        except naive.NotSeen:
            other.append(kind)
    assert len(seen) >= 60, other


@pytest.mark.parametrize("kind", ["bert", "llama", "gemma2", "gpt2"])
def test_mixing_ratios(kind: str):
    model, inputs = shaken(kind)
    wanted = naive.ratios(model, inputs)
    found = capture(model, inputs=copy.deepcopy(inputs), mixing=True)
    assert found.edges == "attention" and not found.residual_inside
    assert np.array_equal(found.weights, capture(model, inputs=copy.deepcopy(inputs)).weights)
    assert np.allclose(found.only.mixing, wanted, atol=1e-5)
    both = capture(model, inputs=copy.deepcopy(inputs), mixing=True, edges="norm")
    assert np.allclose(both.only.mixing, wanted, atol=1e-5)
