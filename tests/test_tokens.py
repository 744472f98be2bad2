from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from attnflow.errors import InputError, ShapeError
from attnflow.tokens import Tokens, group_words, join

PIECES = Tokens(
    ["[CLS]", "the", "cab", "##inets", "[SEP]"],
    special=[True, False, False, False, True],
    word_ids=[None, 0, 1, 1, None],
    words={0: "The", 1: "cabinets"},
    marks={"cls": 0},
)


def test_tokens_are_a_tuple_of_strings_with_more_known_of_them():
    assert PIECES == ("[CLS]", "the", "cab", "##inets", "[SEP]")
    assert PIECES[2:4] == ("cab", "##inets")
    assert PIECES.special == (True, False, False, False, True)


def test_without_word_ids_each_ordinary_token_is_a_word():
    assert Tokens(["<s>", "a", "b"], special=[True, False, False]).word_ids == (None, 1, 2)


def test_take_keeps_marks_that_are_still_there():
    taken = PIECES.take([3, 0])
    assert taken == ("##inets", "[CLS]")
    assert taken.marks == {"cls": 1}
    assert PIECES.take([1]).marks == {}


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), lambda t: Tokens.from_dict(t.to_dict())]
)
def test_a_copy_knows_the_same(copied):
    other = copied(PIECES)
    assert other == PIECES
    assert (other.special, other.word_ids, other.words, other.marks) == (
        PIECES.special, PIECES.word_ids, PIECES.words, PIECES.marks,
    )  # fmt: skip


def test_words_are_runs_of_one_word_number_and_named_by_the_text():
    grouped = group_words(PIECES)
    assert grouped.members == ((0,), (1,), (2, 3), (4,))
    assert grouped.tokens == ("[CLS]", "The", "cabinets", "[SEP]")
    assert grouped.tokens.special == (True, False, False, True)
    assert grouped.tokens.marks == {"cls": 0}


def test_marker_characters_play_no_part():
    grouped = group_words(Tokens(["a", "##b", "Ġc"], word_ids=[0, 1, 1]))
    assert grouped.members == ((0,), (1, 2))


def test_sum_over_keys_and_mean_over_queries_by_hand():
    grouped = group_words(Tokens(["a", "b", "c"], word_ids=[0, 1, 1]))
    scores = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    assert np.array_equal(grouped.sum_keys(scores), [[1, 5], [4, 11], [7, 17]])
    assert np.array_equal(grouped.mean_queries(scores), [[1, 2, 3], [5.5, 6.5, 7.5]])


def test_joined_sequences_keep_their_words_apart():
    both = join(Tokens(["a", "b"], word_ids=[0, 0]), Tokens(["c"], word_ids=[0], words={0: "C"}))
    assert both == ("a", "b", "c")
    assert both.word_ids == (0, 0, 1)
    assert both.words == {1: "C"}


def test_errors_state_both_numbers():
    with pytest.raises(ShapeError, match="2 tokens but 1 entries in special"):
        Tokens(["a", "b"], special=[True])
    with pytest.raises(ShapeError, match="2 tokens but 3 entries in word_ids"):
        Tokens(["a", "b"], word_ids=[0, 1, 2])
    with pytest.raises(InputError, match="0 tokens have no words"):
        group_words(Tokens(()))
