"""Heads, layers, dtypes, gradients, replaced weights, unusual ways to load a model, and every error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import AttnFlowError, capture
from attnflow.capturing import Call
from attnflow.heads import reduce_heads
from tests.capturing import tiny


@pytest.mark.parametrize("name", ["bert", "llama", "mpnet", "gemma2"])
@pytest.mark.parametrize("heads", ["mean", "max", "min", 2, -1, [0, 3]])
def test_heads_are_reduced_as_they_would_be_afterwards(name: str, heads: Any) -> None:
    model = tiny.model(name)
    every = capture(model, None, tiny.IDS, heads="all")
    got = capture(model, None, tiny.IDS, heads=heads, block=3)
    for a, b in zip(got.only.weights, every.only.weights, strict=True):
        np.testing.assert_allclose(a, reduce_heads(b, heads), atol=1e-6)
    assert got.heads == (tuple(heads) if isinstance(heads, list) else heads)


def test_layers_by_their_number() -> None:
    model = tiny.model("llama", num_hidden_layers=4)
    every = capture(model, None, tiny.IDS)
    some = capture(model, None, tiny.IDS, layers=[1, -1])
    assert some.layers == (1, 3)
    np.testing.assert_allclose(some.weights, every.weights[[1, 3]], atol=1e-6)
    assert not any("not called" in n for n in some.notes)


@pytest.mark.parametrize("dtype", ["float16", "float64", torch.float16, np.float32])
def test_storage(dtype: Any) -> None:
    att = capture(tiny.model("bert"), None, tiny.IDS, dtype=dtype, device="cpu")
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else np.dtype(dtype).name
    assert att.weights.dtype == np.dtype(name)
    assert att.settings["dtype"] == name
    np.testing.assert_allclose(att.weights.sum(-1, dtype=np.float64), 1, atol=1e-2)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt-oss"])
def test_models_in_other_precision(name: str, kind: torch.dtype) -> None:
    if name == "gpt-oss" and kind == torch.float64:
        pytest.skip("its experts have no float64")
    model = tiny.model(name)
    full = capture(model, None, tiny.IDS)
    # Some processors that claim half-precision instructions do not have them.
    with torch.backends.mkldnn.flags(enabled=False):
        got = capture(model.to(kind), None, tiny.IDS)
    assert got.weights.shape == full.weights.shape
    np.testing.assert_allclose(got.weights, full.weights, atol=0.1)


def test_grad_modes_make_no_difference() -> None:
    model = tiny.model("bert")
    want = capture(model, None, tiny.IDS).weights
    with torch.no_grad():
        np.testing.assert_array_equal(capture(model, None, tiny.IDS).weights, want)
    with torch.inference_mode():
        np.testing.assert_array_equal(capture(model, None, tiny.IDS).weights, want)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("name", "route"), [("bert-classifier", "auto"), ("gpt2", "auto"), ("gpt2", "tap")])
def test_gradients_are_those_of_finite_differences(name: str, route: str, frozen: bool) -> None:
    model = tiny.model(name).double()
    model.requires_grad_(not frozen)
    ids = torch.tensor([tiny.IDS])
    with torch.no_grad():
        logits = model(ids).logits
    best = int((logits[:, -1] if logits.ndim == 3 else logits).argmax())
    att = capture(model, None, tiny.IDS, gradients=True, dtype="float64", route=route)
    assert att.settings["gradients"] == [best]
    assert att.heads == "all" and all(p.grad is None for p in model.parameters())

    def output(step: float) -> float:
        def nudge(call: Call, weights: torch.Tensor) -> torch.Tensor | None:
            if call.layer != 0:
                return None
            changed = weights.clone()
            changed[0, 1, 5, 2] += step
            return changed

        with capture(model, replace=nudge), torch.no_grad():
            out = model(ids).logits
        return float((out[:, -1] if out.ndim == 3 else out)[0, best])

    slope = (output(1e-5) - output(-1e-5)) / 2e-5
    assert att.only.gradients is not None
    np.testing.assert_allclose(att.only.gradients[0][1, 5, 2], slope, rtol=1e-5, atol=1e-8)


def test_gradient_targets() -> None:
    model = tiny.model("bert-classifier")
    one = capture(model, None, tiny.IDS, gradients=1)
    own = capture(model, None, tiny.IDS, gradients=lambda out: out.logits[:, 1])
    many = capture(model, None, [tiny.IDS, tiny.IDS], gradients=[1, 0])
    np.testing.assert_array_equal(one.only.gradients[0], own.only.gradients[0])
    np.testing.assert_allclose(many[0].only.gradients[0], one.only.gradients[0], atol=1e-6)
    for target, words in (
        (7, "2 outputs: use 0 to 1"),
        ([1, 1], "2 targets for 1"),
        (lambda out: 3, "return a tensor"),
    ):
        with pytest.raises(AttnFlowError, match=words):
            capture(model, None, tiny.IDS, gradients=target)
    with pytest.raises(AttnFlowError, match="no logits"):
        capture(tiny.model("bert"), None, tiny.IDS, gradients=True)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt-oss", "mpnet", "t5", "bloom", "gemma2"])
def test_replacing_weights_by_themselves_changes_nothing(name: str) -> None:
    model = tiny.model(name)
    ids = torch.tensor([tiny.IDS])
    batch = {"input_ids": ids, "decoder_input_ids": ids} if name == "t5" else {"input_ids": ids}
    with torch.no_grad():
        with capture(model):
            want = model(**batch)[0]
        with capture(model, replace=lambda call, w: w.clone()):
            got = model(**batch)[0]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt-oss", "mpnet", "bloom"])
def test_replaced_weights_reach_the_output(name: str) -> None:
    model = tiny.model(name)
    ids = torch.tensor([tiny.IDS])

    def uniform(call: Call, weights: torch.Tensor) -> torch.Tensor | None:
        seen.append((call.layer, call.kind, tuple(weights.shape)))
        return torch.full_like(weights, 1 / weights.shape[-1]) if call.layer == 1 else None

    seen: list[Any] = []
    with torch.no_grad():
        plain = model(ids)[0]
        with capture(model, replace=uniform) as taken:
            changed = model(ids)[0]
    assert seen == [(0, "self", (1, 4, 7, 7)), (1, "self", (1, 4, 7, 7))]
    assert (changed - plain).abs().max() > 1e-3
    np.testing.assert_allclose(taken.attention.only.weights[1][:, :7], 1 / 7, atol=1e-5)


def test_bert_output_from_replaced_weights_by_hand() -> None:
    model = tiny.model("bert", num_hidden_layers=1)
    ids = torch.tensor([tiny.IDS])
    attention = model.encoder.layer[0].attention
    kept: dict[str, torch.Tensor] = {}
    handle = attention.output.dense.register_forward_pre_hook(lambda m, a: kept.update(mixed=a[0]))
    with torch.no_grad(), capture(model, replace=lambda c, w: torch.eye(7).expand_as(w)):
        model(ids)
        value = attention.self.value(model.embeddings(ids))
    handle.remove()
    torch.testing.assert_close(kept["mixed"], value)


def test_a_replacement_must_fit() -> None:
    model = tiny.model("bert")
    for wrong in (lambda c, w: w[:, :1], lambda c, w: 3):
        with pytest.raises(AttnFlowError, match=r"replace returned .* \(1, 4, 7, 7\)"):
            capture(model, None, tiny.IDS, replace=wrong)
    with pytest.raises(AttnFlowError, match="too late to change"):
        capture(tiny.model("longformer"), None, tiny.IDS, replace=lambda c, w: None)


def test_multi_head_attention_of_torch() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
            self.embed, self.layers = torch.nn.Embedding(40, 16), torch.nn.ModuleList([layer])

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            states = self.embed(input_ids)
            for layer in self.layers:
                states = layer(states)
            return states

    model = Wrapped()
    att = capture(model, inputs={"input_ids": torch.tensor([tiny.IDS])}, heads="all")
    assert att.route == "tap" and att.weights.shape == (1, 4, 7, 7)
    layer = model.eval().layers[0].self_attn
    states = model.embed(torch.tensor([tiny.IDS]))
    _, want = layer(states, states, states, average_attn_weights=False)
    np.testing.assert_allclose(att.weights[0], want[0].detach().numpy(), atol=1e-6)
    with torch.no_grad():
        plain = model(torch.tensor([tiny.IDS]))
        with capture(model, replace=lambda c, w: w.clone()):
            torch.testing.assert_close(model(torch.tensor([tiny.IDS])), plain, atol=1e-5, rtol=1e-5)


def test_compiled_models() -> None:
    model = tiny.model("bert")
    want = capture(model, None, tiny.IDS).weights
    wrapped = torch.compile(model, backend="eager")
    np.testing.assert_array_equal(capture(wrapped, None, tiny.IDS).weights, want)
    model.compile(backend="eager")
    np.testing.assert_array_equal(capture(model, None, tiny.IDS).weights, want)
    assert model._compiled_call_impl is not None


def test_models_under_a_device_map(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    from accelerate import cpu_offload, dispatch_model

    model = tiny.model("llama")
    want = capture(model, None, tiny.IDS).weights
    spread = dispatch_model(tiny.model("llama"), {"": "cpu"}, force_hooks=True)
    np.testing.assert_allclose(capture(spread, None, tiny.IDS).weights, want, atol=1e-6)
    away = cpu_offload(tiny.model("llama"), torch.device("cpu"))
    np.testing.assert_allclose(capture(away, None, tiny.IDS).weights, want, atol=1e-6)


def test_no_attention_is_said_before_anything_runs() -> None:
    config = tf.MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=20, state_size=4)
    with pytest.raises(AttnFlowError, match=r"MambaModel \(mamba\) has no attention module"):
        capture(tf.MambaModel(config), None, tiny.IDS)


def test_modules_that_were_not_called_are_named() -> None:
    model = tiny.model("clip")
    ids = torch.tensor([tiny.IDS])
    with capture(model) as taken:
        model.get_text_features(input_ids=ids)
    assert any("2 of 4 attention modules were called" in n and "vision" in n for n in taken.attention.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": "median"}, "heads='median' is not known"),
        ({"heads": []}, "empty list"),
        ({"heads": 9}, "the model has 4 heads: use 0 to 3"),
        ({"heads": [0, 9]}, "the model has 4 heads"),
        ({"layers": [7]}, "the layers with attention are 0, 1"),
        ({"dtype": "bfloat16"}, "have no bfloat16. Use dtype='float16'"),
        ({"dtype": "int8"}, "dtype='int8' is not known"),
        ({"sinks": "drop"}, "sinks='drop' is not known"),
        ({"route": "magic"}, "route='magic' is not known"),
        ({"block": 0}, "at least 1 row"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttnFlowError, match=words):
        capture(tiny.model("bert"), None, tiny.IDS, **options)


def test_things_that_are_no_model() -> None:
    with pytest.raises(AttnFlowError, match="model is a dict, not a torch module"):
        capture({}, None, "text")
    with pytest.raises(AttnFlowError, match="'no-such-model' could not be loaded.*Give a folder"):
        capture("no-such-model", None, "text")
    traced = torch.jit.trace(tiny.model("bert", torchscript=True), torch.tensor([tiny.IDS]), strict=False)
    with pytest.raises(AttnFlowError, match=r"made by torch.jit.*Give the model that was traced"):
        capture(traced, None, tiny.IDS)
    exported = torch.export.export(tiny.model("bert"), (torch.tensor([tiny.IDS]),))
    for given in (exported, exported.module()):
        with pytest.raises(AttnFlowError, match=r"made by torch.export.*Give the model that was exported"):
            capture(given, None, tiny.IDS)
    with pytest.raises(AttnFlowError, match="no module of MPNetModel uses transformers' attention interface"):
        capture(tiny.model("mpnet"), None, tiny.IDS, route="interface")
