"""Models that attend in bands, blocks or chunks, at lengths beyond one of them: weights × values is their output."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import AttnFlowError, capture
from tests.capturing.test_restore import fingerprint
from tests.capturing.tiny import SMALL, _sharp

LONG = {**SMALL, "max_position_embeddings": 512}
SEQ2SEQ = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 40, "max_position_embeddings": 512,
}  # fmt: skip
REFORMER = {
    "hidden_size": 16, "num_attention_heads": 4, "attention_head_size": 4, "feed_forward_size": 16, "vocab_size": 40,
    "axial_pos_embds": False, "max_position_embeddings": 64, "num_buckets": 4, "local_attn_chunk_length": 4,
    "lsh_attn_chunk_length": 4, "is_decoder": False, "num_hashes": 1, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def model(kind: str, config: str = "", **sizes: Any) -> Any:
    torch.manual_seed(0)
    return _sharp(getattr(tf, kind)(getattr(tf, config or kind.replace("Model", "Config"))(**sizes)))


def ids(n: int, texts: int = 1) -> torch.Tensor:
    return torch.randint(3, 40, (texts, n), generator=torch.Generator().manual_seed(n))


def bigbird() -> Any:
    return model("BigBirdModel", **LONG, block_size=4, num_random_blocks=2, sep_token_id=2)


def pegasus() -> Any:
    sizes = SEQ2SEQ | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return model("BigBirdPegasusModel", **sizes, block_size=4, num_random_blocks=2)


def longt5(kind: str = "local") -> Any:
    sizes = {"d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2, "d_ff": 16, "vocab_size": 40}
    return model("LongT5Model", **sizes, local_radius=3, global_block_size=4, encoder_attention_type=kind)


def canine() -> Any:
    return model("CanineModel", **LONG, num_hash_buckets=64, local_transformer_stride=8, upsampling_kernel_size=4)


def contexts(net: Any, pick: Any, values: str, inputs: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(values, weights × values) of each module, as the module itself computes them: ``[texts, heads, n, width]``."""
    found: list[Any] = []

    def note(module: Any, args: Any, kwargs: Any, out: Any) -> None:
        x = kwargs.get("hidden_states", args[0] if args else None)
        context = out[0] if isinstance(out, tuple) else out
        v = getattr(module, values)(x)
        found.append([t.detach().reshape(*t.shape[:2], 4, -1).transpose(1, 2).numpy() for t in (v, context)])

    hooks = [m.register_forward_hook(note, with_kwargs=True) for m in net.modules() if pick(m)]
    with torch.no_grad():
        net(**inputs)
    for hook in hooks:
        hook.remove()
    return [(v, c) for v, c in found]


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("length", [70, 72])
def test_bigbird(texts: int, length: int) -> None:
    net, given = bigbird(), {"input_ids": ids(length, texts), "attention_mask": torch.ones(texts, length)}
    given["attention_mask"][-1, -6:] = 0 if texts > 1 else 1
    before = fingerprint(net)
    found = capture(net, inputs=given, heads="all")
    assert fingerprint(net) == before
    seen = contexts(net, lambda m: type(m).__name__ == "BigBirdBlockSparseAttention", "value", given)
    for i, att in enumerate(found if texts > 1 else [found]):
        n = int(given["attention_mask"][i].sum())
        assert att.weights.shape == (2, 4, n, n) and att.route == "tap" and not att.notes
        for weights, (values, context) in zip(att.only.weights, seen, strict=True):
            np.testing.assert_allclose(weights @ values[i, :, :n], context[i, :, :n], atol=2e-5)


def test_bigbird_pegasus() -> None:
    net, given = pegasus(), {"input_ids": ids(70), "decoder_input_ids": ids(5)}
    att = capture(net, inputs=given, heads="all")
    assert {k: b.weights[0].shape for k, b in att.blocks.items()} == {
        "encoder": (4, 70, 70), "decoder": (4, 5, 5), "cross": (4, 5, 70),
    }  # fmt: skip
    seen = contexts(net, lambda m: type(m).__name__ == "BigBirdPegasusBlockSparseAttention", "value", given)
    for weights, (values, context) in zip(att["encoder"].weights, seen, strict=True):
        np.testing.assert_allclose(weights @ values[0, :, :70], context[0, :, :70], atol=2e-5)


@pytest.mark.parametrize("build", [bigbird, pegasus])
def test_a_short_text_leaves_bigbird_as_it_was(build: Any) -> None:
    """For short texts it puts other modules in place of its own, which a plain run does for good."""
    net = build()
    given = {"input_ids": ids(7)} | ({"decoder_input_ids": ids(3)} if build is pegasus else {})
    before = fingerprint(net)
    att = capture(net, inputs=given, heads="all")
    assert fingerprint(net) == before and net.config.attention_type == "block_sparse"
    with torch.no_grad():
        net(**given)
        out = net(**given, output_attentions=True)
    expected = out.encoder_attentions if build is pegasus else out.attentions
    first = att["encoder"] if build is pegasus else att.only
    for weights, own in zip(first.weights, expected, strict=True):
        np.testing.assert_allclose(weights, own[0], atol=1e-6)


def test_blocks_are_not_changed_or_differentiated() -> None:
    changes = [{"gradients": lambda out: out[0].sum()}, {"replace": lambda call, weights: weights}, {"edges": "norm"}]
    for options in changes:
        with pytest.raises(
            AttnFlowError, match="attends in blocks of positions, and replace=, gradients= and edges= need"
        ):
            capture(bigbird(), None, ids(70), **options)


@pytest.mark.parametrize("length", [5, 22, 24])
def test_longt5(length: int) -> None:
    net, given = longt5(), {"input_ids": ids(length), "decoder_input_ids": ids(5)}
    att = capture(net, inputs=given, heads="all")
    assert att["encoder"].weights[0].shape == (4, length, length) and not att.notes
    band = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) > 3
    assert (att["encoder"].weights[0][:, band] == 0).all()
    projected = contexts(net, lambda m: type(m).__name__ == "LongT5LocalAttention", "v", given)
    layers = [m for m in net.modules() if type(m).__name__ == "LongT5LocalAttention"]
    for weights, (values, out), layer in zip(att["encoder"].weights, projected, layers, strict=True):
        mixed = torch.tensor(weights @ values[0]).transpose(0, 1).flatten(1)
        expected = torch.tensor(out[0]).transpose(0, 1).flatten(1)
        np.testing.assert_allclose(layer.o(mixed).detach(), expected, atol=1e-4, rtol=1e-4)


def test_longt5_with_summaries_is_refused() -> None:
    with pytest.raises(AttnFlowError, match="its keys are also summaries of blocks"):
        capture(longt5("transient-global"), inputs={"input_ids": ids(22), "decoder_input_ids": ids(5)})


def test_reformer_beyond_one_chunk_is_refused() -> None:
    for layers in (["local", "local"], ["local", "lsh"]):
        net = model("ReformerModel", attn_layers=layers, **REFORMER)
        assert capture(net, None, ids(4)).weights.shape == (2, 4, 4)
        with pytest.raises(AttnFlowError, match="beyond one chunk this model attends in chunks.*a shorter text"):
            capture(net, None, ids(16))


@pytest.mark.parametrize("length", [8, 24, 30])
def test_canine(length: int) -> None:
    net, given = canine(), {"input_ids": ids(length)}
    att = capture(net, inputs=given, heads="all")
    assert {k: b.weights[0].shape[-1] for k, b in att.blocks.items()} == {
        "initial_char_encoder.layer": length, "encoder.layer": length // 4, "final_char_encoder.layer": length,
    }  # fmt: skip
    local = net.initial_char_encoder.layer[0].attention
    states: list[torch.Tensor] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        states.append(kwargs.get("hidden_states", args[0] if args else None))

    hook = local.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        net(**given)
    hook.remove()
    x, inner = states[0], local.self
    q, k = (p(x)[0].detach().view(length, 4, 4).transpose(0, 1).numpy() for p in (inner.query, inner.key))
    expected = np.zeros((4, length, length))
    for start in range(0, length, 8):
        part = slice(start, min(length, start + 8))
        scores = np.exp(q[:, part] @ k[:, part].transpose(0, 2, 1) / math.sqrt(4))
        expected[:, part, part] = scores / scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(att["initial_char_encoder.layer"].weights[0], expected, atol=1e-5)


def test_landmarks_are_refused() -> None:
    net = model("NystromformerModel", **LONG, num_landmarks=4, segment_means_seq_len=16)
    with pytest.raises(AttnFlowError, match="computes 3 softmaxes in one call, of 16×4, 4×16, 4×4: an approximation"):
        capture(net, None, ids(16))


def test_talking_heads_are_said() -> None:
    net = model("DebertaModel", **LONG, talking_head=True, relative_attention=True, pos_att_type=["c2p"])
    assert any("mixes its heads after the softmax" in n for n in capture(net, None, ids(6)).notes)
    plain = model("DebertaModel", **LONG, relative_attention=True, pos_att_type=["c2p"])
    assert not capture(plain, None, ids(6)).notes
