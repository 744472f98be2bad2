"""Streamed rollout equals rollout of the stored layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnflow import AttnFlowError, capture, rollout
from attnflow.scoring.rollout_stream import rollout_matrix, rollout_row
from tests.capturing import tiny

FAMILIES = ["bert", "gpt2", "llama", "gpt-oss", "mistral", "mpnet", "albert", "qwen3-next", "gemma2"]
ROWS = [[5, 6, 7, 8, 9, 3], [11, 12, 13]]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_product(name: str) -> None:
    model = tiny.model(name)
    stored = rollout(capture(model, None, tiny.IDS), layer=-1)
    streamed = rollout_matrix(model, None, tiny.IDS, block=3)
    np.testing.assert_allclose(streamed.scores, stored.scores[0], atol=1e-6)
    assert streamed.tokens == stored.tokens


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("position", [0, "last", 3])
def test_one_row(name: str, position: Any) -> None:
    model = tiny.model(name)
    stored = rollout(capture(model, None, tiny.IDS), layer=-1, position=position)
    streamed = rollout_row(model, None, tiny.IDS, position=position, block=3)
    np.testing.assert_allclose(streamed.scores, stored.scores[0], atol=1e-6)
    assert streamed.settings["stream"] == ("product" if name == "mpnet" else "row")


@pytest.mark.parametrize("options", [{"residual": 0.0}, {"residual": 0.8}, {"start_layer": 1}, {"layer": 0}])
def test_options(options: dict[str, Any]) -> None:
    model = tiny.model("llama")
    stored = rollout(capture(model, None, tiny.IDS), **{"layer": -1, **options})
    streamed = rollout_matrix(model, None, tiny.IDS, **options)
    row = rollout_row(model, None, tiny.IDS, position=4, **options)
    np.testing.assert_allclose(streamed.scores, stored.scores[0], atol=1e-6)
    np.testing.assert_allclose(row.scores, stored.scores[0][4], atol=1e-6)


@pytest.mark.parametrize("heads", ["max", "min", 2, [0, 3]])
@pytest.mark.parametrize("sinks", ["keep", "renormalise"])
def test_heads_and_sinks(heads: Any, sinks: str) -> None:
    model = tiny.model("gpt-oss")
    stored = rollout(capture(model, None, tiny.IDS, heads=heads, sinks=sinks), layer=-1)
    streamed = rollout_matrix(model, None, tiny.IDS, heads=heads, sinks=sinks)
    row = rollout_row(model, None, tiny.IDS, heads=heads, sinks=sinks, position=-1)
    want = stored.scores[0]
    np.testing.assert_allclose(streamed.scores, want[: len(tiny.IDS)], atol=1e-6)
    np.testing.assert_allclose(row.scores, want[len(tiny.IDS) - 1], atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_batches(name: str) -> None:
    model = tiny.model(name)
    stored = [rollout(a, layer=-1) for a in capture(model, None, ROWS)]
    streamed = rollout_matrix(model, None, ROWS)
    rows = rollout_row(model, None, ROWS, position="last")
    for a, b, c in zip(stored, streamed, rows, strict=True):
        np.testing.assert_allclose(a.scores[0], b.scores, atol=1e-6)
        np.testing.assert_allclose(a.scores[0][-1], c.scores, atol=1e-6)


def test_refusals() -> None:
    with pytest.raises(AttnFlowError, match="2 towers"):
        rollout_matrix(tiny.model("bart"), None, tiny.IDS)
    with pytest.raises(AttnFlowError, match="one matrix per layer"):
        rollout_matrix(tiny.model("bert"), None, tiny.IDS, heads="all")
    with pytest.raises(AttnFlowError, match="in \\[0, 1\\)"):
        rollout_matrix(tiny.model("bert"), None, tiny.IDS, residual=1.0)
    with pytest.raises(AttnFlowError, match="layers 0 to 1"):
        rollout_matrix(tiny.model("bert"), None, tiny.IDS, layer=5)
