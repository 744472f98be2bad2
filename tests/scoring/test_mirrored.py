"""Encoder-decoder classifiers that feed their input to the decoder again: BART's, T5's and their kin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    MBartConfig,
    MBartForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

from attnflow import AttnFlowError, blankout, capture, flow, gradient, rollout
from attnflow.audit import correlation, permutation
from attnflow.inputs.decoder import decoder_ids
from attnflow.inputs.example import one_example

IDS = [0, 5, 6, 7, 8, 2]
COMMON = {"vocab_size": 30, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "num_labels": 2, "d_model": 16}
BART = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32,
}  # fmt: skip
T5 = {"d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 1}


@pytest.fixture(params=["bart", "mbart", "t5"])
def model(request):
    torch.manual_seed(0)
    if request.param == "t5":
        return T5ForSequenceClassification(T5Config(**COMMON, **T5)).eval()
    kinds = {
        "bart": (BartConfig, BartForSequenceClassification),
        "mbart": (MBartConfig, MBartForSequenceClassification),
    }
    config, kind = kinds[request.param]
    return kind(config(**COMMON, **BART, init_std=0.3)).eval()


def output(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().softmax(-1).numpy()


def test_the_attention_is_what_the_model_computes_when_it_is_left_alone(model):
    taken = capture(model, None, IDS)
    model.set_attn_implementation("eager")
    own = model(torch.tensor([IDS]), output_attentions=True)
    for name, theirs in (("encoder", own.encoder_attentions), ("decoder", own.decoder_attentions)):
        for ours, layer in zip(taken.blocks[name].weights, theirs, strict=True):
            assert np.allclose(ours, layer[0].detach().mean(0), atol=1e-6)
    assert taken.settings["decoder"].startswith("the input again")
    assert rollout(taken).scores.shape == flow(taken).scores.shape == (2, 6, 12)


def test_a_padded_batch_is_as_one_by_one(model):
    two = capture(model, None, {"input_ids": [IDS, [0, 9, 2, 1, 1, 1]], "attention_mask": [[1] * 6, [1] * 3 + [0] * 3]})
    for one, ids in zip(two, (IDS, [0, 9, 2]), strict=True):
        assert np.allclose(rollout(one).scores, rollout(capture(model, None, ids)).scores, atol=1e-6)


@pytest.mark.parametrize("blank", [3, "delete"])
def test_blanking_a_word_changes_both_its_copies(model, blank):
    found = blankout(model, None, IDS, blank=blank, score="tvd").scores[0]
    before = output(model, IDS)
    for j in range(5):
        ids = IDS[:j] + ([] if blank == "delete" else [blank]) + IDS[j + 1 :]
        assert found[j] == pytest.approx(0.5 * np.abs(output(model, ids) - before).sum(), abs=1e-6)
    assert np.isnan(found[5:]).all()  # the end, where the head reads, and the decoder's copies
    assert found[:5].max() > 0


def test_the_end_token_is_no_blank(model):
    with pytest.raises(AttnFlowError, match="blank=2 is the end token, where .* reads its answer"):
        blankout(model, None, IDS, blank=2)


def test_the_model_is_as_it_was_also_where_it_fails(model):
    model.train()
    model.get_decoder().eval()  # mixed, to be kept
    before = [m.training for m in model.modules()]
    chance = torch.get_rng_state()
    decoder_ids(model, None, {"input_ids": torch.tensor([IDS])}, None, 4)
    assert torch.equal(torch.get_rng_state(), chance)
    with pytest.raises(ValueError, match="eos"):
        decoder_ids(model, None, {"input_ids": torch.tensor([IDS, [0, 5, 2, 2, 8, 2]])}, None, 4)
    assert [m.training for m in model.modules()] == before
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_gradients_and_the_debate(model):
    assert np.isfinite(gradient(model, None, IDS).scores).all()
    example = one_example(model, None, IDS)
    assert example.mirrored and example.place(example.goal(None, None, None)[0]) == "last"
    assert len(correlation(model, None, [IDS, [0, 9, 8, 7, 2]], methods="raw").records)
    shuffled = permutation(model, None, [IDS, [0, 9, 8, 7, 2]], permutations=3)
    assert len(shuffled.records) == 2
