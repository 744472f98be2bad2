"""Every way to compose with every kind of edges, on encoders, decoders, encoder-decoders and vision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import Attention, capture, direct, flow, raw, rollout
from attnflow.attention import EDGES
from attnflow.errors import SelectionError
from tests.capturing import tiny

FAMILIES = ("bert", "llama", "gpt-oss", "mpnet", "t5", "bart", "vit")


def given(name: str) -> dict[str, Any]:
    if name in ("t5", "bart"):
        ids = {"input_ids": tiny.IDS, "decoder_input_ids": [2, 5, 6]}
        return {"inputs": {key: torch.tensor([value]) for key, value in ids.items()}}
    if name == "vit":
        return {"inputs": {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}}
    return {"text": tiny.IDS}


def one_number(outputs: Any) -> torch.Tensor:
    full = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    return full.flatten(1)[:, -3]


def captured(name: str, edges: str) -> Attention:
    target = {"target": one_number} if edges == "gradient" else {}
    return capture(tiny.model(name), None, edges=edges, **given(name), **target)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_way_composes_every_kind(name, edges):
    attention = captured(name, edges)
    found = {method.__name__: method(attention) for method in (raw, rollout, flow, direct)}
    assert all(np.isfinite(r.scores).all() and r.scores.min() >= 0 and r.edges == edges for r in found.values())
    assert len({r.scores.shape for r in found.values()}) == 1
    if edges != "gradient":
        for way in ("raw", "rollout"):
            np.testing.assert_allclose(found[way].scores.sum(-1), 1, atol=2e-3)
        layers = np.arange(1, len(found["direct"].scores) + 1)[:, None]
        np.testing.assert_allclose(found["direct"].scores.sum(-1) / layers, 1, atol=2e-3)
        # Rollout's own routing is a flow, so that the maximum is no smaller.
        assert (found["flow"].scores >= found["rollout"].scores - 2e-3).all()
    assert found["flow"].report is not None and len(found["flow"].report.figures["saturation"]) == len(found["flow"])
    np.testing.assert_allclose(found["direct"].scores[0], found["raw"].scores[0], atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_the_measured_residual_is_asked_of_the_model(name):
    model = tiny.model(name)
    found = rollout(model, None, residual="measured", **given(name))
    assert found.residual == "measured"
    attention = capture(model, None, mixing=True, **given(name))
    expected = rollout(attention, residual="measured").scores
    np.testing.assert_allclose(found.scores, expected, atol=1e-6)
    np.testing.assert_allclose(found.scores.sum(-1), 1, atol=1e-6)
    assert np.abs(expected - rollout(attention).scores).max() > 1e-2, "one half is not what these models do"


def test_methods_capture_what_they_are_asked_for():
    model = tiny.model("bert")
    for method in (raw, rollout, flow, direct):
        found = method(model, None, tiny.IDS, edges="alti", position=0)
        np.testing.assert_allclose(found.scores, method(captured("bert", "alti"), position=0).scores, atol=1e-6)
        assert found.edges == "alti" and found.attention.residual_inside
    many = rollout(model, None, [tiny.IDS, tiny.IDS[:4]], edges="norm")
    assert [r.scores.shape[-1] for r in many] == [7, 4]
    with pytest.raises(SelectionError, match="residual=0.5 was given, but alti edges hold the residual"):
        rollout(model, None, tiny.IDS, edges="alti", residual=0.5)


def test_files_keep_the_edges(tmp_path):
    before = captured("t5", "alti")
    before.save(tmp_path / "a.safetensors")
    after = Attention.load(tmp_path / "a.safetensors")
    assert repr(after) == repr(before) and after.certificate == before.certificate
    np.testing.assert_array_equal(rollout(after).scores, rollout(before).scores)
