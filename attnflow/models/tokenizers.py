"""Tokenizers of whole words: the verb-number model's, and a BERT-like one for examples and tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPECIAL = ("<pad>", "<unk>", "<cls>", "<eos>")


def word_tokenizer(vocabulary: Sequence[str], max_length: int = 64) -> Any:
    """A Hugging Face tokenizer over ``vocabulary``: ``<cls> words <eos>``, the last in the verb's place.

    Words are lower-cased; entries in capitals (NNP, VBZ, …) are tags, which stand in Linzen's files for rare
    words, and are matched as they are.
    """
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    words = list(dict.fromkeys([*SPECIAL, *vocabulary]))
    ids = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tags = [w for w in words if w.isupper() and w.strip("-$").isalpha()]
    core.add_tokens([AddedToken(tag, normalized=False, single_word=True) for tag in tags])
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"[.,;:!?]$"), "isolated")]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<cls> $A <eos>", special_tokens=[("<cls>", ids["<cls>"]), ("<eos>", ids["<eos>"])]
    )
    fast: Any = transformers.PreTrainedTokenizerFast  # typed as Any: transformers' constructors are untyped
    return fast(
        tokenizer_object=core,
        model_max_length=max_length,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<cls>",
        eos_token="<eos>",
    )


def masked_tokenizer(words: Sequence[str], max_length: int = 64) -> Any:
    """A BERT-like tokenizer over a few words, ``[CLS] words [SEP]`` with a ``[MASK]``: for examples and tests.

    >>> masked_tokenizer(["the", "key"])("the [MASK]")["input_ids"]
    [2, 5, 4, 3]
    """
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = {word: i for i, word in enumerate(dict.fromkeys([*special, *words]))}
    core = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    core.normalizer = normalizers.Lowercase()
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    fast: Any = transformers.PreTrainedTokenizerFast  # typed as Any: transformers' constructors are untyped
    named = {f"{t.strip('[]').lower()}_token": t for t in special}
    return fast(tokenizer_object=core, model_max_length=max_length, **named)
