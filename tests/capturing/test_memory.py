"""Memory of its own for long inputs changes no number, and takes what is written and no more."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnflow import capture
from attnflow.capturing import memory
from tests.capturing import tiny


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_zeros_are_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    small, large = (memory.zeros((2, n, n), dtype, torch.device("cpu")) for n in (3, 2048))
    for made in (small, large):
        assert made.dtype == dtype and made.is_contiguous() and not made.any()
        made[1, 2] = 1
        assert float(made.sum(dtype=torch.float64)) == made.shape[-1]


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="no private pages here")
def test_a_matrix_of_which_half_is_written_takes_half() -> None:
    status = Path("/proc/self/statm")
    if not status.exists():
        pytest.skip("no /proc")

    def resident() -> int:
        return int(status.read_text().split()[1]) * mmap.PAGESIZE

    n = 4096
    before = resident()
    made = memory.zeros((n, n), torch.float32, torch.device("cpu"))
    assert resident() - before < made.nbytes / 8
    for row in range(n):
        made[row, : row + 1] = 1
    assert 0.4 < (resident() - before) / made.nbytes < 0.75


@pytest.mark.parametrize("name", ["bert", "gpt2", "mpnet"])
def test_capture_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model(name)
    expected = capture(model, None, tiny.IDS).weights
    calls: list[Any] = []
    trim = memory._trim()
    monkeypatch.setattr(memory, "_trim", lambda: lambda size: calls.append(size) or (trim and trim(size)))
    for constant, value in (("OWN", 1), ("LARGE", 1), ("EVERY", 1)):
        monkeypatch.setattr(memory, constant, value)
    np.testing.assert_array_equal(capture(model, None, tiny.IDS).weights, expected)
    assert calls == [0, 0]
