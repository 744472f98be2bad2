from __future__ import annotations

import json
from pathlib import Path

import attnflow
from attnflow.models.families import families, tried_with


def test_every_type_of_transformers_is_told_about():
    from transformers import CONFIG_MAPPING

    own = {"attnflow_lstm", "attnflow_verb_number"}
    assert list(families()) == sorted({*CONFIG_MAPPING.keys(), *own})
    assert {families()[kind] for kind in own} == {"interface"}


def test_what_was_seen_is_what_is_told():
    table = json.loads((Path(attnflow.__file__).parent / "models" / "families.json").read_text())
    found = families()
    assert {kind: found[kind] for kind in found if kind in table["types"]} == {
        kind: route for kind, route in table["types"].items() if kind in found
    }
    assert tried_with() == table["transformers"]
    assert {found[t] for t in ("bert", "llama", "vit", "t5")} == {"interface"}
    assert {found[t] for t in ("deberta-v2", "xlnet", "mpnet")} == {"tap"}
    assert {found[t] for t in ("mamba", "resnet")} == {"no softmax attention"}


def test_types_that_came_later_are_not_tried(monkeypatch):
    monkeypatch.setattr("attnflow.models.families.table", lambda: {"transformers": "0", "types": {}})
    assert {families()[kind] for kind in ("bert", "llama", "mamba")} == {"not tried"}
