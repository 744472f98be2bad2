"""The one list of methods, and methods that a user adds to it."""

from __future__ import annotations

import base64
import functools
import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import attnflow
from attnflow import Attention, Relevance, compare, demo, methods, raw, register
from attnflow.errors import SelectionError
from attnflow.scoring.explain import explain
from attnflow.scoring.registry import calls, find, names, unregister
from attnflow.views.terminal import tables
from tests.pages import data_of


@pytest.fixture
def toy():
    """A method of the user's own: each input counts by its place, the last one most."""

    @register("by place", help="Scores grow from left to right.", reference="nobody")
    def by_place(attention, position, *, slope=1.0):
        block = attention.only
        rows = np.tile(slope * np.arange(1.0, len(block.keys) + 1), (len(block.layers), 1))
        return Relevance(rows, block.keys, block.layers, "by place", {"slope": slope}, attention.model)

    yield by_place
    unregister("by place")


@pytest.fixture
def reaction():
    """A method of the user's own that runs the model: the same for every input."""

    @register("flat", needs="model")
    def flat(example, goal):
        value = float(goal.values(example.outputs)[0])
        return Relevance(np.full((1, len(example.tokens)), value), example.tokens, ("input",), "flat")

    yield flat
    unregister("flat")


def test_the_table_lists_every_method_with_what_it_needs():
    table = methods()
    assert list(table.columns) == ["name", "needs", "default", "help", "reference", "options", "set"]
    assert set(table["needs"]) == {"attention", "model"} and table["name"].is_unique
    assert (table["help"].str.len() > 10).all()
    assert tuple(table[table["default"]]["name"]) == names(shown=True)
    options = table.set_index("name")["options"]
    assert "residual" in options["rollout"] and "blank" in options["blankout"] and "position" not in options["raw"]


def test_a_users_method_works_in_a_comparison(toy, reaction):
    found = compare(
        demo.model(), demo.tokenizer(), ["the key to the doors"],
        methods=["raw", "by place"], references=["blankout", "flat"],
    )  # fmt: skip
    assert set(found.records["method"]) == {"raw", "by place"} and set(found.records["reference"]) == {
        "blankout",
        "flat",
    }
    assert found.records[found.records["reference"] == "flat"]["value"].isna().all(), "a flat reference ranks nothing"
    own = found.records[(found.records["method"] == "by place") & (found.records["reference"] == "blankout")]
    assert own["value"].notna().all() and set(own["layer"]) == set(range(6))
    both = {"down": {"method": "by place", "slope": -1.0}, "up": {"method": "by place"}}
    options = compare(demo.model(), demo.tokenizer(), ["the key to the doors"], references="blankout", methods=both)
    means = options.to_frame().groupby("method")["mean"].mean()
    assert means["down"] == pytest.approx(-means["up"])


def test_a_users_method_is_shown_in_the_terminal_and_on_the_page(toy, reaction):
    shown = names(shown=True)
    results = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=[*shown, "by place", "flat"])
    assert [r.method for r in results] == [*shown, "by place", "flat"]
    console = Console(width=200, record=True, file=io.StringIO())
    for table in tables([r.at(layer=-1) if r.layers != ("input",) else r for r in results], console):
        console.print(table)
    text = console.export_text()
    assert "by place" in text and "flat" in text and "6.000" in text
    for every_head in (False, True):
        shapes = {"methods": ["by place", "flat"], "every_head": every_head}
        first, *others = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, **shapes)
        assert np.array_equal(first.scores[-1], np.arange(1.0, 8.0))
        fusion = data_of(first.to_html(others=others))["fusions"][0]
        assert [m["name"] for m in fusion["methods"]] == ["raw", "rollout", "flow", "by place", "flat"]
        assert {c[0] for c in fusion["curves"]} == {"raw", "rollout", "flow", "by place"}
        scores = np.frombuffer(base64.b64decode(fusion["scores"][3][0]), "<f4").reshape(-1, 7)
        assert np.array_equal(scores[0], first.scores[-1]), "the page opens at the output of the result"


def test_two_methods_of_one_function_keep_their_names():
    asked = ["gradient", "integrated_gradients", "blankout-delete"]
    results = explain(demo.model(), demo.tokenizer(), demo.SENTENCE, methods=asked)
    assert [r.method for r in results] == asked


def test_a_function_without_a_name_of_its_own_is_a_method_too():
    asked = {"first head": functools.partial(raw, heads=0)}
    (call,) = calls("methods", asked, "attention")
    found = call.run(None, None, Attention.of(np.full((1, 2, 3, 3), 1 / 3), heads="all"), 0)
    assert call.method.name == "functools.partial" and found.heads == 0


def test_bad_registrations_and_names_are_refused():
    with pytest.raises(SelectionError, match="'raw' is a built-in method or empty: choose another name"):
        register("raw")
    with pytest.raises(SelectionError, match="needs='tokens' is not known. Use 'attention' or 'model'"):
        register("mine", needs="tokens")
    with pytest.raises(SelectionError, match="A int was registered as 'mine': a method is a function"):
        register("mine")(3)
    with pytest.raises(SelectionError, match="'mine' is not a method that you registered. There is: none"):
        unregister("mine")
    with pytest.raises(SelectionError, match="method 'lime' is not known. Use some of: raw, rollout"):
        find("lime")
    with pytest.raises(SelectionError, match="methods: 'gradient' is not known. Use raw, rollout, flow.*my_function"):
        calls("methods", "gradient", "attention")
    with pytest.raises(SelectionError, match="methods: 'raw' has no option 'speed'. Its options: heads"):
        calls("methods", {"raw": {"speed": 2}}, "attention")
    with pytest.raises(SelectionError, match="methods is empty: choose from raw"):
        calls("methods", [], "attention")


def test_no_other_list_of_method_names_is_in_the_package():
    """Two names of methods that need attention beside each other in code are a list of their own."""
    package = Path(attnflow.__file__).parent
    pattern = re.compile(r"""["']raw["'],\s*["']rollout["']|["']rollout["'],\s*["']flow["']""")
    for path in package.rglob("*.py"):
        code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not pattern.search(code), path
