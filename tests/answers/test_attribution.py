"""The record: exact sums, tables, files, what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attnflow import AttnFlowError, Attribution
from attnflow.answers.attribution import Unit, _seal, on_a_grid
from attnflow.answers.sources import Source
from tests.test_files import paths, put


def record(**more: Any) -> Attribution:
    """Two sources of two tokens, a template token in front, one of the answer behind."""
    sources = (Source("a", "key ", 1, 5), Source("b", "door", 5, 9))
    units = (Unit("red", 0, 3, 0, 1, "whole"),)
    given: dict[str, Any] = {
        "scores": {"direct": np.array([[0.5, 0.1, 0.2, 0.05, 0.05, 0.1]])}, "checks": {"mask": np.array([[0.5,
        np.nan]])},
        "logprobs": (-1.0,), "model": "tiny", "notes": ("a note",),
    } | more  # fmt: skip
    return Attribution("^key door", "red", sources, units, ("^", "k", "ey ", "do", "or", "r"),
                       np.array([-1, 0, 0, 1, 1, -2]), **given)  # fmt: skip


def test_by_hand() -> None:
    a = record()
    np.testing.assert_allclose(a.sums(), [[0.3, 0.1]], atol=1e-9)
    np.testing.assert_allclose(a.shares(), [[0.75, 0.25]], atol=1e-9)
    rest = {name: round(float(v[0]), 6) for name, v in a.rest().items()}
    assert rest == {"first token": 0.5, "template": 0.0, "answer": 0.1, "sources": 0.4}
    assert a.top(1)[0][0] == "a" and a.ranked() == [0, 1]
    assert repr(a) == "Attribution(1 units × 2 sources, direct, 1 checked by mask)"


def test_sums_are_exact_in_any_order() -> None:
    chance = np.random.default_rng(0)
    values = on_a_grid(chance.random(8000) ** 8)
    total = values.sum()
    for _ in range(5):
        assert chance.permutation(values).sum() == total
    assert np.abs(values - on_a_grid(values)).max() == 0


def test_an_encoder_has_no_token_to_rest_on() -> None:
    a = record(resting=None)
    assert float(a.rest()["first token"][0]) == 0 and float(a.rest()["template"][0]) == pytest.approx(0.5)


def test_negative_scores_have_no_share() -> None:
    a = record(scores={"direct": np.array([[0.0, -0.1, -0.1, 0.3, 0.1, 0.0]])})
    np.testing.assert_allclose(a.shares(), [[0.0, 1.0]])


def test_tables_and_files(tmp_path: Any) -> None:
    import pandas as pd

    a = record()
    frame = a.to_frame()
    assert list(frame["name"]) == ["a", "b"] and frame["mean"].iloc[0] == pytest.approx(0.15)
    assert frame["without_by_mask"].iloc[0] == 0.5 and np.isnan(frame["without_by_mask"].iloc[1])
    for ending in ("csv", "parquet", "json", "html"):
        a.save(tmp_path / f"a.{ending}")
    assert len(pd.read_csv(tmp_path / "a.csv")) == len(pd.read_parquet(tmp_path / "a.parquet")) == 2
    again = Attribution.load(tmp_path / "a.json")
    np.testing.assert_array_equal(again.scores["direct"], a.scores["direct"])
    np.testing.assert_array_equal(again.checks["mask"], a.checks["mask"])
    assert again.sources == a.sources and again.units == a.units and again.to_json() == a.to_json()
    with pytest.raises(AttnFlowError, match="exists already"):
        a.save(tmp_path / "a.csv")
    with pytest.raises(AttnFlowError, match="ends in '.txt'"):
        a.save(tmp_path / "a.txt")


@pytest.mark.parametrize("damage", ["{", "[]", '{"format": 9}', "{}"])
def test_damaged_files(tmp_path: Any, damage: str) -> None:
    (tmp_path / "x.json").write_text(damage)
    with pytest.raises(AttnFlowError, match=r"x\.json"):
        Attribution.load(tmp_path / "x.json")
    whole = json.loads(record().to_json())
    scores = {"direct": [[0.5, 0.2, 0.1, 0.05, 0.05, 0.1]]}
    for changed in ({"owners": [1]}, {"scores": scores}, {"answer": "blue"}, {"digest": None}):
        (tmp_path / "y.json").write_text(json.dumps({**whole, **changed}))
        with pytest.raises(AttnFlowError, match=r"y\.json is not as it was written"):
            Attribution.load(tmp_path / "y.json")


def foreign(folder: Any, content: dict[str, Any]) -> Attribution:
    """What comes of a file that somebody else has written, with a digest that is right."""
    kept = {name: value for name, value in content.items() if name != "digest"}
    (folder / "foreign.json").write_text(json.dumps({**kept, "digest": _seal(kept)}))
    return Attribution.load(folder / "foreign.json")


HOSTILE = ("<b>", 99, -5, None, [], {}, [1], ["x"], True, float("inf"), float("nan"), 2.5)


def test_a_foreign_file_is_refused_by_name_or_can_be_shown(tmp_path: Any, capsys: Any) -> None:
    whole = json.loads(record(instead="blue").to_json())
    refused = shown = 0
    for at in paths(whole):
        for value in HOSTILE if at else ():
            try:
                a = foreign(tmp_path, put(whole, at, value))
            except AttnFlowError as error:
                assert "foreign.json" in str(error)
                refused += 1
                continue
            assert "<b>" not in a.to_html().replace("</b>", "") or value != "<b>"
            a.show()
            assert len(a.to_frame()) and a.to_json() and repr(a) and len(a.top()) <= 2
            shown += 1
    assert refused > 300 and shown > 100


def test_what_is_refused() -> None:
    with pytest.raises(AttnFlowError, match="method='raw', but this attribution has 'direct'"):
        record().shares("raw")
    with pytest.raises(AttnFlowError, match="unit=3, but the answer has 1"):
        record().ranked(3)
    with pytest.raises(AttnFlowError, match="there are 1 units and 6 positions"):
        record(scores={"direct": np.zeros((2, 6))})
    with pytest.raises(AttnFlowError, match="1 units and 2 sources"):
        record(checks={"mask": np.zeros((1, 3))})
