"""A fast sample of what ``benchmarks/fuzz.py`` tries at length: hostile values for every function, damaged files."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from attnflow import raw
from tests.fuzz import damage
from tests.fuzz.calls import Call, calls, modelled, outcome, quick, ran, shown

FEW = {"database": None, "deadline": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}


def check(call: Call) -> None:
    kind, what = outcome(call)
    assert kind != "violation", f"{call!r}: {what}"


@pytest.mark.parametrize("name", quick())
def test_hostile_values_without_a_model(name):
    table = quick()
    settings(max_examples=25, derandomize=True, **FEW)(given(calls(table, (name,)))(check))()


@pytest.mark.parametrize("name", shown())
def test_hostile_values_in_views(name):
    table = shown()
    settings(max_examples=6, derandomize=True, **FEW)(given(calls(table, (name,)))(check))()


@pytest.mark.parametrize("name", modelled())
def test_hostile_values_on_a_model(name):
    table = modelled()
    settings(max_examples=15, derandomize=True, **FEW)(given(calls(table, (name,)))(check))()


@pytest.mark.slow
@pytest.mark.parametrize("name", ran())
def test_hostile_values_for_whole_runs(name):
    table = ran()
    settings(max_examples=15, derandomize=True, **FEW)(given(calls(table, (name,)))(check))()


@pytest.mark.parametrize("kind", damage.KINDS, ids=lambda kind: kind.name)
def test_damaged_files(kind, tmp_path):
    path = kind.write(tmp_path)
    truth, whole, chance = kind.read(path), path.read_bytes(), random.Random(0)
    for _ in range(40):
        how, made = damage.damaged(whole, chance)
        path.write_bytes(made)
        found, what = damage.outcome(kind, path, truth)
        assert found != "violation", f"{how}: {what}"


def test_the_judge_sees_violations():
    def wrong(*given, **options):
        raise KeyError("x")

    assert outcome(Call("wrong", wrong, (), {}))[0] == "violation"
    assert outcome(Call("int", int, ("x",), {}))[0] == "violation"
    assert outcome(Call("raw", raw, ([[[1.0]]],), {}, lambda found: False))[0] == "violation"
    assert outcome(Call("raw", raw, ([[[1.0]]],), {}))[0] == "result"
    assert outcome(Call("raw", raw, (5,), {}))[0] == "refused"
