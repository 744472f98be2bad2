"""Models for the experiments that train: the papers' own, a small transformer, or any model to fine-tune."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from attnflow.models.loading import SAFE, load_errors, make_known

Factory = Callable[[int], Any]
"""Gives a new model for a seed."""
_ADVICE = "Name a model to fine-tune, or train one from nothing:  attnflow audit all transformer DATA"


def vocabulary_of(texts: Sequence[str], least: int = 1) -> list[str]:
    """The words that occur ``least`` times or more, the most frequent first.

    >>> vocabulary_of(["a good film", "a bad film"], least=2)
    ['a', 'film']
    """
    from attnflow.models.tokenizers import word_tokenizer

    split = word_tokenizer([]).backend_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenizer.pre_tokenize_str(text.lower()))
    return [word for word, count in counts.most_common() if count >= least]


def lstm(vocabulary: int, classes: int = 2, width: int = 128) -> Factory:
    """A factory of the papers' model: embedding, BiLSTM, additive attention, linear (Jain & Wallace 2019, section 3).

    >>> type(lstm(20)(0)).__name__
    'LSTMClassifier'
    """
    from attnflow.models.lstm import LSTMClassifier, LSTMConfig

    return lambda seed: LSTMClassifier(LSTMConfig(vocabulary, width, width, num_labels=classes))


def transformer(vocabulary: int, classes: int = 2, width: int = 128, layers: int = 2, positions: int = 512) -> Factory:
    """A factory of small BERT encoders with a classifier on [CLS], from scratch."""
    from transformers import BertConfig, BertForSequenceClassification

    config: Any = BertConfig
    build: Any = BertForSequenceClassification  # typed as Any: transformers' constructors are untyped
    sizes = {
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4,
        "intermediate_size": 2 * width, "max_position_embeddings": positions, "num_labels": classes,
    }  # fmt: skip
    return lambda seed: build(config(**sizes))


def pretrained(name: str, classes: int = 2, pad: int | None = None) -> Factory:
    """A factory that loads the weights of a hub name or folder; the head, which they lack, is drawn at random.

    ``pad`` is the id with which texts are padded, for a model that names none.
    """
    from transformers import AutoModelForSequenceClassification

    def make(seed: int) -> Any:
        with load_errors(name, _ADVICE, f"a classifier of {classes} classes"):
            make_known(name)
            model: Any = AutoModelForSequenceClassification.from_pretrained(name, num_labels=classes, **SAFE)
        if pad is not None and getattr(model.config, "pad_token_id", pad) is None:
            model.config.pad_token_id = pad
        return model

    return make


def pretrained_tokenizer(name: str) -> Any:
    """The tokenizer of a hub name or folder."""
    from transformers import AutoTokenizer

    with load_errors(name, _ADVICE, "a tokenizer"):
        make_known(name)
        return AutoTokenizer.from_pretrained(name, **SAFE)
