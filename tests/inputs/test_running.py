"""Modules of a model in torch's own order."""

from __future__ import annotations

import pytest
from torch import nn

from attnflow.inputs.running import named_parts, parts_of
from tests.tiny_models import tiny


def shared() -> nn.Module:
    """A module in two places, one inside the other's twin, and a place that is empty."""
    inner = nn.Linear(1, 1)
    model = nn.Sequential(nn.Sequential(inner, nn.ReLU()), inner)
    model.register_module("nothing", None)
    return model


@pytest.mark.parametrize("name", ["bert", "t5", "albert", "shared"])
def test_parts_are_those_that_torch_lists_in_its_order(name: str) -> None:
    model = shared() if name == "shared" else tiny(name)
    assert parts_of(model) == list(model.modules())
    assert named_parts(model) == list(model.named_modules(remove_duplicate=False))
