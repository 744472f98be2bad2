"""What an encoder-decoder model's decoder is given, where the user gave only the encoder's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from attnflow.errors import InputError
from attnflow.inputs.naming import plain_tokenizer
from attnflow.inputs.running import evaluating, generates

# Their heads read the decoder's states at the places of the input: no other decoder input would do.
_READERS = ("ForSequenceClassification", "ForQuestionAnswering")


class Origin(Enum):
    """Where the decoder's input comes from, in the words of the settings."""

    GIVEN = "given"
    TEXT = "text_target"
    GREEDY = "the model's own greedy output"
    MIRRORED = "the input again, as the model itself gives it to its decoder"
    START = "start token"

    def settings(self, max_new_tokens: int) -> dict[str, Any]:
        """What a result says about it."""
        return {"decoder": self.value} | ({"max_new_tokens": max_new_tokens} if self is Origin.GREEDY else {})


def decoder_ids(
    model: Any,
    tokenizer: Any,
    batch: Mapping[str, Any],
    text_target: str | Sequence[str] | None,
    max_new_tokens: int,
) -> tuple[torch.Tensor | None, torch.Tensor | None, Origin]:
    """(ids, mask, where they come from); ids and mask are ``[texts, length]``."""
    given = batch.get("decoder_input_ids")
    if given is not None:
        return given, batch.get("decoder_attention_mask"), Origin.GIVEN
    if batch.get("decoder_inputs_embeds") is not None:
        return None, None, Origin.GIVEN
    lead = next(v for v in batch.values() if isinstance(v, torch.Tensor))
    start = start_token(model)
    if text_target is not None:
        return *_target(tokenizer, text_target, start, lead), Origin.TEXT
    if generates(model):
        made = _greedy(model, batch, max_new_tokens)
        if made is not None:
            return *_until_end(model, made), Origin.GREEDY
    mirrored = _mirrored(model, batch)
    if mirrored is not None:
        return mirrored, batch.get("attention_mask"), Origin.MIRRORED
    return torch.full((lead.shape[0], 1), start, dtype=torch.long, device=lead.device), None, Origin.START


def _mirrored(model: Any, batch: Mapping[str, Any]) -> torch.Tensor | None:
    """What a classifier such as BART's gives to its decoder, made from its input; None for other models."""
    if not type(model).__name__.endswith(_READERS):
        return None
    seen: list[Any] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda _, given, named: seen.append(named.get("input_ids", given[0] if given else None)), with_kwargs=True
    )
    try:
        with evaluating(model), torch.no_grad():
            model(**batch)
    finally:
        hook.remove()
    ids = seen[0] if seen else None
    return ids.clone() if isinstance(ids, torch.Tensor) else None


def start_token(model: Any) -> int:
    """The id with which the decoder starts."""
    for holder in (getattr(model, "generation_config", None), model.config, *_nested(model.config)):
        for name in ("decoder_start_token_id", "bos_token_id"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return 0


def _nested(config: Any) -> list[Any]:
    return [c for c in (getattr(config, "decoder", None), getattr(config, "text_config", None)) if c is not None]


def _target(
    tokenizer: Any, text_target: str | Sequence[str], start: int, lead: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    plain = plain_tokenizer(tokenizer)
    if plain is None:
        raise InputError("text_target needs a tokenizer, and tokenizer is None: pass the model's own.")
    texts = [text_target] if isinstance(text_target, str) else list(text_target)
    if len(texts) != lead.shape[0]:
        raise InputError(f"{len(texts)} text_target for {lead.shape[0]} texts: give one for each.")
    # The last id is what the decoder is to predict, so it is not fed to it.
    rows = [[start, *plain(text_target=t)["input_ids"][:-1]] for t in texts]
    width = max(map(len, rows))
    pad = plain.pad_token_id if plain.pad_token_id is not None else 0
    ids = torch.tensor([r + [pad] * (width - len(r)) for r in rows], device=lead.device)
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows], device=lead.device)
    return ids, mask


def _greedy(model: Any, batch: Mapping[str, Any], max_new_tokens: int) -> torch.Tensor | None:
    """The model's own output; None if it cannot be made from what was given."""
    try:
        with evaluating(model), torch.no_grad():
            made = model.generate(**batch, do_sample=False, num_beams=1, max_new_tokens=max_new_tokens)
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError, IndexError, NotImplementedError):
        return None
    ids = made if isinstance(made, torch.Tensor) else getattr(made, "sequences", None)
    return ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point() else None


def _until_end(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut each row before its end token: what follows is padding, and the end itself is predicted, not read."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    lengths = []
    for row in ids.tolist():
        stop = next((i for i, token in enumerate(row[1:], 1) if token in ends), len(row))
        lengths.append(max(stop, 1))
    width = max(lengths)
    ids = ids[:, :width].contiguous()
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths], device=ids.device)
    return ids, mask
