"""Methods with other edges, by name: parsed in one place, each kind captured once per example."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnflow import capture, compare, correlate, demo, direct, flow, gradient, methods, raw, rollout
from attnflow.attention import EDGES
from attnflow.errors import SelectionError
from attnflow.scoring import captures
from attnflow.scoring.explain import explain
from attnflow.scoring.registry import calls, find, names, with_edges

TEXTS = ["the key to the doors", "the men near the table"]
WAYS = {"raw": raw, "rollout": rollout, "flow": flow, "direct": direct}


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """Which kinds were captured, in order."""
    seen: list[str] = []

    def count(*args: Any, **options: Any) -> Any:
        seen.append(options.get("edges", "attention"))
        return capture(*args, **options)

    monkeypatch.setattr(captures, "capture", count)
    return seen


def test_every_way_to_compose_has_a_name_with_every_kind_of_edges():
    known = set(methods()["name"])
    for way in WAYS:
        for edges in EDGES[1:]:
            name = f"{way}:{edges}"
            assert name in known and find(name).defaults == {"edges": edges} and find(name).base == way
            assert calls("methods", name)[0].captured == {"edges": edges}
    assert find("chefer").defaults == {"edges": "gradient", "residual": "add"}
    assert "rollout:alti" not in names() and "rollout:alti" in names(edges=True)
    assert calls("methods", {"m": {"method": "rollout", "residual": "measured"}})[0].captured == {"mixing": True}
    assert calls("methods", {"m": {"method": "flow", "edges": "norm"}})[0].edges == "norm"


def test_edges_are_given_to_methods_that_have_none_of_their_own():
    assert with_edges(["raw", "flow:norm", "gradient"], ["gradient"]) == ("raw:gradient", "flow:norm", "gradient")
    assert with_edges(["raw"], []) == ("raw",)
    with pytest.raises(SelectionError, match="edges='values' is not known. Use 'attention', 'norm'"):
        with_edges(["raw"], ["values"])
    with pytest.raises(SelectionError, match="method 'rollout:values' is not known.*for instance rollout:alti"):
        find("rollout:values")


def test_each_kind_is_captured_once_whatever_number_of_methods_asks_for_it(counted):
    asked = ["raw", "raw:gradient", "rollout", "chefer", "flow:gradient", "direct", "direct:gradient"]
    found = compare(demo.model(), demo.tokenizer(), TEXTS, methods=asked, references="blankout", layers=-1)
    assert counted == ["attention", "gradient"] * len(TEXTS)
    assert set(found.records["method"]) == set(asked)
    assert found.records["value"].notna().all()
    assert {"capture", "capture gradient"} <= set(found.costs)


def test_only_what_is_asked_for_is_captured(counted):
    explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=["chefer", "blankout"])
    assert counted == ["gradient"]


def test_explain_gives_what_the_methods_give():
    model, tokenizer = demo.model(), demo.tokenizer()
    asked = [*(f"{way}:gradient" for way in WAYS), "chefer"]
    results = explain(model, tokenizer, demo.SENTENCE, methods=[*asked, "gradient"], residual=0.3)
    assert [r.method for r in results] == [*asked, "gradient"]
    for result, (way, method) in zip(results, WAYS.items(), strict=False):
        own = {"residual": 0.3} if way in ("rollout", "flow") else {}
        expected = method(model, tokenizer, demo.SENTENCE, edges="gradient", position="cls", **own)
        np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5)
        assert result.edges == "gradient" and result.attention.edges == "gradient"
    chefer = rollout(model, tokenizer, demo.SENTENCE, edges="gradient", position="cls")
    np.testing.assert_allclose(results[4].scores, chefer.scores, rtol=1e-5)
    assert results[4].residual == "add"
    assert {r.target for r in results} == {results[-1].target}, "edges and gradients explain the same prediction"


@pytest.mark.parametrize("text", [["the key to the doors"], [("the key", "the doors")]])
@pytest.mark.filterwarnings("ignore:Text pair")
def test_a_list_of_one_text_is_that_text(text):
    found = explain(demo.model(), demo.tokenizer(), text, methods=("raw", "rollout:alti"))
    one = raw(demo.model(), demo.tokenizer(), text, position=found["raw"].position)
    np.testing.assert_allclose(found["raw"].scores, one[0].scores, atol=1e-6)
    assert str(found) and found.to_html()


@pytest.mark.parametrize("label", [0, 1])
def test_gradient_edges_explain_the_target_of_the_comparison(label):
    model, tokenizer = demo.model(), demo.tokenizer()
    data = [{"text": TEXTS[0], "label": label}]
    found = compare(model, tokenizer, data, methods="direct:gradient", references="gradient", target_column="label")
    scores = direct(model, tokenizer, TEXTS[0], edges="gradient", position="cls", target=label)
    reference = gradient(model, tokenizer, TEXTS[0], target=label)
    expected = correlate(scores, reference, special_tokens=False).values
    rows = found.records[~found.records["special"]].sort_values("layer")
    np.testing.assert_allclose(rows["value"], expected, atol=1e-6)
