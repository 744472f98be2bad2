"""Small random models for the probes, and our data where it is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from attnflow.models.tokenizers import masked_tokenizer, word_tokenizer
from attnflow.models.verb_number import VerbNumberConfig, VerbNumberModel
from attnflow.probes import grammar

_MORE = """his her him he she sara mary john convinced talked book love . because developer designer argued with did not
like design pronoun refers " asked doctor backache tried convince flowers brought and slapped in face"""
WORDS = [*grammar.vocabulary(), *_MORE.split()]


def data_folder() -> Path:
    return Path(os.environ.get("ATTNFLOW_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with our data; tests that need it are skipped where it is absent."""
    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set ATTNFLOW_DATA")
    return folder


@pytest.fixture(scope="session")
def classifier() -> tuple[Any, Any]:
    tokenizer = word_tokenizer(grammar.vocabulary())
    torch.manual_seed(0)
    config = VerbNumberConfig(n_layer=2, n_embd=16, n_head=2, vocab_size=len(tokenizer), initializer_range=0.3)
    return VerbNumberModel(config).eval(), tokenizer


@pytest.fixture(scope="session")
def masked() -> tuple[Any, Any]:
    tokenizer = masked_tokenizer(WORDS)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)).eval(), tokenizer


@pytest.fixture(scope="session")
def causal() -> tuple[Any, Any]:
    """Words only, without special tokens around the text."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    ids = {w: i for i, w in enumerate(dict.fromkeys(["<unk>", "a", *WORDS]))}
    core = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(ids), initializer_range=0.3, **sizes)).eval(), tokenizer
