"""The verb-number model of Abnar & Zuidema (2020): GPT-2 blocks that see both ways, a CLS token, a classifier.

The model reads the words before a verb and says whether the verb is singular or plural. Its attention is
transformers' own GPT-2 attention without the causal mask, so the library captures it like any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GPT2Config
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from attnflow.models.classifier import Classifier, register
from attnflow.models.shipped import LABELS


class VerbNumberConfig(GPT2Config):  # type: ignore[no-untyped-call]
    """GPT-2's configuration at the size of Abnar & Zuidema (2020, section 2): 6 layers × 8 heads × 128.

    >>> config = VerbNumberConfig()
    >>> config.n_layer, config.n_head, config.n_embd, config.id2label
    (6, 8, 128, {0: 'singular', 1: 'plural'})
    """

    model_type = "attnflow_verb_number"

    def __init__(
        self, n_embd: int = 128, n_layer: int = 6, n_head: int = 8, n_positions: int = 64, **rest: Any
    ) -> None:
        rest.setdefault("vocab_size", 10_042)
        rest.setdefault("id2label", dict(enumerate(LABELS)))
        rest.setdefault("label2id", {label: i for i, label in enumerate(LABELS)})
        rest.setdefault("initializer_range", 0.05)
        # GPT-2's own function (gelu_new) in one fused kernel: a fifth off the time of a training step.
        rest.setdefault("activation_function", "gelu_pytorch_tanh")
        rest.setdefault("pad_token_id", 0)
        rest.setdefault("bos_token_id", 2)
        rest.setdefault("eos_token_id", 3)
        super().__init__(n_embd=n_embd, n_layer=n_layer, n_head=n_head, n_positions=n_positions, **rest)


def _block(config: VerbNumberConfig, layer: int) -> nn.Module:
    """A GPT-2 block whose attention sees both ways."""
    build: Any = GPT2Block  # typed as Any: transformers' constructors are untyped
    block: nn.Module = build(config, layer_idx=layer)
    block.attn.is_causal = False  # type: ignore[union-attr]
    return block


class VerbNumberModel(Classifier):
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
    _input_embed_layer = "wte"
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

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits [batch, 2], and the loss where labels are given."""
        words = self.word_vectors(input_ids, inputs_embeds)
        positions = torch.arange(words.shape[1], device=words.device)
        hidden = self.drop(words + self.wpe(positions))
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        for block in self.h:
            hidden = block(hidden, attention_mask=mask)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.output(self.score(self.ln_f(hidden[:, 0])), labels)


register(VerbNumberConfig, VerbNumberModel)
