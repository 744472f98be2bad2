"""Value zeroing equals the whole model run again, position by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from attnflow.capturing.capture import capture
from attnflow.capturing.edges import replay, value_zeroing
from attnflow.errors import CaptureError, SelectionError
from tests.capturing import tiny
from tests.capturing.edges import naive
from tests.zoo.build import build
from tests.zoo.check import differences, in_eager, snapshot
from tests.zoo.edges import doubled, shake

IDS = {"input_ids": torch.tensor([tiny.IDS])}
BOTH = {**IDS, "decoder_input_ids": torch.tensor([[2, 5, 6]])}


def layers_of(model: nn.Module) -> list[naive.Entry]:
    return [(m, 0) for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


@pytest.mark.parametrize("narrow", [1, replay.NARROW])
@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama", "gemma2", "modernbert", "gpt-oss", "distilbert"])
def test_equal_to_running_the_model_again(name: str, narrow: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replay, "NARROW", narrow)
    model = tiny.model(name)
    wanted = naive.value_zeroing(model, IDS, layers_of(model))
    before = snapshot(model)
    got = capture(model, inputs=IDS, edges="value_zeroing")
    assert differences(before, snapshot(model)) == []
    assert (got.edges, got.residual_inside) == ("value_zeroing", True)
    assert np.allclose(got.weights, wanted, atol=2e-5)


@pytest.mark.parametrize("kind", ["depth_anything", "lasr_encoder", "diffllama"])
def test_what_comes_between_attention_and_the_norm_behind_it(kind: str):
    """A layer scale; a convolution; and one module that calls attention twice with the same weights."""
    made = build(kind)
    shake(made)
    double = doubled(in_eager(made))
    wanted = naive.value_zeroing(double.model, double.inputs, naive.entries_of_calls(double.model, double.inputs))
    got = capture(double.model, inputs=double.inputs, edges="value_zeroing", dtype="float64")
    found = [w for block in got.blocks.values() for w in block.weights]
    for theirs in wanted:
        assert min(float(np.abs(mine - theirs).max()) for mine in found if mine.shape == theirs.shape) < 1e-6


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_encoder_decoder(name: str):
    model = tiny.model(name)
    encoder, decoder = layers_of(model)[:2], layers_of(model)[2:]
    wanted = naive.value_zeroing(model, BOTH, [*encoder, *(x for layer in decoder for x in (layer, layer))])
    got = capture(model, inputs=BOTH, edges="value_zeroing")
    found = [
        *got["encoder"].weights,
        *(w for pair in zip(got["decoder"].weights, got["cross"].weights, strict=True) for w in pair),
    ]
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.allclose(mine, theirs, atol=2e-5)


class Once(nn.Module):
    """A part of a layer whose code asks for a number: several positions at once cannot go through."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert float(x.sum()) != 0.5
        return self.inner(x)


def test_one_position_after_the_other_gives_the_same():
    model = tiny.model("bert")
    wanted = capture(model, inputs=IDS, edges="value_zeroing")
    model.encoder.layer[1].output.dense = Once(model.encoder.layer[1].output.dense)
    got = capture(model, inputs=IDS, edges="value_zeroing")
    assert np.allclose(got.weights, wanted.weights, atol=1e-5)
    assert any("1 layers were run again for one position after the other" in note for note in got.notes)


@pytest.mark.parametrize("name", ["mpnet", "bloom", "falcon", "xlnet"])
def test_a_softmax_of_the_models_own(name: str, monkeypatch: pytest.MonkeyPatch):
    """The tap: a weight of zero, put in by hand, has the same effect."""
    model = tiny.model(name)
    got = capture(model, inputs=IDS, edges="value_zeroing")
    outputs: dict[int, torch.Tensor] = {}
    layer = model.get_submodule(_first_layer(model))
    handle = layer.register_forward_hook(lambda m, a, o: outputs.update({0: o[0] if isinstance(o, tuple) else o}))

    def run(column: int | None) -> torch.Tensor:
        def zeroed(call: Any, weights: torch.Tensor) -> torch.Tensor | None:
            if column is None or call.layer != 0:
                return None
            changed = weights.clone()
            changed[..., column] = 0
            return changed

        capture(model, inputs=IDS, replace=zeroed)
        found = outputs[0].double()
        return found[:, 0] if found.shape[0] == len(tiny.IDS) else found[0]

    base = run(None)
    rows = torch.stack([1 - torch.cosine_similarity(base, run(j), dim=-1) for j in range(len(tiny.IDS))], 1)
    handle.remove()
    assert np.allclose(got.weights[0], (rows / rows.sum(-1, keepdim=True)).numpy(), atol=1e-4)


def _first_layer(model: nn.Module) -> str:
    return next(n for n, m in model.named_modules() if n.rpartition(".")[2] == "0" and "ttention" in repr(m))


def test_a_batch_is_as_one_by_one():
    model = tiny.model("bert")
    given = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 3, 0, 0]]),
        "attention_mask": torch.tensor([[1] * 4, [1, 1, 0, 0]]),
    }
    both = capture(model, inputs=given, edges="value_zeroing")
    one = capture(model, inputs={"input_ids": torch.tensor([[9, 3]])}, edges="value_zeroing")
    assert np.allclose(both[1].weights, one.weights, atol=1e-5)


class Shifted(nn.Module):
    """A part of a layer that looks at the position before, so that later positions cannot be run alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1] ** 2


def starts_of(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[list[int]], list[bool]]:
    """Value zeroing of a model, where each layer began, and whether its projection was spared."""
    starts: list[list[int]] = []
    spared: list[bool] = []
    before = replay.Replay._starts

    def noted(self: Any, output: torch.Tensor) -> list[int]:
        found = before(self, output)
        starts.append(found)
        spared.append(self.projection is not None)
        return found

    monkeypatch.setattr(replay.Replay, "_starts", noted)
    monkeypatch.setattr(replay, "NARROW", 1)
    return capture(model, inputs=IDS, edges="value_zeroing"), starts, spared


def test_what_is_spared(monkeypatch: pytest.MonkeyPatch):
    """Causal layers run the positions that change, others all; the projection is not run where it can be told."""
    got, starts, spared = starts_of(tiny.model("llama"), monkeypatch)
    assert len(starts) == 2 and all(len(s) > 2 for s in starts) and all(spared)
    got, starts, spared = starts_of(tiny.model("bert"), monkeypatch)
    assert starts == [[0], [0]] and all(spared)
    assert got.only.weights[0].shape == (len(tiny.IDS),) * 2


def test_positions_that_cannot_be_run_alone(monkeypatch: pytest.MonkeyPatch):
    model = tiny.model("llama")
    model.model.layers[0].mlp = Shifted(model.model.layers[0].mlp)
    got, starts, _ = starts_of(model, monkeypatch)
    assert starts[0] == [0] and len(starts[1]) > 2
    assert np.allclose(got.weights, naive.value_zeroing(model, IDS, layers_of(model)), atol=2e-5)


def test_a_projection_that_does_more_is_run(monkeypatch: pytest.MonkeyPatch):
    model = tiny.model("bert")
    handle = model.encoder.layer[0].attention.output.dense.register_forward_hook(lambda m, args, out: out.square())
    got, _, spared = starts_of(model, monkeypatch)
    assert spared == [False, True]
    assert np.allclose(got.weights, naive.value_zeroing(model, IDS, layers_of(model)), atol=2e-5)
    handle.remove()


def test_short_texts_are_run_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        replay.Replay, "_positionwise", lambda *_: pytest.fail("a step that a short text does not repay")
    )
    capture(tiny.model("llama"), inputs=IDS, edges="value_zeroing")


def test_causal_and_finite():
    got = capture(tiny.model("llama"), inputs=IDS, edges="value_zeroing")
    assert got.only.causal
    half = capture(tiny.model("llama").to(torch.bfloat16), inputs=IDS, edges="value_zeroing")
    assert np.isfinite(half.weights).all() and np.abs(half.weights - got.weights).max() < 0.1


def test_generated_tokens():
    model = tiny.model("gpt2")
    with capture(model, edges="value_zeroing") as taken:
        out = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    whole = capture(model, inputs={"input_ids": out[:, :-1]}, edges="value_zeroing")
    assert np.allclose(taken.attention.weights, whole.weights, atol=1e-4)


class Drifting(nn.Module):
    """A part of a layer that gives something else each time."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.times = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.times += 1
        return self.inner(x) * self.times


def test_refusals():
    model = tiny.model("bert")
    model.encoder.layer[1].output.dense = Drifting(model.encoder.layer[1].output.dense)
    before = snapshot(model)
    with pytest.raises(CaptureError, match="layer 1. cannot be run again .* gives something else when run again"):
        capture(model, inputs=IDS, edges="value_zeroing")
    assert differences(before, snapshot(model)) == []
    with pytest.raises(CaptureError, match="as with windows, so that the output of a position is not known"):
        capture(tiny.model("swin"), inputs={"pixel_values": torch.randn(1, 3, 32, 32)}, edges="value_zeroing")
    with pytest.raises(SelectionError, match="only parts have a mixing ratio"):
        capture(model, inputs=IDS, edges="value_zeroing", mixing=True)


def test_cosine_distance_keeps_its_digits():
    a = torch.tensor([1.0, 0.0])
    b = torch.tensor([1.0, 1e-4])
    assert float(value_zeroing.cosine_distance(a, b)) == pytest.approx(5e-9, rel=1e-3)
    assert value_zeroing.cosine_distance(a, a * (1 + 1e-7)) == 0
