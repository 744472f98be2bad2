"""Data where one word decides, and small models that learn it in a second."""

from __future__ import annotations

import numpy as np

from attnflow.audit import LSTMClassifier, LSTMConfig, Recipe, Splits
from attnflow.models.tokenizers import word_tokenizer

FILLERS = [f"w{i}" for i in range(6)]
TOKENIZER = word_tokenizer(["good", "bad", *FILLERS])
RECIPE = Recipe(epochs=6, patience=6, batch=8, rate=0.02)


def texts(count, seed, length=5):
    """Fillers with "good" (1) or "bad" (0) somewhere among them."""
    rng = np.random.default_rng(seed)
    labels = [int(x) for x in rng.permutation(np.arange(count) % 2)]
    made = []
    for label in labels:
        words = list(rng.choice(FILLERS, length + int(rng.integers(0, 3))))
        words[int(rng.integers(len(words)))] = ("bad", "good")[label]
        made.append(" ".join(words))
    return made, labels


def splits(train=64, valid=32, test=32, length=5):
    return Splits.of(TOKENIZER, texts(train, 1, length), texts(valid, 2, length), texts(test, 3, length))


def lstm(seed=0, **options):
    sizes = {"vocab_size": len(TOKENIZER), "embedding_size": 8, "hidden_size": 6, **options}
    return LSTMClassifier(LSTMConfig(**sizes))


def gpt2(seed=0, pad=0):
    """A causal classifier: its first token sees itself alone."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=len(TOKENIZER), n_embd=12, n_layer=2, n_head=2, n_positions=16, pad_token_id=pad, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return GPT2ForSequenceClassification(config)


def bert(seed=0, dropout=0.1):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(TOKENIZER), hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=16, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    return BertForSequenceClassification(config)
