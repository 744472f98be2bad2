"""Spans: every character in exactly one source or in the template."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow import AttnFlowError
from attnflow.answers.sources import Piece, find_sources, owners_of, paragraphs, sentences, words

TEXT = "One key is red. Two keys are blue.\n\nThree? No!"


@given(st.text(alphabet="ab .!?\n\t\u202e<>", max_size=60))
@pytest.mark.parametrize("split", [paragraphs, sentences, words])
def test_a_split_gives_every_character_to_one_part(split, text):
    spans = split(text)
    if not text.strip():
        assert spans == []
        return
    assert spans[0][0] == 0 and spans[-1][1] == len(text)
    assert all(a < b for a, b in spans) and all(b == c for (_, b), (c, _) in pairwise(spans))
    assert all(text[a:b].strip() for a, b in spans)


def test_sentences_by_hand():
    def cut(text):
        return [text[a:b] for a, b in sentences(text)]

    assert cut(TEXT) == ["One key is red. ", "Two keys are blue.\n\n", "Three? ", "No!"]
    assert cut("Mr. A. Smith paid 3.50 e.g. today.") == ["Mr. A. Smith paid 3.50 e.g. today."]
    assert cut('He said "Stop." Then he left.') == ['He said "Stop." ', "Then he left."]
    assert cut("鍵は赤い。青くない。") == ["鍵は赤い。", "青くない。"]


def test_paragraphs_and_words_by_hand():
    assert [TEXT[a:b] for a, b in paragraphs(TEXT)] == ["One key is red. Two keys are blue.\n\n", "Three? No!"]
    assert len(words(TEXT)) == len(TEXT.split())


def whole(text=TEXT):
    return [Piece(0, len(text), "prompt")]


def test_sources_as_strings_spans_and_names():
    listed = find_sources(TEXT, whole(), ["Two keys are blue.", "One key"])
    assert [(s.name, s.text) for s in listed] == [("source 2", "One key"), ("source 1", "Two keys are blue.")]
    assert find_sources(TEXT, whole(), [(0, 7)])[0].text == "One key"
    assert find_sources(TEXT, whole(), np.array([[0, 7], [8, 10]]))[1].text == "is"
    assert find_sources(TEXT, whole(), {"a": "Three?"})[0].name == "a"
    # The same words twice: each source takes the next place.
    twice = find_sources("key key", whole("key key"), ["key", "key"])
    assert [(s.start, s.end) for s in twice] == [(0, 3), (4, 7)]


def test_a_question_is_one_source_by_itself():
    found = find_sources("A. B. C?", [Piece(0, 6, "prompt"), Piece(6, 8, "question", "question")], "sentences")
    assert [(s.text, s.kind) for s in found] == [("A. B. ", "context"), ("C?", "question")]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("lines", "sources='lines' is not known. Use 'messages', 'paragraphs', 'sentences', 'words'"),
        (["Four"], "The source 'Four' is not in the prompt, which has 46 characters of context"),
        ([""], "A source is an empty string"),
        ([(0, 20), (10, 30)], "share 10 characters (' red. Two '), and each belongs to one source"),
        ([(0, 20), (10, 30)], "Cut one of them:  sources=[(0, 10), …]"),
        ([(0, 20), (0, 20)], "Leave one of them out."),
        ("patches", "no image was given. In Python:  attribute(model, processor, prompt, images=image)"),
        ([(40, 99)], r"The source (40, 99) is no span of the context, which has 46 characters"),
        ([3], "A source is 3, and a string or a pair"),
        (7, "sources is a int"),
        ([], "The prompt has no source"),
    ],
)
def test_bad_sources(wanted, said):
    with pytest.raises(AttnFlowError, match=re.escape(said)):
        find_sources(TEXT, whole(), wanted)


def test_spans_need_one_text_to_count_in():
    with pytest.raises(AttnFlowError, match="has 2 texts to count in"):
        find_sources("ab", [Piece(0, 1, "a"), Piece(1, 2, "b")], [(0, 1)])


def test_spans_count_in_the_text_that_was_given():
    """A template wrote "…" in front of it and took two spaces off."""
    piece = Piece(1, 8, "prompt", given=(-1, 9))
    assert find_sources("…One key…", [piece], [(2, 5)])[0].text == "One"
    assert find_sources("…One key…", [piece], [(0, 10)])[0].text == "One key"
    for outside in ((0, 2), (0, 11)):
        with pytest.raises(AttnFlowError, match="is no span of the context, which has 10 characters"):
            find_sources("…One key…", [piece], [outside])
    with pytest.raises(AttnFlowError, match=re.escape("sources=[(2, 4), …]")):
        find_sources("…One key…", [piece], [(2, 6), (4, 9)])


def test_owners():
    text = "ab cd ef"
    found = find_sources(text, whole(text), [(0, 3), (3, 5)])
    # " cd" begins with a space of the first source, its first letter is in the second.
    assert owners_of([(0, 2), (2, 5), (5, 8), (0, 0), (2, 3)], text, found) == [0, 1, -1, -1, 0]
