"""The names that help and completion show are those of the library."""

from __future__ import annotations

import attnflow.audit
from attnflow import attention, correlation, select
from attnflow.audit import registry as experiments
from attnflow.audit.report import PARTS as REPORT
from attnflow.commands import audit, names
from attnflow.comparing.plan import UNITS
from attnflow.probes.data import endings


def test_names_are_those_of_the_library():
    assert attention.EDGES == names.EDGES
    assert tuple(attnflow.audit.experiments()) == names.EXPERIMENTS
    assert experiments.ALL == names.ALL
    assert tuple(correlation.METHODS) == names.CORRELATIONS
    assert tuple(select.NAMED) == names.NAMED
    assert names.UNITS == UNITS
    assert endings() == names.VERBS
    assert audit.PARTS == REPORT


def test_completion_is_by_the_last_name():
    assert names.one_of(names.METHODS)("ro") == ["rollout"]
    assert names.some_of(names.METHODS)("raw,ro") == ["raw,rollout"]
    assert "bert" in names.model_types("ber")
