"""A model small enough to be computed by hand, and a look at all that an experiment could leave changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class HandConfig(PretrainedConfig):
    model_type = "hand"


class HandAttention(nn.Module):
    """One row over all tokens, as in the papers' models."""

    def forward(self, scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(scores[:, None, None], -1)
        return (weights @ values[:, None])[:, 0, 0]


class HandModel(PreTrainedModel):
    """logits = Σₜ αₜ·vₜ with α = softmax(s); token t has the score s[t] and the values v[t]."""

    config_class = HandConfig

    def __init__(self, scores: Any, values: Any) -> None:
        values = torch.as_tensor(values, dtype=torch.float32)
        super().__init__(HandConfig(num_labels=values.shape[1]))
        self.table = nn.Embedding(len(values), 1 + values.shape[1])
        self.table.weight.data = torch.cat([torch.tensor(scores, dtype=torch.float32)[:, None], values], 1)
        self.attention = HandAttention()
        self.eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> SequenceClassifierOutput:
        found = self.table(input_ids)
        return SequenceClassifierOutput(logits=self.attention(found[..., 0], found[..., 1:]))


def softmax(x: Any) -> np.ndarray:
    e = np.exp(np.asarray(x, float) - np.max(x))
    return e / e.sum()


def own(model: HandModel, ids: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights, values, output) of a text, computed by hand."""
    rows = model.table.weight.detach().double().numpy()[ids]
    weights = softmax(rows[:, 0])
    return weights, rows[:, 1:], softmax(weights @ rows[:, 1:])


def state(model: nn.Module) -> tuple[object, ...]:
    """All of a model that could be left changed."""
    config = getattr(model.config, "_attn_implementation_internal", None)
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    names = tuple(tuple(sorted(m.__dict__)) for m in model.modules())
    flags = tuple(m.training for m in model.modules())
    grads = tuple((p.requires_grad, p.grad is None) for p in model.parameters())
    sums = tuple(float(p.detach().double().sum()) for p in model.parameters())
    return config, hooks, names, flags, grads, sums


def classifier(layers: int = 2, **changes: Any) -> Any:
    """A BERT classifier with sharp random weights over the demo's words."""
    from transformers import BertForSequenceClassification

    from tests import standin

    body = standin.model(layers)
    for name, value in changes.items():
        setattr(body.config, name, value)
    torch.manual_seed(1)
    model = BertForSequenceClassification(body.config)
    model.bert.load_state_dict(body.state_dict(), strict=False)
    with torch.no_grad():
        model.classifier.weight.normal_(0, 0.5)
    return model.eval()


def masked(layers: int = 2) -> Any:
    from transformers import BertForMaskedLM

    from tests import standin

    body = standin.model(layers)
    torch.manual_seed(1)
    model = BertForMaskedLM(body.config)
    model.bert.load_state_dict(body.state_dict(), strict=False)
    return model.eval()


def causal(kind: str = "gpt2") -> Any:
    from tests.capturing import tiny

    return tiny.model(kind)
