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


@pytest.mark.parametrize("name", ["llama", "albert", "qwen3-next"])
def test_layers_are_those_of_the_stored_rollout(name: str) -> None:
    """Also where layers share one module, or some have no attention."""
    model = tiny.model(name)
    stored = capture(model, None, tiny.IDS)
    for layer in stored.layers:
        for options in ({"layer": layer}, {"layer": layer, "start_layer": layer}):
            want = rollout(stored, **options)
            for position, scores in ((None, want.scores), (4, want.scores[:, 4])):
                found = rollout(model, None, tiny.IDS, position=position, stream=True, **options)
                assert found.layers == want.layers
                np.testing.assert_allclose(found.scores, scores, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "albert", "qwen3-next"])
def test_layers_counted_from_the_top(name: str) -> None:
    model = tiny.model(name)
    stored = rollout(capture(model, None, tiny.IDS))
    for layer in range(-len(stored.layers), 0):
        row = rollout(model, None, tiny.IDS, layer=layer, position=4, stream=True)
        assert row.layers == stored.layers[layer:][:1]
        np.testing.assert_allclose(row.scores[0], stored.scores[layer, 4], atol=1e-6)
        if name != "albert" or layer == -1:
            found = rollout(model, None, tiny.IDS, layer=layer, stream=True)
            np.testing.assert_allclose(found.scores[0], stored.scores[layer], atol=1e-6)
    if name == "albert":
        with pytest.raises(AttnFlowError, match=r"counts from the top.*layer=0"):
            rollout(model, None, tiny.IDS, layer=-2, stream=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"residual": [1.5, 0.5]}, r"in \[0, 1\)"),
        ({"residual": [0.5]}, "shares for 1 layers"),
        ({"residual": [0.5] * 3}, "shares for 3 layers, but there are 2"),
        ({"start_layer": -1}, "start_layer=-1, but the model has layers 0 to 1"),
        ({"start_layer": 1, "layer": 0}, "start_layer=1 is above layer 0"),
        ({"sinks": "drop"}, "sinks='drop' is not known"),
    ],
)
@pytest.mark.parametrize("position", [None, 0])
def test_options_are_checked_as_those_of_the_stored_rollout(
    options: dict[str, Any], said: str, position: int | None
) -> None:
    with pytest.raises(AttnFlowError, match=said):
        rollout(tiny.model("bert"), None, tiny.IDS, position=position, stream=True, **{"layer": -1, **options})


def test_a_residual_of_numpy_is_a_number() -> None:
    model = tiny.model("bert")
    want = rollout(model, None, tiny.IDS, layer=-1, stream=True, residual=0.25)
    found = rollout(model, None, tiny.IDS, layer=-1, stream=True, residual=np.float32(0.25))
    np.testing.assert_array_equal(found.scores, want.scores)
