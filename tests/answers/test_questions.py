"""A data set of questions: records, resuming, gold sources."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from attnflow import AttnFlowError, Attribution, attribute
from attnflow.answers.questions import cite, gold_of, interval
from tests.answers.tiny import CONTEXT, QUESTION, causal, tokenizer

ASK = {"context": CONTEXT, "question": QUESTION}
ROWS = [
    {"context": CONTEXT, "question": QUESTION, "answer": "red", "gold": 0},
    {"context": CONTEXT, "question": "And Milo?", "answer": "blue", "gold": "sentence 2"},
    {"context": CONTEXT, "question": "And Nia?", "answer": "green", "gold": ["green"]},
    {"context": CONTEXT, "question": "And Ole?", "answer": "red"},
]


def test_records_are_those_of_one_by_one() -> None:
    found = cite(causal(), tokenizer(), ROWS, methods=["direct", "direct:alti"])
    frame = found.records()
    assert len(frame) == 8 and repr(found) == "Cited(4 questions)"
    one = attribute(
        causal(), tokenizer(), {"context": CONTEXT, "question": QUESTION}, "red", methods=["direct"], check=0
    )
    assert isinstance(one, Attribution)
    first = frame[(frame["example"] == 0) & (frame["method"] == "direct")].iloc[0]
    assert first["top"] == one.ranked()[0] and first["share"] == pytest.approx(one.shares()[0].max(), abs=0.5)
    table = found.to_frame()
    assert list(table["with gold"]) == [3, 3] and table["precision"].between(0, 1).all()


def test_a_run_goes_on_where_it_stopped(tmp_path: Any) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    out = tmp_path / "run"
    given = {"methods": "direct", "out": out}
    first = cite(causal(), tokenizer(), file, limit=2, **given)
    whole = cite(causal(), tokenizer(), file, resume=True, **given)
    assert len(first.records()) == 2 and len(whole.records()) == 4
    alone = cite(causal(), tokenizer(), ROWS, methods="direct")
    columns = ["example", "method", "top", "share", "hit", "rank"]
    assert whole.records()[columns].equals(alone.records()[columns])
    with pytest.raises(AttnFlowError, match="records of other settings"):
        cite(causal(), tokenizer(), file, methods="raw", out=out, resume=True)


def test_bad_rows() -> None:
    with pytest.raises(AttnFlowError, match=re.escape("Row 0 (from 0) has no context")):
        cite(causal(), tokenizer(), [{"question": "?"}])
    bad = [{**ROWS[0], "gold": 9}]
    with pytest.raises(AttnFlowError, match=r"Example 0: Row 0 .* gold source 9, and its context has 3 sources"):
        cite(causal(), tokenizer(), bad, methods="direct")
    skipped = cite(causal(), tokenizer(), [*bad, ROWS[1]], methods="direct", on_error="skip")
    assert list(skipped.failed) == [0]
    with pytest.raises(AttnFlowError, match="on_error='stop' is not known"):
        cite(causal(), tokenizer(), ROWS, on_error="stop")


def test_gold_and_intervals() -> None:
    one = attribute(
        causal(), tokenizer(), {"context": CONTEXT, "question": QUESTION}, "red", methods=["direct"], check=0
    )
    assert isinstance(one, Attribution)
    assert gold_of(one, [0, "blue"]) == {0, 1} and gold_of(one, None) == set()
    with pytest.raises(AttnFlowError, match="names the gold source 'nowhere'"):
        gold_of(one, "nowhere")
    low, high = interval(50, 100)
    assert low == pytest.approx(0.4038, abs=1e-3) and high == pytest.approx(0.5962, abs=1e-3)
