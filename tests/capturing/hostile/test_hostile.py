"""Attention as people write it by themselves: right, or refused with the shapes seen, never quietly wrong."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, capture
from tests.capturing.hostile import modelling
from tests.capturing.test_restore import fingerprint

RIGHT = [
    "Standard", "Einsum", "EinsumDots", "SoftmaxModule", "FoldedBatchHeads", "FoldedHeadsBatch",
    "FoldedHeadsBatchView", "TimeFirst", "QueriesBeforeHeads", "HeadsLast", "HeadsFirst", "KeysBeforeQueries",
    "QueryChunks", "QueryChunksInPlace", "QueryChunksBackwards", "OneHeadAtATime", "OneHeadAtATimeStacked",
    "SinkColumn", "SinkColumnFirst", "MaskedAfterwards", "TalkingScores", "OneValue", "Grouped", "Fused",
    "FusedFolded", "FusedHeadsFirst", "Packed", "PackedTimeFirst", "WeightsFromAnInnerModule", "TwoProducts",
]  # fmt: skip
REFUSED = {
    "FoldedAndHidden": "run one text at a time",
    "HeadsAndChunks": "cannot be told",
    "OneTextAtATime": "cannot be told",
    "Differential": "2 softmaxes are combined",
    "DifferentialLate": "neither one per head nor one per chunk",
    "MemoryKey": "goes over 8 keys, and the module was given 7 positions",
    "TalkingHeads": "no probabilities",
    "Windows": "positions",
    "KeyChunks": "cannot be told",
    "OverQueries": "another axis than the softmax|no probabilities",
    "Linear": "cannot be told",
    "ByHand": "no attention module|no softmax attention",
    "Elementwise": "its product with the values was not seen",
}


def build(kind: str, heads: int = 4) -> Any:
    torch.manual_seed(1)
    model = modelling.HostileModel(modelling.HostileConfig(kind=kind, heads=heads)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and "attention" in name:
                p.copy_(torch.randn_like(p) * 0.6)
    for layer in model.layers:
        getattr(layer.attention, "share", lambda: None)()
    return model


def oracle(model: Any, ids: torch.Tensor) -> np.ndarray:
    """[texts, layers, heads, n, n] from the inputs of each layer and its projections, head by head."""
    seen: list[torch.Tensor] = []
    hooks = [m.attention.register_forward_pre_hook(lambda _, a: seen.append(a[0])) for m in model.layers]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    out = np.zeros((len(ids), len(seen), model.config.heads, ids.shape[1], ids.shape[1]))
    for number, (x, layer) in enumerate(zip(seen, model.layers, strict=True)):
        attention = layer.attention
        q, k = (p(x).detach().double().numpy() for p in (attention.q, attention.k))
        width = attention.size
        for text in range(len(ids)):
            for head in range(model.config.heads):
                part = slice(head * width, (head + 1) * width)
                scores = q[text][:, part] @ k[text][:, part].T / np.sqrt(width)
                extra = [attention.sink[head].item()] if hasattr(attention, "sink") else []
                whole = np.exp(np.concatenate([scores, np.tile(extra, (len(scores), 1))], 1))
                weights = (whole / whole.sum(1, keepdims=True))[:, : ids.shape[1]]
                if model.config.kind == "MaskedAfterwards":
                    weights[:, 1::2] = 0
                out[text, number, head] = weights
    return out


def ids(texts: int, n: int) -> torch.Tensor:
    return torch.randint(3, 40, (texts, n), generator=torch.Generator().manual_seed(texts * 31 + n))


def compare(model: Any, given: torch.Tensor) -> None:
    found = capture(model, None, given, heads="all")
    for att, expected in zip(found if isinstance(found, list) else [found], oracle(model, given), strict=True):
        n = given.shape[1]
        assert att.weights[..., :n].shape == expected.shape
        np.testing.assert_allclose(att.weights[..., :n], expected, atol=1e-5)


def test_there_are_enough_kinds() -> None:
    assert len(RIGHT) + len(REFUSED) >= 26


@pytest.mark.parametrize("kind", RIGHT)
def test_right(kind: str) -> None:
    model = build(kind)
    before = fingerprint(model)
    compare(model, ids(1, 7))
    compare(model, ids(3, 7))
    assert fingerprint(model) == before


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    model = build(kind)
    before = fingerprint(model)
    with pytest.raises(AttnFlowError, match=REFUSED[kind]):
        capture(model, None, ids(3, 7))
    assert fingerprint(model) == before


@pytest.mark.parametrize("kind", [*RIGHT, *REFUSED])
@pytest.mark.parametrize(("texts", "n"), [(1, 4), (2, 4), (4, 4), (4, 7), (7, 4), (5, 2)])
def test_never_quietly_wrong(kind: str, texts: int, n: int) -> None:
    """Also where numbers coincide: as many texts as heads, as many positions as either."""
    model, given = build(kind), ids(texts, n)
    with contextlib.suppress(AttnFlowError):
        compare(model, given)


@pytest.mark.parametrize("kind", ["Standard", "FoldedBatchHeads", "QueriesBeforeHeads", "QueryChunks"])
def test_a_padded_batch_and_the_users_own_run(kind: str) -> None:
    model, given = build(kind), ids(3, 7)
    with capture(model, heads="all") as taken, torch.no_grad():
        model(given)
        model(given[:1, :5])
    whole = oracle(model, given)
    for att, expected in zip(taken.attentions[:3], whole, strict=True):
        np.testing.assert_allclose(att.weights, expected, atol=1e-5)
    assert taken.attentions[3].weights.shape == (2, 4, 5, 5)


def test_refused_in_the_users_own_run() -> None:
    model = build("Differential")
    with capture(model) as taken, torch.no_grad():
        model(ids(1, 7))
    with pytest.raises(AttnFlowError, match="2 softmaxes are combined"):
        _ = taken.attention


def test_changed_and_differentiated_in_the_usual_layout_only() -> None:
    model, given = build("Standard"), ids(1, 7)

    def uniform(call: Any, weights: torch.Tensor) -> torch.Tensor:
        return torch.full_like(weights, 1 / weights.shape[-1])

    att = capture(model, None, given, replace=uniform)
    np.testing.assert_allclose(att.weights, 1 / 7, atol=1e-6)
    slopes = capture(model, None, given, gradients=lambda out: out[0].sum())
    assert slopes.only.gradients[0].shape == (4, 7, 7) and np.abs(slopes.only.gradients[0]).max() > 0
    for kind in ("FoldedBatchHeads", "QueriesBeforeHeads"):
        with pytest.raises(AttnFlowError, match=r"replace= and gradients= need one softmax over \[batch, heads"):
            capture(build(kind), None, ids(3, 7), replace=uniform)


def test_code_that_comes_with_the_model(tmp_path: Path) -> None:
    """The same file, loaded with trust_remote_code."""
    from transformers import AutoModel

    model = build("FoldedHeadsBatch")
    model.config.auto_map = {"AutoConfig": "modelling.HostileConfig", "AutoModel": "modelling.HostileModel"}
    model.save_pretrained(tmp_path)
    shutil.copy(modelling.__file__, tmp_path / "modelling.py")
    loaded = AutoModel.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert type(loaded).__module__.startswith("transformers_modules")
    compare(loaded, ids(3, 7))


class _Mixer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.attention = inner, modelling.Elementwise(16, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.inner(input_ids), -1)


def test_softmaxes_outside_attention_are_the_cause_that_is_said() -> None:
    with pytest.raises(AttnFlowError, match="1 softmaxes .1×7×16., none of them inside a module whose class or name"):
        capture(_Mixer(torch.nn.Embedding(40, 16)), None, ids(1, 7))
