"""Modules that take a kernel from transformers' list without an eager function beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward

from attnflow.capturing.survey import bare, own_eager, survey


class LooksUp(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation](self, x, x, x, None)


class FallsBack(nn.Module):
    """The form of older modelling files: its eager function is in its own code."""

    def forward(self, x: Tensor) -> Any:
        attend = eager_attention_forward
        if self.config._attn_implementation != "eager":
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return attend(self, x, x, x, None)


def test_which_modules_have_no_eager_function() -> None:
    assert own_eager(LooksUp) is bare
    assert own_eager(FallsBack) is not bare
    # PreTrainedModel names the list too, in methods that compute no attention.
    model = BertModel(BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, vocab_size=9))
    assert own_eager(BertModel) is None and len(survey(model).sites) == 2


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_bare_is_what_the_kernel_computes(kind: str, groups: int) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 4 // groups, 7, 8), torch.randn(2, 4 // groups, 7, 8)
    seen = torch.rand(2, 1, 5, 7) < 0.6
    seen[1, 0, 3] = False  # this row may look nowhere
    masks = {"none": None, "bool": seen, "float": torch.randn(2, 1, 5, 7)}
    module: Any = SimpleNamespace(num_key_value_groups=groups, is_causal=False)
    for scaling in (None, 0.3):
        out, weights = bare(module, query, key, value, masks[kind], scaling=scaling)
        expected, _ = sdpa_attention_forward(module, query, key, value, masks[kind], scaling=scaling, is_causal=False)
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
        assert weights.shape == (2, 4, 5, 7)
        assert float(weights[1, :, 3].sum()) == pytest.approx(0 if kind == "bool" else 4, abs=1e-5)
