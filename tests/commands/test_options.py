"""The names that help and completion show are those of the library."""

from __future__ import annotations

import pytest

import attnflow.audit
from attnflow import attention, correlation, demo, heads, rollout
from attnflow.audit import registry as experiments
from attnflow.audit.report import PARTS as REPORT
from attnflow.commands import audit, models, options
from attnflow.comparing.plan import UNITS
from attnflow.errors import AttnFlowError


def test_names_are_those_of_the_library():
    assert attention.EDGES == options.EDGES
    assert tuple(attnflow.audit.experiments()) == options.EXPERIMENTS
    assert experiments.ALL == options.ALL
    assert tuple(correlation.METHODS) == options.CORRELATIONS
    assert options.HEADS == heads._NAMED
    assert options.UNITS == UNITS
    assert audit.PARTS == REPORT


def test_every_named_residual_is_one_that_rollout_takes():
    model, words = demo.model(), demo.tokenizer()
    for name in options.RESIDUALS:
        assert rollout(model, words, "the keys", residual=name).residual == name
    with pytest.raises(AttnFlowError, match="none.*add.*measured"):
        rollout(model, words, "the keys", residual="nothing")


def test_completion_is_by_the_last_name():
    assert options.one_of(options.METHODS)("ro") == ["rollout"]
    assert options.some_of(options.METHODS)("raw,ro") == ["raw,rollout"]
    assert "bert" in models.model_types("ber")
