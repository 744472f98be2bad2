from __future__ import annotations

import pytest

from attnflow.tokens import Tokens
from attnflow.views.names import drawn_on, show


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("Ġkey", "·key"),
        ("▁key", "·key"),
        ("a b", "a·b"),
        ("\n", "⏎"),
        ("", "∅"),
        ("\u200fx", "<200F>x"),
        ("鍵", "鍵"),
        ("Ċ", "⏎"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("می\u200cروم", "می\u200cروم"),
        ("a\u200db\u200d", "a<200D>b<200D>"),
    ],
)
def test_white_space_is_seen_and_direction_marks_do_nothing(token, shown):
    assert show(token) == shown


def test_what_was_drawn_on_most_stands_in_quotes_with_ties_apart():
    tokens = Tokens(["[CLS]", "Ġto", "patch 0,1", "\n"], special=[True, False, False, False])
    scores = {
        "raw": (tokens, [9, 2, 1, 0]),
        "flow": (tokens, [9, 2, 2, 0]),
        "rollout": (tokens, [0, 0, 1, 0]),
        "mine": (tokens, [0, 0, 1, 2]),
    }
    assert drawn_on(scores) == "“to” (by raw, flow [tied with 1 more]), “patch 0,1” (by rollout), “⏎” (by mine)"


def test_a_method_that_scores_all_inputs_alike_names_none():
    tokens = Tokens(["[CLS]", "a", "b"], special=[True, False, False])
    assert drawn_on({"blankout": (tokens, [1, 0, 0])}) == ""
    one = Tokens(["[CLS]", "a"], special=[True, False])
    assert drawn_on({"raw": (one, [1, 0])}) == "“a” (by raw)"
