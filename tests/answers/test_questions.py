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


def test_a_packed_file_is_read_and_a_limit_below_one_refused(tmp_path: Any) -> None:
    import gzip

    file = tmp_path / "questions.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(ROWS[0]).encode()))
    assert list(cite(causal(), tokenizer(), file, methods="direct", limit=1).records()["answer"]) == ["red"]
    with pytest.raises(AttnFlowError, match="limit=-1, but at least 1 is needed"):
        cite(causal(), tokenizer(), file, limit=-1)


def test_cells_of_a_text_file(tmp_path: Any) -> None:
    """Numbers and words stay what a reader sees; only lists and gold numbers are read."""
    import csv

    file = tmp_path / "questions.csv"
    with file.open("w", newline="") as stream:
        out = csv.DictWriter(stream, ["context", "question", "answer", "gold"])
        out.writeheader()
        out.writerow({"context": "7 keys. 8 doors.", "question": "2", "answer": "42", "gold": "1"})
        out.writerow(
            {"context": json.dumps(["One key.", "Two."]), "question": "[1", "answer": "true", "gold": '["Two"]'}
        )
        out.writerow({"context": "3.5", "question": "", "answer": "", "gold": ""})
    frame = cite(causal(), tokenizer(), file, methods="direct", max_new_tokens=2).records()
    assert list(frame["answer"][:2]) == ["42", "true"] and list(frame["sources"]) == [2, 2, 1]
    assert list(frame["gold"]) == [1, 1, 0] and frame["logprob"].notna().all()
    typed = [{"context": "1984 is old.", "answer": "42", "gold": "1984"}]
    assert list(cite(causal(), tokenizer(), typed, methods="direct").records()["hit"]) == [True]


def test_what_a_model_refuses_is_left_out_of_the_recommended(monkeypatch: Any) -> None:
    from attnflow.answers import attribute as module
    from attnflow.answers.reading import read
    from attnflow.errors import CaptureError

    def refusing(run: Any, method: str) -> Any:
        if method == "direct:alti":
            raise CaptureError("the parts cannot be told apart")
        return read(run, method)

    monkeypatch.setattr(module, "read", refusing)
    assert list(cite(causal(), tokenizer(), ROWS[:1]).records()["method"]) == ["direct"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"check_by": ("mask", "removal")}, "names 2 ways, and a record has room for one"),
        ({"check": "some"}, "check='some' is not known"),
        ({"max_new_tokens": 0}, "max_new_tokens=0, but at least 1"),
        ({"engine": "spark"}, "spark"),
    ],
)
def test_bad_settings_before_a_model_is_loaded(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnFlowError, match=re.escape(said)):
        cite("no/such/model", None, ROWS, **given)


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
