"""The worked example of docs/methods.md: one layer, two tokens, the row of output 1 for every kind of edges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from attnflow import Attention, direct, flow, raw, rollout

RESIDUAL = np.array([2.0, 0.0])
WEIGHTS = np.array([0.8, 0.2])
VALUES = np.array([[0.5, 0.0], [-3.0, 5.0]])
PARTS = np.array([RESIDUAL + WEIGHTS[0] * VALUES[0], WEIGHTS[1] * VALUES[1]])
Y = PARTS.sum(0)


def row(gains: np.ndarray) -> np.ndarray:
    return gains / gains.sum()


def norm() -> np.ndarray:
    return row(np.sqrt((PARTS**2).sum(-1)))


def alti() -> np.ndarray:
    return row(np.array([np.abs(Y).sum() - np.abs(Y - part).sum() for part in PARTS]))


def value_zeroing() -> np.ndarray:
    without = [Y - WEIGHTS[j] * VALUES[j] for j in range(2)]
    return row(np.array([1 - Y @ o / np.linalg.norm(Y) / np.linalg.norm(o) for o in without]))


def shown(values: np.ndarray) -> str:
    return f"({values[0]:.2f}, {values[1]:.2f})"


def test_the_page_says_what_the_formulas_give():
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text(encoding="utf-8")
    lines = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in page.splitlines() if "| (" in line}
    assert np.allclose(PARTS, [[2.4, 0], [-0.6, 1]]) and np.allclose(Y, [1.8, 1])
    assert lines["norm"] == shown(norm())
    assert lines["alti"] == shown(alti())
    assert lines["value zeroing"] == shown(value_zeroing())
    lengths = np.sqrt((PARTS**2).sum(-1))
    share = 1 - lengths[1] / lengths.sum()
    assert lines["attention, measured"] == shown((1 - share) * WEIGHTS + share * np.array([1, 0]))
    assert lines["attention, ρ = ½"] == shown(0.5 * WEIGHTS + 0.5 * np.array([1, 0]))
    assert np.allclose(np.clip(WEIGHTS * VALUES[:, 1], 0, None), [0, 1])


def layer(first: np.ndarray, **record: object) -> Attention:
    """One layer whose second output reads nothing but itself."""
    return Attention.of(np.array([[first, [0.0, 1.0]]]), **record)


def test_the_methods_compose_them_so():
    plain = layer(WEIGHTS)
    assert np.allclose(rollout(plain, position=0).scores, [[0.9, 0.1]])
    lengths = np.sqrt((PARTS**2).sum(-1))
    mixing = (np.array([lengths[1] / lengths.sum(), 0.0]),)
    ratios = replace(plain, blocks={"self": replace(plain.only, mixing=mixing)})
    assert np.allclose(rollout(ratios, position=0, residual="measured").scores.round(2), [[0.93, 0.07]])
    for edges, found in (("norm", norm()), ("alti", alti()), ("value_zeroing", value_zeroing())):
        att = layer(found, edges=edges, residual_inside=True)
        for method in (raw, rollout, flow, direct):
            assert np.allclose(method(att, position=0).scores, [found])
    by_gradient = layer(np.clip(WEIGHTS * VALUES[:, 1], 0, None), edges="gradient")
    assert np.allclose(raw(by_gradient, position=0).scores, [[0, 1]])
    assert np.allclose(rollout(by_gradient, position=0).scores, [[1, 1]])
