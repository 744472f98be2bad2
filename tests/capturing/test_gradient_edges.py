"""Gradient edges: Chefer's own way as the oracle, hand-made numbers, batches, targets, every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import capture, direct, flow, raw, rollout
from attnflow.capturing import gradient_edges
from attnflow.capturing.reduce import Reduction
from attnflow.errors import CaptureError, SelectionError
from tests.capturing import tiny
from tests.capturing.test_padding import ROWS, padded
from tests.capturing.test_restore import fingerprint
from tests.zoo.build import build
from tests.zoo.edges import doubled, shake


def by_retain_grad(model: Any, number: Any) -> list[np.ndarray]:
    """Oracle: attentions as Hugging Face returns them in eager, their ``.grad``, (A ⊙ ∇A)⁺, the mean of the heads."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        outputs = model(input_ids=torch.tensor([tiny.IDS]), output_attentions=True)
        for weights in outputs.attentions:
            weights.retain_grad()
        number(outputs).backward()
    finally:
        model.set_attn_implementation(before)
        model.zero_grad()
    return [(w.detach() * w.grad).clamp(min=0)[0].mean(0).numpy() for w in outputs.attentions]


def test_weights_that_are_used_twice_have_the_sum_of_both_gradients():
    """DiffLlama multiplies them with both halves of the values, in two calls."""
    made = doubled(build("diffllama"))
    shake(made)
    edges = capture(made.model, inputs=made.inputs, edges="gradient", target=cubes, dtype="float64")
    kept = capture(made.model, inputs=made.inputs, gradients=cubes, heads=None, dtype="float64").only
    assert edges.weights.shape == (2, 12, 12) and kept.gradients is not None
    for mine, weights, slopes in zip(edges.weights, kept.weights, kept.gradients, strict=True):
        wanted = np.clip(np.asarray(weights) * np.asarray(slopes), 0, None).mean(0)
        assert np.allclose(mine, wanted, atol=1e-5 * wanted.max()) and wanted.max() > 0


def cubes(outputs: Any) -> torch.Tensor:
    return outputs.last_hidden_state[:, -1].pow(3).sum(-1)


def last(token: int) -> Any:
    return lambda outputs: outputs.logits[0, -1, token]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss", "opt"])
def test_language_models_give_what_retained_gradients_give(name):
    model = tiny.model(name)
    att = capture(model, None, tiny.IDS, edges="gradient", target=7)
    expected = by_retain_grad(model, last(7))
    assert att.edges == "gradient" and not att.residual_inside and att.only.gradients is None
    for a, b in zip(att.only.weights, expected, strict=True):
        assert b.max() > 0
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * b.max())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", ["fused", "by rows", "general"])
def test_all_ways_to_compute_them_agree(kind, frozen, monkeypatch):
    model = tiny.model("bert-classifier")
    expected = by_retain_grad(model, lambda outputs: outputs.logits[0, 1])
    model.requires_grad_(not frozen)
    if kind == "general":
        monkeypatch.setattr(gradient_edges.plain, "usable", lambda *_, **__: False)
    att = capture(model, None, tiny.IDS, edges="gradient", target=1, block=3 if kind == "by rows" else None)
    for a, b in zip(att.only.weights, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * b.max())


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_both_towers_and_the_cross_attention(name):
    model = tiny.model(name)
    inputs = {"input_ids": torch.tensor([tiny.IDS]), "decoder_input_ids": torch.tensor([[2, 5, 6, 7]])}
    att = capture(model, inputs=inputs, edges="gradient", target=9, heads="all")
    whole = capture(model, inputs=inputs, gradients=lambda out: out.logits[:, -1, 9])
    assert set(att.blocks) == {"encoder", "decoder", "cross"}
    for block in att.blocks:
        for edges, w, g in zip(att[block].weights, whole[block].weights, whole[block].gradients, strict=True):
            np.testing.assert_allclose(edges, np.clip(w * g, 0, None), rtol=1e-3, atol=1e-5 * np.abs(w * g).max())
    found = rollout(att)
    assert found.settings["residual"] == "add" and found.scores.shape[1:] == (4, 4 + len(tiny.IDS))


@pytest.mark.parametrize("name", [*tiny.TEXT, "vit", "swin"])
def test_every_family_gives_its_weights_times_their_gradients(name):
    model = tiny.model(name)
    given: dict[str, Any] = {"text": tiny.IDS}
    if name in ("vit", "swin"):
        given = {"inputs": {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}}

    def number(outputs: Any) -> torch.Tensor:
        full = outputs.logits if "logits" in outputs else outputs.last_hidden_state
        return full.flatten(1)[:, -7]

    att = capture(model, None, edges="gradient", target=number, heads="all", **given)
    whole = capture(model, None, gradients=number, **given)
    for block in att.blocks:
        for edges, w, g in zip(att[block].weights, whole[block].weights, whole[block].gradients, strict=True):
            # The last column of weights with a sink is what it took, which has no gradient and no edge.
            product = np.clip(w[..., : g.shape[-1]] * g, 0, None)
            np.testing.assert_allclose(edges, product, rtol=1e-4, atol=2e-6 * product.max())


def test_weights_that_a_model_only_returns_are_refused():
    with pytest.raises(CaptureError, match="or the model returns weights that it does not compute with"):
        capture(tiny.model("longformer"), None, tiny.IDS, edges="gradient")


def test_two_tokens_by_hand():
    # Weights ½ (all queries are 0), values +1 and −1, ∂y/∂o = 2 at the first output and 0 at the second:
    # A ⊙ ∂y/∂A = ½·2·(+1, −1), of which the positive part is (1, 0).
    zero, values = torch.zeros(1, 1, 2, 1), torch.tensor([[[[1.0], [-1.0]]]])
    mixture = gradient_edges.Mixture(zero, zero, zero, values, None, None)
    gradient = torch.tensor([[[[2.0], [0.0]]]])
    found = gradient_edges._of_mixture(mixture, gradient, Reduction("mean", stochastic=False), None)
    assert found.tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


@pytest.mark.parametrize(
    ("heads", "reduce"),
    [("mean", lambda x: x.mean(0)), ("max", lambda x: x.max(0)), ("min", lambda x: x.min(0)), (2, lambda x: x[2]),
     ([0, 3], lambda x: x[[0, 3]].mean(0))],
)  # fmt: skip
def test_heads_are_brought_down_while_the_gradient_runs(heads, reduce):
    model = tiny.model("gpt2")
    kept = capture(model, None, tiny.IDS, edges="gradient", target=7, heads="all")
    att = capture(model, None, tiny.IDS, edges="gradient", target=7, heads=heads)
    for a, b in zip(att.only.weights, kept.only.weights, strict=True):
        np.testing.assert_allclose(a, reduce(b), atol=1e-8)
    assert np.allclose(rollout(kept, heads=heads).scores, rollout(att).scores, atol=1e-6)


# A BERT classifier reads its first position, which left padding would make a padded one.
@pytest.mark.parametrize(
    ("name", "side"),
    [("bert-classifier", "right"), *((name, side) for name in ("gpt2", "llama") for side in ("left", "right"))],
)
def test_a_padded_batch_is_what_each_text_is_alone(name, side):
    model = tiny.model(name)
    together = capture(model, inputs=padded(side), edges="gradient")
    for row, one in zip(ROWS, together, strict=True):
        alone = capture(model, None, row, edges="gradient")
        assert one.settings["target"] == alone.settings["target"]
        assert one.settings["target_position"] == alone.settings["target_position"]
        for a, b in zip(one.only.weights, alone.only.weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4 * b.max())


def test_targets_are_those_of_gradients():
    model = tiny.model("bert-classifier")
    with torch.no_grad():
        best = int(model(torch.tensor([tiny.IDS])).logits.argmax())
    predicted = capture(model, None, tiny.IDS, edges="gradient")
    assert predicted.settings["target"] == best and predicted.settings["score"] == "logit"
    named = capture(model, None, tiny.IDS, edges="gradient", target=f"LABEL_{best}")
    own = capture(model, None, tiny.IDS, edges="gradient", target=lambda out: out.logits[:, best])
    for other in (named, own):
        assert all(map(np.array_equal, predicted.only.weights, other.only.weights))
    assert own.settings["explains"] == "function"
    many = capture(model, None, [tiny.IDS, tiny.IDS], edges="gradient", target=[0, 1])
    assert [a.settings["target"] for a in many] == [0, 1]
    pair = capture(model, None, tiny.IDS, edges="gradient", target=(0, 1))
    assert pair.settings["target"] == [0, 1]
    base = capture(tiny.model("bert"), None, tiny.IDS, edges="gradient")
    assert base.settings["target_label"] == "Σ|h|"


def test_methods_explain_the_position_that_they_read():
    model = tiny.model("gpt2")
    for method in (raw, rollout, flow, direct):
        found = method(model, None, tiny.IDS, edges="gradient", position=3)
        assert found.settings["target_position"] == 3 and found.settings["position"] == 3
        assert found.settings["edges"] == "gradient"
        assert not found.scores[:, 4:].any() and found.scores[:, :4].any()
    att = capture(model, None, tiny.IDS, edges="gradient", position=3)
    again = rollout(model, None, tiny.IDS, edges="gradient", position=3)
    assert np.allclose(rollout(att, position=3).scores, again.scores)
    classified = raw(tiny.model("bert-classifier"), None, tiny.IDS, edges="gradient", position=0, target=1)
    assert classified.settings["target_position"] is None and classified.settings["position"] == 0


@pytest.mark.parametrize("name", ["bert-classifier", "llama", "t5", "mpnet"])
def test_the_model_is_as_it_was(name):
    model = tiny.model(name)
    before = fingerprint(model)
    with torch.inference_mode():
        capture(model, None, tiny.IDS, edges="gradient", max_new_tokens=2)
    with pytest.raises(SelectionError):
        capture(model, None, tiny.IDS, edges="gradient", target=10_000, max_new_tokens=2)
    assert fingerprint(model) == before


def test_half_precision():
    model = tiny.model("llama")
    exact = capture(model, None, tiny.IDS, edges="gradient", target=3)
    half = capture(model.to(torch.bfloat16), None, tiny.IDS, edges="gradient", target=3)
    for a, b in zip(half.only.weights, exact.only.weights, strict=True):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] > 0.95


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"edges": "gradient", "gradients": True}, "edges='gradient' and gradients= were given"),
        ({"edges": "attention", "target": 1}, "target= belongs to edges='gradient', but these are attention edges"),
        ({"position": 1}, "position= belongs to edges='gradient'"),
        ({"edges": "gradients"}, "edges='gradients' is not known"),
        ({"edges": "gradient", "target": 99}, "target=99, but the model has 2 classes: use 0 to 1"),
        ({"edges": "gradient", "target": 1.5}, "target=1.5 is not known. Use None"),
        ({"edges": "gradient", "target": [1, 0]}, "target= names 2 targets for 1 examples"),
    ],
)
def test_errors(options, text):
    with pytest.raises(SelectionError, match=text):
        capture(tiny.model("bert-classifier"), None, tiny.IDS, **options)


def test_a_run_of_ones_own_cannot_have_them():
    with pytest.raises(SelectionError, match="edges='gradient' needs a text or inputs="):
        capture(tiny.model("gpt2"), edges="gradient")


def test_a_target_that_depends_on_nothing_is_refused():
    def cut(outputs: Any) -> torch.Tensor:
        return outputs.logits[:, 0, 0].detach().requires_grad_()

    with pytest.raises(CaptureError, match="The target does not depend on any attention weight"):
        capture(tiny.model("gpt2"), None, tiny.IDS, edges="gradient", target=cut)


def test_rollout_of_them_is_chefers_rule():
    model = tiny.model("bert-classifier")
    expected = np.eye(len(tiny.IDS))
    for cam in by_retain_grad(model, lambda outputs: outputs.logits[0, 1]):
        expected = expected + cam.astype(np.float64) @ expected
    found = rollout(model, None, tiny.IDS, edges="gradient", target=1, layer=-1)
    np.testing.assert_allclose(found.scores[0], expected, rtol=1e-5)
    assert "every layer was kept" in found.settings["stream"]
