"""The verb-number model of Abnar & Zuidema (2020): GPT-2 blocks that see both ways, a CLS token, a classifier.

The model reads the words before a verb and says whether the verb is singular or plural. Its attention is
transformers' own GPT-2 attention without the causal mask, so the library captures it like any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from attnflow.models.verb_number_config import VerbNumberConfig


def _block(config: VerbNumberConfig, layer: int) -> nn.Module:
    """A GPT-2 block whose attention sees both ways."""
    build: Any = GPT2Block  # typed as Any: transformers' constructors are untyped
    block: nn.Module = build(config, layer_idx=layer)
    block.attn.is_causal = False  # type: ignore[union-attr]
    return block


class VerbNumberModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Words before a verb → logits of (singular, plural), read from the final state of the CLS token.

    Abnar & Zuidema (2020, section 2). Args of a call: ``input_ids`` ``[batch, n]`` that begin with CLS, or
    ``inputs_embeds`` ``[batch, n, 128]`` (word embeddings, without positions); ``attention_mask`` ``[batch, n]``;
    ``labels`` ``[batch]`` for a loss.

    >>> tiny = VerbNumberModel(VerbNumberConfig(n_layer=1, n_embd=8, n_head=2, vocab_size=20)).eval()
    >>> tiny(torch.tensor([[2, 7, 9, 3]])).logits.shape
    torch.Size([1, 2])
    """

    config_class = VerbNumberConfig
    base_model_prefix = "transformer"
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ["GPT2Block"]  # noqa: RUF012

    def __init__(self, config: VerbNumberConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(_block(config, i) for i in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.score = nn.Linear(config.n_embd, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings."""
        return self.wte

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        self.wte = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits [batch, 2], and the loss where labels are given."""
        words = self.wte(input_ids) if inputs_embeds is None else inputs_embeds
        positions = torch.arange(words.shape[1], device=words.device)
        hidden = self.drop(words + self.wpe(positions))
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        for block in self.h:
            hidden = block(hidden, attention_mask=mask)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        logits = self.score(self.ln_f(hidden[:, 0]))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]
