"""A small BERT with random weights and a tokenizer over two dozen words, with a mask: for tests that need no sense."""

from __future__ import annotations

from typing import Any

_WORDS = "the a key keys to of cabinet cabinets is are was were on in book books author authors table near man men"
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer() -> Any:
    """A word-level tokenizer over two dozen words; others become [UNK]."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *_WORDS.split()])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    named = {f"{t.strip('[]').lower()}_token": t for t in _SPECIAL}
    fast: Any = transformers.PreTrainedTokenizerFast  # typed as Any: transformers' constructors are untyped
    return fast(tokenizer_object=core, model_max_length=64, **named)


def model(layers: int = 6, seed: int = 10) -> Any:
    """A BERT encoder of ``layers`` layers × 4 heads × 64, the same weights for the same seed.

    The caller's random state is left as it was.
    """
    import torch
    import transformers

    config = transformers.BertConfig(
        vocab_size=len(_SPECIAL) + len(_WORDS.split()),
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.25,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        build: Any = transformers.BertModel  # typed as Any: transformers' constructors are untyped
        return build(config, add_pooling_layer=False).eval()
