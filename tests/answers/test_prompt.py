"""Prompts: where the template put what the user wrote."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from attnflow import AttnFlowError
from attnflow.answers.prompt import read_prompt
from attnflow.answers.sources import find_sources
from tests.answers.tiny import TEMPLATE, tokenizer

SAYS = "<|start|>system\nYou are the key of a user.<|end|>\n"


def with_template(template: str) -> Any:
    made = copy.deepcopy(tokenizer())
    made.chat_template = template
    return made


def trimming() -> Any:
    return with_template(TEMPLATE.replace("m.content", "m.content | trim"))


def sources(tok: Any, prompt: Any, wanted: Any = None) -> list[tuple[str, str, int]]:
    found = read_prompt(tok, prompt)
    return [
        (s.name, s.text, s.start)
        for s in find_sources(found.text, found.pieces, found.split if wanted is None else wanted)
    ]


def test_words_that_the_template_has_too() -> None:
    tok = with_template(SAYS + TEMPLATE)
    start = len(SAYS + "<|start|>user\n")
    assert sources(tok, {"context": "the key", "question": "a"}) == [
        ("sentence 1", "the key", start), ("question", "a", start + 9)
    ]  # fmt: skip
    messages = [{"role": "user", "content": c} for c in ("user", "s", "the key")]
    text = read_prompt(tok, messages).text
    expected, at = [], len(SAYS)
    for number, message in enumerate(messages, 1):
        at = text.index("user\n", at) + 5
        expected.append((f"user {number}", message["content"], at))
    assert sources(tok, messages) == expected


@pytest.mark.parametrize("context", ["One key. Two.\n", "\n One key. Two."])
@pytest.mark.parametrize("question", ["", "Why?", "Why? \n"])
def test_a_template_that_takes_space_off(context: str, question: str) -> None:
    found = sources(trimming(), {"context": context, "question": question})
    assert [(name, text.strip()) for name, text, _ in found if name != "question"] == [
        ("sentence 1", "One key."), ("sentence 2", "Two.")
    ]  # fmt: skip
    assert [text for name, text, _ in found if name == "question"] == ["Why?"] * bool(question)
    at = context.index("key")
    assert sources(trimming(), {"context": context, "question": question}, [(at, at + 3)])[0][1] == "key"


def test_documents_and_messages_with_space_taken_off() -> None:
    found = sources(trimming(), {"context": {"a.txt": "\nOne.\n", "b.txt": "Two.\n"}})
    assert [(name, text) for name, text, _ in found] == [("a.txt", "One."), ("b.txt", "Two.")]
    messages = [
        {"role": "user", "content": " One. "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "\n"},
    ]
    assert [(name, text) for name, text, _ in sources(trimming(), messages)] == [("user 1", "One.")]


def test_without_a_template_nothing_is_taken_off() -> None:
    found = read_prompt(tokenizer(template=False), {"context": " One.\n", "question": "Why?\n"})
    assert found.text == " One.\n\n\nWhy?\n" and found.pieces[1].end == len(found.text)


def test_texts_and_images_in_one_message() -> None:
    tok = with_template(
        "{% for m in messages %}{{ m.role }}:{% for p in m.content %}"
        "{{ p.text if p.type == 'text' else '<image>' }}{% endfor %}{% endfor %}"
    )
    parts = [{"type": "text", "text": "user"}, {"type": "image"}, {"type": "text", "text": "image"}]
    assert sources(tok, [{"role": "user", "content": parts}]) == [("user 1", "user", 5), ("user 1", "image", 16)]


def test_a_template_that_changes_or_refuses_what_it_is_given() -> None:
    loud = with_template(TEMPLATE.replace("m.content", "m.content | upper"))
    for prompt in ({"context": "the key"}, [{"role": "user", "content": "the key"}]):
        with pytest.raises(
            AttnFlowError, match="the text 'the key', and the chat template leaves it out or changes it"
        ):
            read_prompt(loud, prompt)
    strict = with_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(AttnFlowError, match="roles user, and the tokenizer's chat template refuses them: roles must"):
        read_prompt(strict, [{"role": "user", "content": "the key"}])
