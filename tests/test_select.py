from __future__ import annotations

import pytest

from attnflow.errors import SelectionError
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Tokens

TOKENS = Tokens(["[CLS]", "a", "[MASK]"], marks={"cls": 0, "mask": 2})


@pytest.mark.parametrize(("asked", "index"), [(0, 0), (-1, 2), ("cls", 0), ("mask", 2), ("last", 2)])
def test_positions(asked, index):
    assert pick_position(asked, TOKENS) == index


def test_positions_that_are_not_there():
    with pytest.raises(SelectionError, match="position=3, but there are 3 positions: use -3 to 2"):
        pick_position(3, TOKENS)
    with pytest.raises(
        SelectionError,
        match="no word of the text is 'middle': .CLS. a .MASK.. Use a number, 'cls'",
    ):
        pick_position("middle", TOKENS)
    with pytest.raises(
        SelectionError, match="position='cls', but the input has no cls token: a b. Use a number from 0 to 1"
    ):
        pick_position("cls", Tokens(["a", "b"]))


WORDS = Tokens(
    ["[CLS]", "the", "Ġri", "ver", "ĠBank", "ĠThe", "Ġbank", "s"],
    special=[True] + [False] * 7,
    word_ids=[None, 0, 1, 1, 2, 3, 4, 4],
    words={0: "the", 1: "river", 2: "Bank", 3: "The", 4: "banks"},
)


@pytest.mark.parametrize(
    ("asked", "index"), [("river", 3), ("Bank", 4), ("bank", 4), ("RIVER", 3), ("banks", 7), ("the", 1), ("ver", 3)]
)
def test_positions_by_a_word_of_the_text(asked, index):
    assert pick_position(asked, WORDS) == index


def test_words_that_are_not_there_or_there_twice():
    with pytest.raises(SelectionError, match="'THE' stands in the text 2 times, at positions 1, 5.*position=5"):
        pick_position("THE", WORDS)
    with pytest.raises(SelectionError, match="no word of the text is 'rivers'.*Did you mean 'river'"):
        pick_position("rivers", WORDS)


def test_layers_go_by_their_true_number():
    assert [pick_layer(n, (3, 7, 11)) for n in (3, 11, -1, -3)] == [0, 2, 2, 0]
    with pytest.raises(SelectionError, match="layer=5, but the layers with attention are 3, 7, 11"):
        pick_layer(5, (3, 7, 11))
    with pytest.raises(SelectionError, match="layer=-4, but there are 3 layers: use -3 to -1"):
        pick_layer(-4, (3, 7, 11))
