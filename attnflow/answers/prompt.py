"""What the model is given: a prompt as one text, its tokens with their characters, and the answer behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.answers.sources import Piece, Span
from attnflow.errors import InputError
from attnflow.inputs.encode import refuse_surrogates
from attnflow.inputs.limits import position_limit
from attnflow.inputs.naming import plain_tokenizer

_GENERATED = "assistant"


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt as the model reads it.

    Attributes:
        text: all of it, with the template.
        pieces: what the user wrote in it.
        special: whether the tokenizer adds its own special tokens; a chat template has written them already.
        split: into which sources it is split where the user did not say.
        answer: an answer that the messages end with.
    """

    text: str
    pieces: tuple[Piece, ...]
    special: bool
    split: Any = "sentences"
    answer: str | None = None


def read_prompt(tokenizer: Any, prompt: Any) -> Prompt:
    """A str, chat messages, or a dict with context and question, as one text."""
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InputError("The prompt is empty: give a text, chat messages, or a dict with context and question.")
        return Prompt(prompt, (Piece(0, len(prompt), "prompt"),), True)
    if isinstance(prompt, Mapping):
        return _from_dict(tokenizer, prompt)
    if isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) and "role" in m for m in prompt):
        return _from_messages(tokenizer, list(prompt))
    raise InputError(
        f"The prompt is a {type(prompt).__name__}: give a str, a list of messages "
        "[{'role': 'user', 'content': '…'}], or {'context': '…', 'question': '…'}."
    )


def _from_messages(tokenizer: Any, messages: list[Mapping[str, Any]]) -> Prompt:
    answer = None
    if messages[-1]["role"] == _GENERATED and len(messages) > 1:
        answer = "".join(_texts(messages[-1]))
        messages = messages[:-1]
    text = _rendered(tokenizer, messages)
    named = [(f"{m['role']} {number}", content) for number, m in enumerate(messages, 1) for content in _texts(m)]
    spans = _places(tokenizer, messages, text, [content for _, content in named])
    pieces = [
        Piece(*span, name, given=_whole(span, content))
        for (name, content), span in zip(named, spans, strict=True)
        if span is not None
    ]
    return Prompt(text, tuple(pieces), False, "messages", answer)


def _texts(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message, whose content may be a list of texts and images."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, Sequence):
        raise InputError(f"The message {dict(message)!r} has no content: give {{'role': 'user', 'content': '…'}}.")
    return [str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("type") == "text"]


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    from jinja2 import TemplateError

    holder = tokenizer if getattr(tokenizer, "chat_template", None) else plain_tokenizer(tokenizer)
    if not getattr(holder, "chat_template", None):
        raise InputError(
            f"The prompt is a list of chat messages and the tokenizer ({type(holder).__name__}) has no chat template. "
            "Give it the model's own:  tokenizer.chat_template = '…'  or a str as the prompt."
        )
    try:
        return str(holder.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        roles = ", ".join(str(m["role"]) for m in messages)
        raise InputError(
            f"The messages have the roles {roles}, and the tokenizer's chat template refuses them: {error}. Give "
            "messages that it takes, or the whole prompt as a str."
        ) from error


def _places(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], text: str, contents: Sequence[str]
) -> list[Span | None]:
    """Where the template put each content; None for a blank one.

    The same words may stand in the template itself. So it is filled a second time, with marks for contents: what
    stands between two marks is the template's own, and a content is looked for behind it.
    """
    marks = iter([_mark(number) for number in range(len(contents))])
    marked = _rendered(tokenizer, [_marked(message, marks) for message in messages])
    out: list[Span | None] = []
    at = seen = 0
    for number, content in enumerate(contents):
        mark = marked.find(_mark(number), seen)
        between = marked[seen:mark] if mark >= 0 else ""
        at += len(between) if text.startswith(between, at) else 0
        seen = mark + len(_mark(number)) if mark >= 0 else seen
        if not content.strip():
            out.append(None)
            continue
        found = next(((p, c) for c in (content, content.strip()) if (p := text.find(c, at)) >= 0), None)
        if found is None:
            raise InputError(
                f"The prompt has the text {content[:30]!r}, and the chat template leaves it out or changes it, so that "
                "its characters are not found. Give the prompt as a str:  tokenizer.apply_chat_template(messages, "
                "tokenize=False, add_generation_prompt=True)"
            )
        at = found[0] + len(found[1])
        out.append((found[0], at))
    return out


def _mark(number: int) -> str:
    return f"\ue000{number}\ue001"  # of the private area, in which no text has letters


def _marked(message: Mapping[str, Any], marks: Iterator[str]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": next(marks)}
    parts = [
        {**part, "text": next(marks)} if isinstance(part, Mapping) and part.get("type") == "text" else part
        for part in content or ()
    ]
    return {**message, "content": parts}


def _whole(span: Span, content: str) -> Span:
    """Where all of a content would stand, with the space around it that a template takes off."""
    cut = 0 if span[1] - span[0] == len(content) else len(content) - len(content.lstrip())
    return span[0] - cut, span[0] - cut + len(content)


def _from_dict(tokenizer: Any, prompt: Mapping[str, Any]) -> Prompt:
    unknown = set(prompt) - {"context", "question"}
    if "context" not in prompt or unknown:
        have = ", ".join(map(repr, prompt))
        raise InputError(f"The prompt is a dict of {have}: give {{'context': '…', 'question': '…'}}.")
    context, question = prompt["context"], str(prompt.get("question") or "")
    named: dict[str, str] | None = None
    if isinstance(context, Mapping):
        named = {str(name): str(text) for name, text in context.items()}
    elif isinstance(context, Sequence) and not isinstance(context, str):
        named = {f"document {i}": str(text) for i, text in enumerate(context, 1)}
    body = "\n\n".join(named.values()) if named is not None else str(context)
    if not body.strip():
        raise InputError("The context is empty: give the text in which the answer is to be found.")
    content = f"{body}\n\n{question}" if question.strip() else body
    chat = bool(getattr(plain_tokenizer(tokenizer), "chat_template", None))
    text, span = content, (0, len(content))
    if chat:
        messages = [{"role": "user", "content": content}]
        text = _rendered(tokenizer, messages)
        span = _places(tokenizer, messages, text, [content])[0] or span
    start = _whole(span, content)[0]
    end = start + len(body)
    pieces = [Piece(max(start, span[0]), min(end, span[1]), "prompt", given=(start, end))]
    if content != body:
        pieces.append(Piece(start + len(content) - len(question), span[1], "question", "question"))
    if named is not None and span[1] - span[0] < len(content):
        named = {name: words.strip() for name, words in named.items()}  # as the template did at both ends
    return Prompt(text, tuple(pieces), not chat, "sentences" if named is None else named)


@dataclass(frozen=True, eq=False)
class Reading:
    """The tokens of a prompt and of the answer behind it.

    Attributes:
        ids: of the prompt.
        answer_ids: of the answer.
        answer: its text.
        answer_offsets: the characters of each of its tokens.
    """

    ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    answer: str
    answer_offsets: tuple[Span, ...]


def encoded(tokenizer: Any, text: str, special: bool, ends: bool) -> tuple[list[int], list[Span]]:
    """Ids and their characters; ``ends``: keep special tokens behind the text, as an encoder wants them."""
    plain = plain_tokenizer(tokenizer)
    if plain is None:
        raise InputError("An answer is attributed to a text, and tokenizer is None: pass the model's own.")
    refuse_surrogates(text, "The prompt or answer")
    try:
        made = plain(text, add_special_tokens=special, return_offsets_mapping=True, return_special_tokens_mask=True)
    except NotImplementedError:
        raise InputError(
            f"The tokenizer ({type(plain).__name__}) cannot say which letters a token stands for. Load its fast form:  "
            "AutoTokenizer.from_pretrained(name, use_fast=True)"
        ) from None
    ids, spans = list(made["input_ids"]), [(int(a), int(b)) for a, b in made["offset_mapping"]]
    if special and not ends:
        while ids and made["special_tokens_mask"][len(ids) - 1] and spans[len(ids) - 1][1] <= spans[len(ids) - 1][0]:
            ids.pop()
    return ids, spans[: len(ids)]


def read_answer(tokenizer: Any, prompt: Prompt, ids: Sequence[int], answer: str, apart: bool) -> Reading:
    """The answer's tokens as they stand behind the prompt, or ``apart``, in a decoder of their own."""
    if not isinstance(answer, str) or not answer.strip():
        raise InputError(
            f"The answer is {answer!r}, which has no word to attribute. Give a text, or answer=None to let the model "
            "write."
        )
    if apart:
        made, spans = encoded(tokenizer, answer, False, False)
        return Reading(tuple(ids), tuple(made), answer, tuple(spans))
    whole, spans = encoded(tokenizer, prompt.text + answer, prompt.special, False)
    start = len(ids)
    if whole[:start] != list(ids) or len(whole) == start:
        raise _joined(plain_tokenizer(tokenizer), prompt, ids, whole, spans, answer)
    n = len(prompt.text)
    behind = tuple((max(a - n, 0), max(b - n, 0)) for a, b in spans[start:])
    return Reading(tuple(ids), tuple(whole[start:]), answer, behind)


def _joined(
    plain: Any, prompt: Prompt, ids: Sequence[int], whole: Sequence[int], spans: Sequence[Span], answer: str
) -> InputError:
    """The error for a token that holds the end of the prompt and the beginning of the answer."""
    alike = next((i for i, (a, b) in enumerate(zip(ids, whole, strict=False)) if a != b), min(len(ids), len(whole)) - 1)
    cut = spans[alike][0]
    text = prompt.text
    if text[:cut].strip() and prompt.special:
        shown = text[:cut] if cut <= 20 else f"…{text[:cut][-19:]}"
        advice = (
            f"Move what it holds to the answer:  attribute(model, tokenizer, {shown!r}, "
            f"answer={text[cut:] + answer.rstrip()[:20]!r})"
        )
    else:
        advice = f"The chat template ends the prompt:  answer={answer.strip()[:20]!r}"
    return InputError(
        f"The tokenizer splits the answer {answer[:20]!r} differently after the prompt: the prompt alone has the token "
        f"{plain.decode([ids[alike]])!r} where, with the answer behind it, {plain.decode([whole[alike]])!r} stands. "
        + advice
    )


def read_generated(tokenizer: Any, ids: Sequence[int], made: Sequence[int]) -> Reading:
    """The ids that the model itself wrote, without what ends them."""
    plain = plain_tokenizer(tokenizer)
    special = set(plain.all_special_ids)
    kept = list(made)
    while kept and kept[-1] in special:
        kept.pop()
    while kept and kept[0] in special:
        kept.pop(0)
    ends = [len(plain.decode(kept[: i + 1])) for i in range(len(kept))]
    answer = plain.decode(kept)
    if not answer.strip():
        raise InputError(
            "The model wrote nothing after this prompt. Give the answer:  attribute(model, tokenizer, prompt, "
            "answer='…')"
        )
    # A letter may be spread over tokens: until it is whole, the text of the first of them is not a part of it.
    ends = [min(e, len(answer)) for e in ends]
    starts = [0, *ends[:-1]]
    spans = tuple((min(a, b), b) for a, b in zip(starts, ends, strict=True))
    return Reading(tuple(ids), tuple(kept), answer, spans)


def check_length(model: Any, tokens: int, answer: int, apart: bool) -> None:
    """Refuse what the model has no positions for."""
    limit = position_limit(model)
    total = max(tokens, answer) if apart else tokens + answer
    if limit is not None and total > limit:
        what = "the answer" if apart and answer > tokens else "the context"
        raise InputError(
            f"The prompt has {tokens} tokens and the answer {answer}, and the model has {limit} positions"
            f"{' for each' if apart else ''}. Leave {total - limit} tokens of {what} out, or load a model for longer "
            "texts."
        )


def room(model: Any, tokens: int, apart: bool) -> int | None:
    """How many tokens of an answer the model has positions for behind such a prompt."""
    limit = position_limit(model)
    return None if limit is None else limit if apart else limit - tokens
