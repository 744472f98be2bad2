"""Every record shows itself in one line."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass

import numpy as np
import pytest

import attnflow
from attnflow import Attention, capture, compare, demo, explain, flow, rollout
from attnflow.flowgraph import flow_graph
from attnflow.inputs.encode import encode
from attnflow.inputs.example import examples
from attnflow.reprs import brief, one_line
from attnflow.scoring.flow.edges import edge_flow
from attnflow.scoring.flow.solver import solve
from attnflow.scoring.network import network
from attnflow.tokens import group_words
from tests.conftest import random_attention

# What a user may come to hold, by the names of its fields: such a record holds arrays, tokens or texts of any length.
LARGE = ("NDArray", "F64", "Array", "Ints", "Tokens", "Tensor", "Network", "Capacities")


def records():
    for found in pkgutil.walk_packages(attnflow.__path__, "attnflow."):
        if not found.name.endswith("__main__") and ".capturing." not in found.name:
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                if inspect.isclass(value) and is_dataclass(value) and value.__module__ == found.name:
                    yield name, value


def test_no_public_record_with_arrays_has_the_repr_of_dataclasses():
    automatic = {
        name
        for name, value in records()
        if not name.startswith("_")
        and "__create_fn__" in value.__repr__.__qualname__
        and any(kind in str(f) for f in value.__annotations__.values() for kind in LARGE)
    }
    assert automatic <= {"LowerLayers", "AdversarialWeights", "Layers"}, automatic


def test_real_records():
    weights = np.concatenate([random_attention(0, 4, 40)] * 3)
    attention = Attention.of(weights, [f"a long token {i}\n" for i in range(40)])
    stack = network(attention).stack()
    graph = flow_graph(attention, pairs=2)
    model, tokenizer = demo.model(), demo.tokenizer()
    explained = explain(model, tokenizer, demo.SENTENCE, methods=["raw", "blankout"])
    net = network(attention)
    given = (model, tokenizer, demo.SENTENCE)
    held = [
        attention, attention.only, net, net.steps[0], solve(stack), graph, graph.outputs[0],
        next(iter(graph.pairs.values())), edge_flow(stack, 2, 3, 4), group_words(attention.tokens),
        flow(attention), flow(attention).report, rollout(attention, position=3), explained, explained.prediction,
        explained[0].informative, encode(*given), examples(*given)[0][0], capture(*given),
        compare(model, tokenizer, [demo.SENTENCE], methods="raw"),
    ]  # fmt: skip
    for one in held:
        assert "\n" not in repr(one) and len(repr(one)) < 400, type(one)
    assert repr(graph).startswith("FlowGraph(")
    assert "<float64 [12, 40, 40]>" in repr(edge_flow(stack, 12, 3, 4))


def test_scores_of_the_whole_text_name_no_position():
    found = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=["blankout", "raw"])
    assert repr(found[0]) == "Relevance(blankout, 1 layer × 7 inputs, model=attnflow verb-number model)"
    assert repr(found[1]).startswith("Relevance(raw, 6 layers, position 0 × 7 inputs, ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ("a\nb", "'a\\nb'"),
        (list(range(9)), "<list of 9>"),
        (dict.fromkeys(range(9)), "<dict of 9>"),
        ({"a": np.zeros(3)}, "{'a': <float64 [3]>}"),
        ((1, None), "(1, None)"),
    ],
)
def test_values_in_a_few_words(value, text):
    assert brief(value) == text


def test_fields_without_a_repr_stay_out():
    from dataclasses import dataclass, field

    @one_line
    @dataclass
    class Held:
        shown: int = 1
        hidden: int = field(default=2, repr=False)

    assert repr(Held()) == "Held(shown=1)"
