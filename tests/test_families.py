from __future__ import annotations

from attnflow.families import INTERFACE, NONE, TAP, families


def test_routes_of_known_families():
    found = families()
    assert {found[t] for t in ("bert", "llama", "vit", "t5")} == {INTERFACE}
    assert {found[t] for t in ("deberta-v2", "xlnet", "mpnet")} == {TAP}
    assert {found[t] for t in ("mamba", "resnet")} == {NONE}
    assert list(found) == sorted(found)
