from __future__ import annotations

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from attnflow import capture
from attnflow.capturing import live

SIZES = {"vocab_size": 30, "pad_token_id": 0}


def bert(**options):
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, **{**SIZES, **options}
    )
    return BertForSequenceClassification(config)


def gpt2():
    torch.manual_seed(0)
    return GPT2ForSequenceClassification(GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=16, **SIZES))


IDS = torch.tensor([[5, 6, 7, 8], [9, 5, 4, 0]])
MASK = (IDS != 0).long()


def step(model):
    """The gradients of one step of training from a fixed seed."""
    model.zero_grad()
    torch.manual_seed(1)
    model(input_ids=IDS, attention_mask=MASK, labels=torch.tensor([0, 1])).loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("make", [bert, gpt2])
@pytest.mark.parametrize("change", [None, lambda call, weights: weights * 1.0], ids=["seen", "the same put back"])
def test_watching_changes_nothing_about_training(make, change):
    model = make().train()
    model.set_attn_implementation("eager")
    expected = step(model)
    with live(model, change or (lambda call, weights: None)):
        found = step(model)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_weights_are_seen_before_dropout_and_dropout_stays_on():
    model = bert(attention_probs_dropout_prob=0.5).train()
    sums = []
    with live(model, lambda call, weights: sums.append(weights.sum(-1))):
        one, two = model(IDS, MASK).logits, model(IDS, MASK).logits
    assert len(sums) == 4 and all(torch.allclose(s, torch.ones(())) for s in sums)
    assert not torch.equal(one, two)


def test_what_is_returned_takes_the_place_of_the_weights_as_with_replace():
    model = bert().eval()

    def first(call, weights):
        changed = torch.zeros_like(weights)
        changed[..., 0] = 1
        return changed

    with capture(model, replace=first), torch.no_grad():
        expected = model(IDS, MASK).logits
    with live(model, first), torch.no_grad():
        torch.testing.assert_close(model(IDS, MASK).logits, expected)


def test_gradients_reach_the_scores_through_what_was_seen():
    model = bert().train()
    seen = []
    with live(model, lambda call, weights: seen.append(weights)):
        model(IDS, MASK)
    seen[-1].square().sum().backward()
    assert model.bert.encoder.layer[1].attention.self.query.weight.grad.abs().max() > 0


def test_nothing_piles_up_and_nothing_is_left_behind():
    model = bert().train()
    before = copy.deepcopy(model.config.to_dict())
    with live(model, lambda call, weights: None):
        for _ in range(3):
            model(IDS, MASK)
    assert model.training and model.config.to_dict() == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
