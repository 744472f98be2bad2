from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from attnflow import Attention, raw, rollout
from attnflow.errors import InputError, SelectionError, ShapeError
from tests.conftest import random_attention

W = random_attention(0, 3, 4, heads=2)


@pytest.mark.parametrize(
    "source",
    [
        W,
        torch.tensor(W),
        W.mean(1),
        list(W),
        tuple(torch.tensor(w)[None] for w in W),
        [w.mean(0) for w in W],
        Attention.of(W),
        Attention.of(W, heads="all"),
    ],
    ids=["array", "tensor", "heads gone", "list", "tuple of batches", "list of matrices", "attention", "all heads"],
)
def test_every_form_gives_the_same(source):
    assert np.allclose(rollout(source).scores, rollout(W.mean(1)).scores, atol=1e-12)


def test_bfloat16_is_read():
    r = raw(torch.tensor(W, dtype=torch.bfloat16))
    assert np.allclose(r.scores, W.mean(1), atol=1e-2)


def test_a_batch_gives_a_list():
    batch = tuple(torch.stack([torch.tensor(w), torch.tensor(w).flip(-1)]) for w in W)
    results = raw(batch)
    assert isinstance(results, list)
    assert np.allclose(results[1].scores, results[0].scores[..., ::-1])
    assert len(rollout([Attention.of(W), Attention.of(W)])) == 2


def test_names_can_be_given():
    assert raw(W, tokens=["a", "b", "c", "d"]).tokens == ("a", "b", "c", "d")


def test_the_output_of_a_model_is_read_as_it_is():
    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    model = BertModel._from_config(config, attn_implementation="eager").eval()
    out = model(torch.arange(5)[None], output_attentions=True)
    assert np.allclose(raw(out).scores, raw(out.attentions).scores)


def test_the_output_of_an_encoder_decoder_has_three_blocks():
    config = T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2)
    model = T5ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    out = model(input_ids=torch.arange(5)[None], decoder_input_ids=torch.arange(3)[None], output_attentions=True)
    r = rollout(out)
    assert r.scores.shape == (2, 3, 8)
    assert np.allclose(r.scores.sum(-1), 1)


def test_heads_that_are_gone_cannot_be_asked_for():
    assert np.allclose(raw(Attention.of(W, heads="all"), heads=1).scores, W[:, 1])
    with pytest.raises(
        SelectionError, match="heads='max', but this attention was captured with heads='mean'. Keep them all"
    ):
        raw(Attention.of(W), heads="max")


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (
            (),
            InputError,
            r"No attention in 'tuple': transformers returns an empty tuple.*rollout\(model, tokenizer, text\)",
        ),
        (None, InputError, "No attention in 'NoneType'"),
        ("no-such/model", InputError, "'no-such/model' could not be loaded"),
        (np.zeros((4, 4)), ShapeError, r"shape \(4, 4\) has 2 axes; use \[layers, n, n\].*array\[None\]"),
        ([np.eye(2), np.eye(2)[None]], ShapeError, r"Layers of different rank: \[2, 3\] axes"),
        (
            {"last_hidden_state": 1, "attentions": ()},
            InputError,
            "dict has no attention in it .keys: last_hidden_state",
        ),
        ([[[0.5, 0.5], [1.0]]], ShapeError, "its parts differ in shape"),
    ],
)
def test_bad_sources(source, error, text):
    with pytest.raises(error, match=text):
        rollout(source)


def test_a_text_needs_a_model():
    with pytest.raises(
        InputError, match=r"text belong to a model, but the first argument is a ndarray. Pass the model"
    ):
        rollout(W, text="the key")


@pytest.mark.parametrize("method", [raw, rollout])
def test_notes_of_the_capture_and_of_the_edges_both_reach_the_reader(method):
    def block(q, k):
        return Attention.of(np.full((1, q, k), 1 / k), edges="alti", residual_inside=True)["self"]

    blocks = {"encoder": block(3, 3), "decoder": block(2, 2), "cross": block(2, 3)}
    blocks["cross"] = replace(blocks["cross"], keys=blocks["encoder"].keys)
    a = Attention(blocks, edges="alti", residual_inside=True, notes=("Layer 1 has no attention.",))
    r = method(a)
    assert r.notes == r.settings["notes"]
    assert r.notes[0] == "Layer 1 has no attention."
    assert r.notes[1].startswith("cross: alti edges do not weigh the decoder's own position")
