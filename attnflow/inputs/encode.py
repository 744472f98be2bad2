"""What is given to the model, brought to one form once: a batch of tensors and the names of its positions.

A text may be a str, a list of str, a ``BatchEncoding`` or dict of tensors, or ids; images, audio and other
inputs are given as a dict. Everything that looks at inputs (capture, gradients, blank-out) starts from
:func:`encode`, so that all of them see the same tokens, the same padding and the same errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attnflow.errors import InputError
from attnflow.inputs.limits import (
    check_length,
    check_vocabulary,
    pair_notes,
    position_limit,
    text_config,
    unknown_notes,
    word_embeddings,
)
from attnflow.inputs.naming import image_tokens, name_ids, name_text, plain_tokenizer
from attnflow.inputs.untrained import untrained_notes
from attnflow.numbers import check_max_length
from attnflow.reprs import one_line
from attnflow.tokens import Tokens

MAX_NEW_TOKENS = 64
"""How far a greedy output goes that is made because no ``text_target`` was given."""

_MAIN = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "input_values", "pixel_values_videos")


@one_line
@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch that is ready for ``model(**inputs.batch)``.

    Attributes:
        batch: tensors on the model's device, padded to one length.
        tokens: for each example the names of its own positions, without padding.
        positions: for each example where these positions are in the padded row.
        single: True if one text was given, so that one result is meant.
        decoder_tokens: the same for the decoder of an encoder-decoder model; None for other models.
        decoder_positions: the same for the decoder.
        text_key: the entry of ``batch`` that ``tokens`` name ("input_ids", "pixel_values", ...).
        settings: what was chosen for the user.
        notes: what a reader should know.
        mirrored: True if the decoder is given the encoder's input again, as the model itself does.

    >>> from transformers import BertConfig, BertModel
    >>> small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=30)
    >>> inputs = encode(BertModel(BertConfig(**small)), None, [[5, 6, 7], [8, 9]])
    >>> inputs.batch["attention_mask"].tolist(), inputs.positions[1], inputs.tokens[1]
    ([[1, 1, 1], [1, 1, 0]], (0, 1), ('0', '1'))
    """

    batch: dict[str, Any]
    tokens: tuple[Tokens, ...]
    positions: tuple[tuple[int, ...], ...]
    single: bool
    decoder_tokens: tuple[Tokens, ...] | None = None
    decoder_positions: tuple[tuple[int, ...], ...] | None = None
    text_key: str = "input_ids"
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    mirrored: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """The padded length of a row."""
        value = self.batch.get(self.text_key)
        return int(value.shape[1]) if self.text_key in ("input_ids", "inputs_embeds") and value is not None else 0


@dataclass
class _Draft:
    """The batch while it is being put together."""

    batch: dict[str, Any]
    single: bool
    texts: list[str | tuple[str, str]] | None = None
    encodings: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    mirrored: bool = False


def encode(
    model: torch.nn.Module,
    tokenizer: Any = None,
    text: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    text_target: str | Sequence[str] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    text_pair: str | Sequence[str] | None = None,
    max_length: int | None = None,
    truncation: bool = False,
) -> Inputs:
    """Normalise what the user gave; see :class:`Inputs`.

    Args:
        model: a Hugging Face model; only read.
        tokenizer: its tokenizer or processor; not needed for ids and tensors, but then positions are numbered.
        text: a str, a list of str, a ``BatchEncoding`` or dict of tensors, or ids (list or tensor).
        inputs: anything that is not text, as for ``model(**inputs)``.
        text_pair: the second text of each, for models that read two (a premise and a hypothesis). A list of pairs, or
            ``{"text": …, "text_pair": …}`` as pipelines take it, is the same.
        max_length: cut a text to this many tokens. ``truncation=True``: to as many as the model has positions for. A
            note says how many were cut off.
        text_target: the decoder's text, for encoder-decoder models. Without it the model's own greedy output of at
            most ``max_new_tokens`` is used where it can generate; for classifiers that give their input to the decoder
            again (BART, T5) that; else the start token. ``settings["decoder"]`` says which.
    """
    if isinstance(text, Mapping) and isinstance(text.get("text"), str):
        text, text_pair = text["text"], text.get("text_pair", text_pair)
    draft = _draft(model, tokenizer, text, inputs, Cut(text_pair, _limit(model, text, max_length, truncation)))
    draft.notes += untrained_notes(model)
    _check_inputs(model, draft.batch, text)
    check_vocabulary(model, tokenizer, draft.batch)
    check_length(model, draft.batch)
    _to_device(model, draft.batch)
    _left_positions(model, draft)
    key = next((k for k in _MAIN if draft.batch.get(k) is not None), next(iter(draft.batch), ""))
    tokens, positions = _name(model, tokenizer, draft, key)
    decoder_tokens, decoder_positions = _decoder(model, tokenizer, draft, text_target, max_new_tokens)
    return Inputs(
        draft.batch, tokens, positions, draft.single, decoder_tokens, decoder_positions, key,
        draft.settings, tuple(draft.notes), draft.mirrored,
    )  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """How texts are read: the second text of each, and the number of tokens that they are cut to."""

    pair: str | Sequence[str] | None = None
    most: int | None = None


def _limit(model: torch.nn.Module, text: Any, max_length: int | None, truncation: bool) -> int | None:
    """How many tokens a text is cut to; None for no limit."""
    limit = check_max_length(max_length)
    if limit is None and not truncation:
        return None
    if not isinstance(text, str | list | tuple) or (len(text) and isinstance(text[0], int)):
        name = "truncation" if limit is None else "max_length"
        raise InputError(f"{name}= cuts a text, and a {type(text).__name__} was given. Cut it yourself, or give text.")
    return position_limit(model) if limit is None else limit


def _draft(model: torch.nn.Module, tokenizer: Any, text: Any, inputs: Mapping[str, Any] | None, cut: Cut) -> _Draft:
    if text is None and inputs is None:
        raise InputError("Neither text nor inputs were given: capture(model, tokenizer, 'a text').")
    if text is not None and inputs is not None and isinstance(text, Mapping):
        raise InputError("text is a dict and inputs= is one too: put all tensors into inputs={...}.")
    draft = _from_mapping(inputs) if inputs is not None else None
    if text is None:
        assert draft is not None
        return draft
    from_text = _from_text(tokenizer, text, cut)
    if draft is not None:
        from_text.batch = {**draft.batch, **from_text.batch}
    accepted = _accepted(model)
    if accepted is not None:
        extra = [k for k in from_text.batch if k not in accepted and k not in (inputs or {})]
        for name in extra:
            del from_text.batch[name]
    return from_text


def _check_inputs(model: torch.nn.Module, batch: Mapping[str, Any], text: Any) -> None:
    """Refuse a text for a model of images or sound, and a dict in which nothing is what the model reads."""
    accepted = _accepted(model)
    own = getattr(model, "main_input_name", ())  # Perceiver's is "inputs"; OneFormer has a list of two
    known = dict.fromkeys((*_MAIN, *([own] if isinstance(own, str) else own)))
    reads = [name for name in known if accepted is not None and name in accepted]
    if reads and not any(batch.get(name) is not None for name in reads):
        given = (
            "a text" if text is not None and not isinstance(text, Mapping) else ", ".join(map(str, batch)) or "nothing"
        )
        raise InputError(
            f"{type(model).__name__} reads {' or '.join(reads)}, and {given} was given:  "
            f"capture(model, inputs={{{reads[0]!r}: …}})"
        )


def _accepted(model: torch.nn.Module) -> set[str] | None:
    """Names that the model's forward takes, None if it takes anything."""
    parameters = inspect.signature(model.forward).parameters
    names = {n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return names or None


def _from_text(tokenizer: Any, text: Any, cut: Cut) -> _Draft:
    if isinstance(text, str):
        return _from_strings(tokenizer, *_paired([text], cut), cut.most, single=True)
    if isinstance(text, Sequence) and len(text) and all(_is_pair(t) for t in text):
        return _from_strings(tokenizer, [t[0] for t in text], [t[1] for t in text], cut.most, single=False)
    if isinstance(text, Sequence) and len(text) and all(isinstance(t, str) for t in text):
        return _from_strings(tokenizer, *_paired(list(text), cut), cut.most, single=False)
    if cut.pair is not None:
        raise InputError(f"text_pair= belongs to a text, and text is a {type(text).__name__}: give a str or a list.")
    if isinstance(text, Mapping):
        return _from_mapping(text)
    if hasattr(text, "__array__") and not isinstance(text, torch.Tensor):
        array = np.asarray(text)
        # Arrays and columns of texts, or of rows of ids, are lists of them.
        text = array.tolist() if array.dtype.kind in "OUST" else torch.as_tensor(array)
        if isinstance(text, str) or (isinstance(text, list) and text and isinstance(text[0], str)):
            return _from_text(tokenizer, text, cut)
    if isinstance(text, torch.Tensor):
        return _from_tensor(text)
    if not isinstance(text, Sequence):
        raise InputError(f"text is a {type(text).__name__}: give a str, a list of str, a dict of tensors, or ids.")
    if len(text) == 0:
        raise InputError("The text is an empty list: give at least one text.")
    if all(isinstance(t, int | np.integer) for t in text):
        return _from_tensor(torch.tensor([int(t) for t in text]))
    if all(isinstance(t, Mapping) and "role" in t for t in text):
        raise InputError(
            "text is a list of chat messages and a str was expected. Write them out first:  "
            "text = tokenizer.apply_chat_template(messages, tokenize=False)"
        )
    if all(isinstance(t, Sequence | torch.Tensor | np.ndarray) and not isinstance(t, str) for t in text):
        return _from_rows([_row_of_ids(t, number) for number, t in enumerate(text)], pad=0, single=False)
    kinds = ", ".join(sorted({type(t).__name__ for t in text}))
    raise InputError(f"text is a list of {kinds}: give a list of str, or a list of ids.")


def _row_of_ids(row: Any, number: int) -> torch.Tensor:
    """The ids of one text in a list of them; words in their place belong into one str."""
    try:
        found = torch.as_tensor(row)
    except (ValueError, TypeError, RuntimeError):
        found = None
    if found is None or found.ndim != 1 or found.is_floating_point() or found.is_complex():
        if len(row) == 0:
            return torch.zeros(0, dtype=torch.long)
        raise InputError(
            f"Text {number} (from 0) is the {type(row).__name__} {str(row)[:40]}: give a str, or a row of ids. Words "
            "are joined first:  [' '.join(words) for words in texts]"
        )
    return found.long()


def _from_tensor(ids: torch.Tensor) -> _Draft:
    if ids.is_floating_point():
        raise InputError(f"ids are whole numbers, and these are {ids.dtype}: pass embeddings as inputs_embeds=.")
    if ids.ndim not in (1, 2) or ids.numel() == 0:
        raise InputError(f"ids have shape {tuple(ids.shape)}: give one row of ids, or a batch [texts, length].")
    rows = ids[None] if ids.ndim == 1 else ids
    return _Draft({"input_ids": rows.long(), "attention_mask": torch.ones_like(rows)}, single=len(rows) == 1)


def _from_rows(rows: list[torch.Tensor], pad: int, single: bool) -> _Draft:
    """Rows of different length, padded on the right: there it changes no position, in any kind of model."""
    if any(len(row) == 0 for row in rows):
        raise InputError(f"Text {[len(r) for r in rows].index(0)} has 0 tokens: give at least one.")
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return _Draft({"input_ids": ids, "attention_mask": mask}, single)


def _is_pair(text: Any) -> bool:
    return isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(t, str) for t in text)


def _paired(texts: list[str], cut: Cut) -> tuple[list[str], list[str] | None]:
    """The texts and their second halves, one for each."""
    if cut.pair is None:
        return texts, None
    pairs = [cut.pair] if isinstance(cut.pair, str) else list(cut.pair)
    if len(pairs) != len(texts) or not all(isinstance(p, str) for p in pairs):
        raise InputError(
            f"{len(texts)} texts and {len(pairs)} in text_pair: give one second text for each, as a list of str."
        )
    return texts, pairs


def _encoded(plain: Any, text: str, pair: str | None, most: int | None) -> tuple[Any, str]:
    """What the tokenizer makes of one text, and a note if it was cut."""
    from transformers import PreTrainedTokenizerBase  # here, because it takes longer to import than all of attnflow

    both = (text,) if pair is None else (text, pair)
    # transformers would warn of long texts by the tokenizer's own limit, also of those that are cut here.
    quiet = {"verbose": False} if isinstance(plain, PreTrainedTokenizerBase) else {}
    if most is None:
        return plain(*both, return_special_tokens_mask=True, **quiet), ""
    made = plain(*both, return_special_tokens_mask=True, truncation=True, max_length=most, **quiet)
    if len(made["input_ids"]) < most:
        return made, ""
    whole = len(plain(*both, **quiet)["input_ids"])
    cut = len(made["input_ids"])
    return made, f"The text was cut to {cut} of {whole} tokens." if cut < whole else ""


def _from_strings(tokenizer: Any, texts: list[str], pairs: list[str] | None, most: int | None, single: bool) -> _Draft:
    plain = plain_tokenizer(tokenizer)
    if plain is None:
        shown = texts[0] if len(texts[0]) <= 30 else texts[0][:29] + "…"
        raise InputError(
            f"The text {shown!r} needs a tokenizer and tokenizer is None. Pass the model's own:  "
            "tokenizer = AutoTokenizer.from_pretrained(name)"
        )
    seconds: list[str | None] = [None] * len(texts) if pairs is None else list(pairs)
    for i, (text, second) in enumerate(zip(texts, seconds, strict=True)):
        refuse_surrogates(text, "The text" if single else f"Text {i}")
        refuse_surrogates(second or "", "The second text" if single else f"The second text of {i}")
    made = [_encoded(plain, text, second, most) for text, second in zip(texts, seconds, strict=True)]
    encoded = [one for one, _ in made]
    for i, (text, one) in enumerate(zip(texts, encoded, strict=True)):
        if not len(one["input_ids"]) or all(one["special_tokens_mask"]):
            which = "The text" if single else f"Text {i}"
            raise InputError(f"{which} {text!r} is empty: it has 0 tokens of its own. Give at least one word.")
    pad = plain.pad_token_id if plain.pad_token_id is not None else 0
    draft = _from_rows([torch.tensor(one["input_ids"]) for one in encoded], pad, single)
    if "token_type_ids" in encoded[0]:
        kinds = _from_rows([torch.tensor(one["token_type_ids"]) for one in encoded], 0, single)
        draft.batch["token_type_ids"] = kinds.batch["input_ids"]
    draft.texts = [t if p is None else (t, p) for t, p in zip(texts, seconds, strict=True)]
    draft.encodings = encoded
    draft.notes += sorted({note for _, note in made if note})
    draft.settings |= {} if most is None else {"max_length": most}
    draft.notes += unknown_notes(plain, texts, encoded)
    draft.notes += [] if pairs is None else pair_notes(plain)
    if len({len(one["input_ids"]) for one in encoded}) > 1:
        draft.settings["padding"] = "right"
        if plain.pad_token_id is None:
            draft.notes.append("The tokenizer has no pad token: the batch was padded with id 0, which is masked.")
    return draft


def refuse_surrogates(text: str, which: str) -> None:
    """Half of a character pair, as a wrong decoding leaves it, is no character: tokenizers cannot read it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{which} has half of a character (U+{ord(text[error.start]):04X}) at place {error.start}: it was decoded "
            "wrongly. Mend it:  text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from None


def _from_mapping(given: Mapping[str, Any]) -> _Draft:
    if not given:
        raise InputError("inputs is an empty dict: give what model(**inputs) needs.")
    batch: dict[str, Any] = {}
    single = False
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            # Embeddings are looked up by whole numbers of 64 bits.
            value = torch.as_tensor(value.astype(np.int64) if value.dtype.kind in "iu" else value)
        if isinstance(value, list | tuple) and name.endswith(("ids", "mask")) and len(value):
            value = _listed(name, value)
        batch[name] = value
    for name in ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids"):
        value = batch.get(name)
        if isinstance(value, torch.Tensor) and value.ndim == 1:
            batch[name] = value[None]
    for name in ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping"):
        batch.pop(name, None)
    key = next((k for k in _MAIN if batch.get(k) is not None), None)
    lead = batch.get(key) if key else next((v for v in batch.values() if isinstance(v, torch.Tensor)), None)
    if isinstance(lead, torch.Tensor):
        if lead.numel() == 0:
            raise InputError(f"{key} is empty: shape {tuple(lead.shape)}.")
        single = lead.shape[0] == 1 or lead.ndim == 1
    draft = _Draft(batch, single)
    draft.encodings = given if getattr(given, "encodings", None) else None
    return draft


def _listed(name: str, value: Sequence[Any]) -> Any:
    lengths = {len(v) for v in value if isinstance(v, Sequence | torch.Tensor)}
    if len(lengths) > 1:
        raise InputError(
            f"{name} has rows of {min(lengths)} to {max(lengths)} entries, and a batch has one length. Pad it:  "
            "tokenizer(texts, padding=True, return_tensors='pt')"
        )
    if any(isinstance(v, torch.Tensor) for v in value):
        return torch.stack(list(value))
    return torch.tensor(value)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where the model takes its inputs; a part that was off-loaded takes them on the processor."""
    table = word_embeddings(model)
    first = next((table or model).parameters(), None)
    if first is None:
        first = next(model.parameters(), None)
    if first is None or first.device.type == "meta":
        return torch.device("cpu")
    return first.device


def _to_device(model: torch.nn.Module, batch: dict[str, Any]) -> None:
    device = device_of(model)
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            # Images and sound come in float32 from the processors, also for a model in half precision.
            cast = value.is_floating_point() and name in _MAIN
            batch[name] = value.to(device=device, dtype=kind if cast else None)


def _left_positions(model: torch.nn.Module, draft: _Draft) -> None:
    """Give rows padded on the left the positions that they would have alone."""
    mask, ids = draft.batch.get("attention_mask"), draft.batch.get("input_ids")
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or ids is None or bool((mask[:, 0] != 0).all()):
        return
    accepted = _accepted(model)
    own = any(hasattr(m, "create_position_ids_from_input_ids") for m in model.modules())
    taken = accepted is None or "position_ids" in accepted
    if own or not taken or "position_ids" in draft.batch or getattr(text_config(model), "is_encoder_decoder", False):
        return
    draft.batch["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    draft.settings["position_ids"] = "counted from the first token that is not padding"


def _name(
    model: torch.nn.Module, tokenizer: Any, draft: _Draft, key: str
) -> tuple[tuple[Tokens, ...], tuple[tuple[int, ...], ...]]:
    lead = draft.batch.get(key)
    if key == "pixel_values" and isinstance(lead, torch.Tensor):
        named = image_tokens(getattr(model, "config", None), tuple(lead.shape))
        count = lead.shape[0] if lead.ndim >= 4 else 1
        return (named,) * count, (tuple(range(len(named))),) * count
    if key not in ("input_ids", "inputs_embeds") or not isinstance(lead, torch.Tensor):
        count = lead.shape[0] if isinstance(lead, torch.Tensor) and lead.ndim else 1
        return (Tokens(()),) * count, ((),) * count
    rows = lead if key == "input_ids" else torch.zeros(lead.shape[:2], dtype=torch.long)
    kept = _kept(rows, draft.batch.get("attention_mask"))
    if key == "inputs_embeds" or rows.ndim != 2:
        return tuple(Tokens.numbered(len(p)) for p in kept), kept
    if draft.texts is not None:
        named_rows = [name_text(tokenizer, t, e) for t, e in zip(draft.texts, draft.encodings, strict=True)]
    else:
        ids = rows.cpu()
        named_rows = [name_ids(tokenizer, ids[i, list(p)].tolist(), draft.encodings, i, p) for i, p in enumerate(kept)]
    draft.notes += sorted({note for _, note in named_rows if note})
    return tuple(t for t, _ in named_rows), kept


def _kept(rows: torch.Tensor, mask: Any) -> tuple[tuple[int, ...], ...]:
    """For each row the positions that are not padding."""
    count, width = rows.shape[:2]
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape != (count, width):
        return (tuple(range(width)),) * count
    kept = tuple(tuple(torch.nonzero(row != 0).flatten().tolist()) for row in mask)
    if not all(kept):
        row = [len(p) for p in kept].index(0)
        raise InputError(f"Row {row} of attention_mask is 0 everywhere, so text {row} has no token to look at.")
    return kept


def _decoder(
    model: torch.nn.Module, tokenizer: Any, draft: _Draft, text_target: Any, max_new_tokens: int
) -> tuple[tuple[Tokens, ...] | None, tuple[tuple[int, ...], ...] | None]:
    accepted = _accepted(model)
    takes = accepted is not None and "decoder_input_ids" in accepted
    config = getattr(model, "config", None)
    if not takes or not getattr(config, "is_encoder_decoder", False):
        if text_target is not None:
            raise InputError(
                f"text_target was given, and {type(model).__name__} has no decoder of its own: leave text_target out."
            )
        return None, None
    from attnflow.inputs import decoder

    ids, mask, origin = decoder.decoder_ids(model, tokenizer, draft.batch, text_target, max_new_tokens)
    draft.settings |= origin.settings(max_new_tokens)
    draft.mirrored = origin is decoder.Origin.MIRRORED
    if ids is None:
        return None, None
    draft.batch["decoder_input_ids"] = ids
    kept = _kept(ids, mask)
    if mask is not None and not bool(mask.all()) and "decoder_attention_mask" in (accepted or ()):
        draft.batch["decoder_attention_mask"] = mask
    named = [name_ids(tokenizer, ids[i, list(p)].tolist(), None, i, p) for i, p in enumerate(kept)]
    return tuple(t for t, _ in named), kept
