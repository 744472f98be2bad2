"""The model is exactly as before, however the capture ended."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_utils import AttentionInterface

from attnflow import AttnFlowError, capture
from attnflow.capturing import state
from attnflow.capturing.session import ACTIVE
from tests.capturing import tiny

HOOKS = [n for n in torch.nn.Module().__dict__ if "hook" in n]


def fingerprint(model: Any) -> dict[str, Any]:
    """Everything of a model that a capture could leave changed."""
    found: dict[str, Any] = {"key": AttentionInterface._global_mapping.get("eager"), "session": ACTIVE.get()}
    found["implementations"] = [c._attn_implementation for c in state.configs(model)]
    found["config"] = copy.deepcopy(model.config.to_dict())
    found["generation"] = copy.deepcopy(getattr(getattr(model, "generation_config", None), "to_dict", dict)())
    for name, module in model.named_modules():
        found[f"{name}/training"] = module.training
        found[f"{name}/hooks"] = {h: list(getattr(module, h)) for h in HOOKS if hasattr(getattr(module, h), "keys")}
        found[f"{name}/compiled"] = module._compiled_call_impl
        found[f"{name}/keys"] = sorted(module.__dict__)
    for name, parameter in model.named_parameters():
        found[f"{name}/grad"] = (parameter.requires_grad, parameter.grad is None, parameter._version, id(parameter))
    return found


def normal(model: Any, **options: Any) -> None:
    capture(model, None, tiny.IDS, max_new_tokens=2, **options)


def bad_target(model: Any, **options: Any) -> None:
    def wrong(outputs: Any) -> Any:
        raise AttnFlowError("no such target")

    with pytest.raises(AttnFlowError, match="no such target"):
        capture(model, None, tiny.IDS, max_new_tokens=2, gradients=wrong, **options)


def _failing(error: type[BaseException]) -> Callable[..., None]:
    def ends(model: Any, **options: Any) -> None:
        inner = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm | torch.nn.Linear)][-1]
        calls = []

        def stop(*_: Any) -> None:
            calls.append(1)
            raise error("stop")

        handle = inner.register_forward_hook(stop)
        try:
            with pytest.raises(error, match="stop"):
                capture(model, inputs=_inputs(model), **options)
        finally:
            handle.remove()
        assert calls

    return ends


def _inputs(model: Any) -> dict[str, torch.Tensor]:
    ids = torch.tensor([tiny.IDS])
    return {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}


ENDS = {
    "normal": normal, "bad target": bad_target, "raising module": _failing(RuntimeError),
    "interrupted": _failing(KeyboardInterrupt),
}  # fmt: skip
ROUTES = [
    ("bert-classifier", "interface"), ("bart", "interface"), ("mpnet", "tap"), ("llama", "tap"),
    ("llama", "output_attentions"), ("longformer", "auto"),
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("name", "route"), ROUTES)
@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_left(name: str, route: str, end: str, training: bool) -> None:
    model = tiny.model(name).train(training)
    model.get_input_embeddings().weight.requires_grad_(False)
    next(iter(model.children())).eval()
    before = fingerprint(model)
    ENDS[end](model, route=route)
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ["bert", "mpnet", "t5"])
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_is_left_by_the_context(name: str, error: type[BaseException] | None) -> None:
    model = tiny.model(name).train()
    before = fingerprint(model)
    if error is None:
        with capture(model):
            model(**_inputs(model))
    else:
        with pytest.raises(error), capture(model):
            model(**_inputs(model))
            raise error
    assert fingerprint(model) == before


def test_every_sub_config_comes_back() -> None:
    model = tiny.model("clip")
    model.vision_model.config._attn_implementation_internal = "eager"
    before = [c._attn_implementation for c in state.configs(model)]
    assert set(before) == {"sdpa", "eager"}
    inputs = {"input_ids": torch.tensor([tiny.IDS]), "pixel_values": torch.randn(1, 3, 32, 32)}
    capture(model, inputs=inputs)
    assert [c._attn_implementation for c in state.configs(model)] == before


def test_dropout_is_off_during_the_run() -> None:
    model = tiny.model("bert", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5)
    quiet = capture(model, None, tiny.IDS)
    loud = capture(model.train(), None, tiny.IDS)
    np.testing.assert_array_equal(quiet.weights, loud.weights)
    assert model.training


def test_outputs_are_the_same_bit_for_bit_afterwards() -> None:
    for name in ("bert", "llama", "mpnet", "gpt-oss"):
        model = tiny.model(name)
        ids = torch.tensor([tiny.IDS])
        with torch.no_grad():
            before = model(ids)[0]
            capture(model, None, tiny.IDS)
            assert torch.equal(model(ids)[0], before)


@pytest.mark.parametrize("names", [("bert", "llama"), ("bert", "bert"), ("mpnet", "gpt2")])
def test_threads_do_not_mix(names: tuple[str, str]) -> None:
    models = [tiny.model(n) for n in names]
    texts = [[5, 6, 7], [8, 9, 10, 11, 12]]
    expected = [capture(m, None, t).weights for m, t in zip(models, texts, strict=True)]
    failures: list[BaseException] = []

    def work(model: Any, text: list[int], want: Any) -> None:
        try:
            for _ in range(8):
                got = capture(model, None, text)
                np.testing.assert_allclose(got.weights, want, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    jobs = [threading.Thread(target=work, args=a) for a in zip(models, texts, expected, strict=True)]
    _join(jobs)
    assert not failures
    assert "eager" not in AttentionInterface._global_mapping


def test_threads_with_one_model_or_one_config() -> None:
    model = tiny.model("llama")
    twin = type(model)(model.config).eval()
    texts = [[5, 6, 7], [8, 9, 10, 11, 12], [3, 4], [9, 9, 9, 9]]
    expected = [capture(m, None, t).weights for m, t in zip([model, twin] * 2, texts, strict=True)]
    failures: list[BaseException] = []

    def work(which: Any, text: list[int], want: Any) -> None:
        try:
            for _ in range(6):
                np.testing.assert_allclose(capture(which, None, text).weights, want, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    before = model.config._attn_implementation
    jobs = [threading.Thread(target=work, args=a) for a in zip([model, twin] * 2, texts, expected, strict=True)]
    _join(jobs)
    assert not failures
    assert model.config._attn_implementation == before


def test_a_plain_run_in_another_thread_is_not_recorded() -> None:
    model, other = tiny.model("bert"), tiny.model("bert")
    with capture(model) as taken:
        job = threading.Thread(target=lambda: (other(torch.tensor([[5, 6]])), model(torch.tensor([[5, 6]]))))
        _join([job])
        model(torch.tensor([tiny.IDS]))
    assert len(taken.attention.tokens) == len(tiny.IDS)


def test_nested_captures() -> None:
    outer, inner = tiny.model("bert"), tiny.model("llama")
    before = fingerprint(outer)
    with capture(outer) as taken:
        got = capture(inner, None, tiny.IDS)
        outer(torch.tensor([tiny.IDS]))
        again = capture(outer, None, tiny.IDS[:3])
    assert len(taken.records) == 2 and len(got.layers) == 2 and len(again.tokens) == 3
    assert fingerprint(outer) == before


def _join(jobs: list[threading.Thread]) -> None:
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
