"""A linear bag-of-words model: each word adds its weight to the one output, so that every measure is known."""

from __future__ import annotations

import numpy as np
import torch
import transformers as tf
from transformers.modeling_outputs import SequenceClassifierOutput

from tests.tiny_models import SENTENCE, tokenizer

WORDS = list(dict.fromkeys(SENTENCE.split()))
FIRST = 7  # the id of the first ordinary word: five special tokens and two pieces stand before it


class BagOfWords(tf.BertForSequenceClassification):
    """BERT inside, so that there is attention to be read; what it computes is not used."""

    def forward(self, input_ids=None, attention_mask=None, **rest):
        super().forward(input_ids=input_ids, attention_mask=attention_mask, **rest)
        return SequenceClassifierOutput(logits=self.weights[input_ids].sum(1, keepdim=True))


def bag(weights: list[float]) -> BagOfWords:
    """A model in which the words of ``WORDS`` weigh ``weights``; special tokens, also the mask, weigh nothing."""
    torch.manual_seed(0)
    config = tf.BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                           intermediate_size=24, max_position_embeddings=48, num_labels=1)  # fmt: skip
    model = BagOfWords(config).eval()
    model.register_buffer("weights", torch.zeros(40, dtype=torch.float64))
    model.weights[FIRST : FIRST + len(weights)] = torch.tensor(weights, dtype=torch.float64)
    return model


def true_weights(example, goal):
    """The one right explanation of such a model, as a method that needs the model."""
    from attnflow import Relevance

    row = example.model.weights[example.inputs["input_ids"][0]].numpy()
    return Relevance(row[None], example.tokens, ("input",), "true weights")


def texts(count: int, length: int = 8, seed: int = 0) -> list[str]:
    """Texts of different words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.permutation(WORDS)[:length]) for _ in range(count)]


__all__ = ["WORDS", "bag", "texts", "tokenizer", "true_weights"]
