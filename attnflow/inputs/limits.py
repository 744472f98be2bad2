"""What a model accepts: ids that it has embeddings for, and as many tokens as it has positions for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attnflow.errors import AttnFlowWarning, InputError
from attnflow.inputs.running import named_parts
from attnflow.tokens import check_words


def text_config(model: Any) -> Any:
    """The part of the configuration that is about text."""
    config = getattr(model, "config", None)
    read = getattr(config, "get_text_config", None)
    try:
        return read() if read is not None else config
    except (ValueError, AttributeError):
        return config


def word_embeddings(model: Any) -> torch.nn.Module | None:
    """The table of word embeddings, where the model has one."""
    try:
        found = model.get_input_embeddings()
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return found if isinstance(found, torch.nn.Module) else None


def check_vocabulary(model: torch.nn.Module, tokenizer: Any, batch: Mapping[str, Any]) -> None:
    """Refuse ids for which the model has no embedding: the tokenizer is another model's."""
    ids, table = batch.get("input_ids"), word_embeddings(model)
    weight = getattr(table, "weight", None)
    if not isinstance(ids, torch.Tensor) or weight is None or weight.ndim != 2 or ids.is_floating_point():
        return
    top = int(ids.max())
    # Hashed and multi-codebook embeddings look ids up in another way than by row.
    if top >= weight.shape[0] and isinstance(table, torch.nn.Embedding) and ids.ndim == 2:
        whose = f"the tokenizer ({type(tokenizer).__name__})" if tokenizer is not None else "the input"
        raise InputError(
            f"{whose} gives id {top}, and the model ({type(model).__name__}) has {weight.shape[0]} embeddings, "
            f"ids 0 to {weight.shape[0] - 1}: they do not belong together. Load both by one name:  "
            "AutoTokenizer.from_pretrained(name), AutoModel.from_pretrained(name)"
        )
    if int(ids.min()) < 0 and set(batch) <= {"input_ids", "attention_mask", "token_type_ids"}:
        raise InputError(f"input_ids hold {int(ids.min())}, and ids are not negative.")


def unknown_notes(tokenizer: Any, texts: Sequence[str], encoded: Sequence[Any]) -> list[str]:
    """What to say where most tokens of a text are unknown, with a warning; a tokenizer without words is refused."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")}
    if unknown is None or unknown in ends:
        return []
    said = []
    for text, one in zip(texts, encoded, strict=True):
        own = [i for i, added in zip(one["input_ids"], one["special_tokens_mask"], strict=True) if not added]
        # The mask of some tokenizers counts the unknown token as one that they added.
        count = list(one["input_ids"]).count(unknown)
        total = max(len(own), count)
        if 2 * count <= total:
            continue
        check_words(tokenizer, f"The tokenizer ({type(tokenizer).__name__})")
        name = getattr(tokenizer, "unk_token", "[UNK]")
        warnings.warn(
            f"Most tokens of a text are {name}: the tokenizer does not know its words, so that their scores say "
            "nothing of them. Is it the model's own, and the text in a language that the model knows?",
            AttnFlowWarning,
            stacklevel=4,
        )
        said.append(f"Unknown words: {count} of {total} tokens of {text[:40]!r} are {name} to the tokenizer.")
    return said


def pair_notes(tokenizer: Any) -> list[str]:
    """A note, and a warning, where a tokenizer adds special tokens to one text and none to a pair."""
    added = getattr(tokenizer, "num_special_tokens_to_add", None)
    if added is None or not added(pair=False) or added(pair=True):
        return []
    note = (
        f"Text pair: the tokenizer adds {added(pair=False)} special tokens to one text and none to a pair, so that "
        "nothing tells where the second text begins. It was made for single texts: give the pair as one text, as the "
        "model was trained to read it."
    )
    warnings.warn(note, AttnFlowWarning, stacklevel=4)
    return [note]


def position_limit(model: torch.nn.Module) -> int | None:
    """The greatest number of tokens that the model has positions for; None if it has no such limit."""
    config = text_config(model)
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit <= 0:
        return None
    for name, module in named_parts(model):
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            # RoBERTa and its kin number positions from padding_idx + 1.
            if module.padding_idx is not None and module.num_embeddings == limit:
                return limit - module.padding_idx - 1
            break
    return limit


def check_length(model: torch.nn.Module, batch: Mapping[str, Any]) -> None:
    """Refuse more tokens than the model has positions for."""
    ids, mask = batch.get("input_ids"), batch.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        return
    limit = position_limit(model)
    longest = ids.shape[1]
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        longest = int((mask != 0).sum(1).max())
    if limit is not None and longest > limit:
        raise InputError(
            f"The text has {longest} tokens and the model has {limit} positions. Cut it:  truncation=True  in this "
            f"call, or  tokenizer(text, truncation=True, max_length={limit}, return_tensors='pt')"
        )
