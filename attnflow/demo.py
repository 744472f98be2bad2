"""The model inside the package: a small trained encoder, so that a first look needs no network.

It is the verb-number model of Abnar & Zuidema (2020): it reads the words before a verb and says whether the verb is
singular or plural. Its card (data, licence, accuracy, command) is ``attnflow/models/verb-number/README.md``.
"""

from __future__ import annotations

from typing import Any

SENTENCE = "the key to the doors"
NAME = "attnflow verb-number model"
NOTE = (
    "The model inside the package reads the words before a verb and says whether the verb is singular or plural. "
    "It knows 10,000 words; others are read as <unk>."
)


def tokenizer() -> Any:
    """``<cls> words <eos>``: whole words in lower case, the last token in the verb's place."""
    from transformers import AutoTokenizer

    from attnflow.models.shipped import FOLDER

    return AutoTokenizer.from_pretrained(FOLDER)


def model() -> Any:
    """The trained verb-number model: 6 layers × 8 heads × 128, a classifier with the labels singular and plural."""
    from attnflow.models.shipped import load

    loaded, _ = load()
    loaded.config.name_or_path = NAME  # a result names its model, and a path of this machine says less
    return loaded
