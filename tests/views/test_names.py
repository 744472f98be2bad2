from __future__ import annotations

import pytest

from attnflow.views.names import show


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
