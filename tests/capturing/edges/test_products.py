"""Products that are known beforehand: what value zeroing spares gives the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from attnflow.capturing.capture import capture
from attnflow.capturing.edges import replay
from attnflow.capturing.edges.products import NormedMaps, Ran, matrix_of, norm_of, normed_maps, noted, remembered
from tests.capturing import tiny

IDS = {"input_ids": torch.tensor([tiny.IDS])}


def drawn(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return module


def ran(module: nn.Module, *shape: int) -> Ran:
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    return Ran(module, x, module(x))


@pytest.mark.parametrize(
    ("module", "centred"), [(nn.LayerNorm(8), True), (LlamaRMSNorm(8), False), (Gemma2RMSNorm(8), False)]
)
def test_a_norm_is_found_by_what_it_does(module: nn.Module, centred: bool):
    call = ran(drawn(module), 2, 3, 8)
    norm = norm_of(call)
    assert norm is not None and norm.centred == centred
    again = norm.size(call.x, call.out) * norm.direction(call.x) + norm.shift
    assert torch.allclose(again, call.out, atol=1e-5)


@pytest.mark.parametrize(
    "module", [nn.ReLU(), nn.Identity(), nn.Dropout(), nn.Softmax(-1), nn.GroupNorm(3, 3), nn.LayerNorm([3, 8])]
)
def test_what_is_no_norm_of_a_position(module: nn.Module):
    assert norm_of(ran(module.eval(), 2, 3, 8)) is None


def test_an_odd_width_or_other_shape_is_left_alone():
    assert norm_of(ran(nn.LayerNorm(7), 2, 3, 7)) is None
    assert norm_of(ran(nn.Linear(8, 4), 2, 3, 8)) is None


def test_the_matrix_of_a_linear_module():
    class Own(nn.Linear):
        pass

    linear, turned = nn.Linear(3, 2), Conv1D(2, 3)
    assert torch.equal(matrix_of(linear), linear.weight.T)  # type: ignore[arg-type]
    assert torch.equal(matrix_of(turned), turned.weight)  # type: ignore[arg-type]
    assert matrix_of(Own(3, 2)) is None and matrix_of(nn.ReLU()) is None


class Block(nn.Module):
    """x + proj(x), a norm, and two maps that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.up, self.gate = nn.Linear(4, 6), nn.Linear(4, 6, bias=False)
        drawn(self)

    def forward(self, x: torch.Tensor, less: Any = 0.0) -> torch.Tensor:
        normed = self.norm(x + self.proj(x) - less)
        return self.up(normed) * self.gate(normed)


def test_maps_give_what_they_would_compute():
    block, x = Block(), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    weights, heads = torch.rand(2, 3, 2), torch.randn(2, 2, 4)
    with torch.no_grad():
        with noted(block) as calls:
            block(x)
        with noted(block) as without:
            block(x, weights @ heads)
        maps = normed_maps(calls, block.proj, without, weights @ heads)
        before = remembered(calls, block.proj)
        assert maps is not None and before is not None
        assert maps.maps == [block.up, block.gate] and [c.module for c in before.calls] == [block.proj]
        for start in (0, 2):
            wanted = block(x, weights @ heads)[:, start:]
            missing = maps.missing_of(weights[:, start:], heads)
            with before.instead(), maps.instead(missing, start):
                assert torch.allclose(block(x[:, start:], weights[:, start:] @ heads), wanted, atol=1e-4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in block.modules())


def test_a_norm_before_attention_and_a_module_that_runs_twice_are_left_alone():
    block, x, less = Block(), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    with noted(block) as calls:
        block(x)
    with noted(block) as without:
        block(x, less)
    assert normed_maps(calls, block.proj, without, less) is not None
    assert normed_maps(calls, block.norm, without, less) is None
    assert normed_maps([*calls, *calls], block.proj, without, less) is None
    assert remembered([*calls, *calls], block.proj) is None and remembered(calls, nn.Linear(1, 1)) is None


def test_a_hook_of_the_users_is_respected():
    block, x, less = Block(), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    handle = block.norm.register_forward_hook(lambda m, a, out: out * 2)
    with noted(block) as calls:
        block(x)
    handle.remove()
    with noted(block) as without:
        block(x, less)
    assert block.norm not in [c.module for c in calls]
    assert normed_maps(calls, block.proj, without, less) is None


@pytest.mark.parametrize("share", [1.0, 0.999, 1.2])
def test_a_norm_that_is_given_something_else_than_what_is_missing_is_left_alone(share: float):
    """As behind a layer scale: what comes after has small weights, so that its output would hardly tell."""
    block, x, less = Block(), torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    with noted(block) as calls:
        block(x)
    with noted(block) as without:
        block(x, share * less)
    assert (normed_maps(calls, block.proj, without, less) is not None) == (share == 1.0)


@pytest.mark.parametrize(
    ("name", "spared"),
    [("bert", True), ("gpt2", True), ("llama", True), ("modernbert", True), ("t5", True), ("gemma2", False)],
)
def test_spared_or_not_the_edges_are_the_same(name: str, spared: bool, monkeypatch: pytest.MonkeyPatch):
    """gemma2 has a norm between attention and the residual stream: the trial run says no."""
    model, given = (
        tiny.model(name),
        {**IDS, **({"decoder_input_ids": torch.tensor([[2, 5, 6]])} if name == "t5" else {})},
    )
    used: list[NormedMaps | None] = []
    base = replay.Replay.base
    monkeypatch.setattr(replay.Replay, "base", lambda self: (base(self), used.append(self.ahead))[0])
    mine = capture(model, inputs=given, edges="value_zeroing")
    assert all(found is not None for found in used) == spared and used
    for spare in ("normed_maps", "remembered"):
        monkeypatch.setattr(replay, spare, lambda *calls: None)
    plain = capture(model, inputs=given, edges="value_zeroing")
    pairs = [(mine[b], plain[b]) for b in ("encoder", "decoder", "cross")] if name == "t5" else [(mine, plain)]
    for one, other in pairs:
        assert np.allclose(one.weights, other.weights, atol=1e-5)


def test_a_trial_is_judged_by_what_changes():
    """An output of 1,000 and a change of 0.05: half of the change is 0.00003 of the output, and wrong all the same."""
    whole = torch.tensor([[[1000.0, 0.0], [1.0, 0.0]]])
    change = torch.tensor([[[0.0, 0.0], [0.05, 0.0]]])
    trial = replay.Trial(0, whole, whole - change)
    assert trial.passed(whole - change) and trial.passed(whole - change * 1.001)
    assert not trial.passed(whole - change / 2) and not trial.passed(torch.empty(0))
