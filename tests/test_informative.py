"""Whether scores say something about the text: figures against naive ones, and the line that every method gets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from attnflow import Attention, Relevance, flow, raw, rollout
from attnflow.informative import Informative, flat, informative, rounding_note, row_agreement
from attnflow.tokens import Tokens
from attnflow.views.terminal import footer
from tests.conftest import random_attention

TOKENS = Tokens(["[CLS]", "the", "key", "is", "[SEP]"], special=[True, False, False, False, True])
WEIGHTS = random_attention(1, 3, 5)


def test_the_figures_by_hand():
    scores = np.array([[0.1, 0.1, 0.1, 0.1, 0.6], [0.5, 0.2, 0.05, 0.15, 0.1]])
    found = informative(Relevance(scores, TOKENS, (0, 1), "raw", {"position": 0}))
    assert (found.first, found.special) == (pytest.approx(0.5), pytest.approx(0.6))
    assert found.position == pytest.approx(spearmanr(scores[1], -np.arange(5)).statistic)
    assert found.rows is None
    assert found.doubts == ("50% of the mass is on the first token", "60% of the mass is on special tokens")


def test_rows_are_compared_over_what_both_outputs_reach():
    rows = raw(WEIGHTS).scores[-1]
    want = np.mean([spearmanr(a, b).statistic for a, b in itertools.pairwise(rows)])
    assert raw(WEIGHTS).informative.rows == pytest.approx(want)
    assert row_agreement(np.tile([0.1, 0.4, 0.2, 0.3], (6, 1))) == pytest.approx(1)
    assert row_agreement(np.full((6, 4), 0.25)) == 1  # no output ranks anything
    assert row_agreement(np.eye(5)) is None  # no two outputs reach the same inputs


def test_rollout_of_a_causal_model_says_that_it_is_on_the_first_token():
    sink = np.zeros((12, 6, 6))
    sink[..., 0] = 0.97
    sink += 0.03 * np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None]
    r = rollout(Attention.of(sink, list("abcdef")), position=-1)
    assert r.informative.first > 0.99
    assert repr(r).endswith("× 6 inputs; careful: 100% of the mass is on the first token)") and "\n" not in repr(r)
    assert footer([r])[-1].startswith("rollout: is this informative? careful: 100% of the mass is on the first token")
    assert r.informative.to_dict()["line"] == r.informative.line


def test_flows_that_do_not_depend_on_the_output():
    deep = flow(np.concatenate([WEIGHTS] * 5), tokens=TOKENS)
    assert deep.informative.rows == pytest.approx(1)
    assert "every output ranks the inputs alike, so it is not about this one" in deep.informative.line


def test_order_alone():
    later = Informative(0.1, 0.0, -0.95, 0.2)
    assert later.doubts == ("later tokens score higher, whatever they are (rank agreement with position -0.95)",)
    good = Informative(0.1, 0.2, 0.3, 0.4)
    assert good.doubts == ()
    assert good.line.endswith("10% of the mass on the first token, 20% on special tokens, rank agreement with position "
                              "0.30, between outputs 0.40")  # fmt: skip


def test_few_inputs_signs_missing_scores_and_dropped_tokens():
    few = Relevance(np.array([[-0.9, 0.1]]), ["a", "b"], ("input",), "gradient").informative
    assert (few.first, few.position) == (pytest.approx(0.9), None)
    gone = Relevance(np.array([[np.nan, 0.1, 0.3, 0.2, 0.4]]), TOKENS, ("input",), "blankout").informative
    assert gone.first == 0 and gone.position == pytest.approx(spearmanr([1, 3, 2, 4], [4, 3, 2, 1]).statistic)
    r = raw(WEIGHTS, tokens=TOKENS, position=0)
    assert r.drop_special().informative.special == pytest.approx(r.special_share)
    zero = Relevance(np.zeros((1, 4)), list("abcd"), (0,), "raw").informative
    assert (zero.first, zero.special, zero.position) == (0, 0, None)


def test_scores_that_are_all_alike_are_no_answer():
    same = Relevance(np.full((1, 5), 0.2), TOKENS, ("input",), "blankout").informative
    assert same.doubts == ("all inputs have nearly the same score, which ranks nothing",)
    nearly = np.array([[0.2, 0.2006, 0.2008, 0.2009, 0.201]])
    assert Relevance(nearly, TOKENS, (0,), "raw", {"position": 0}).informative.doubts == same.doubts
    assert Relevance(np.zeros((1, 5)), TOKENS, ("input",), "gradient").informative.flat
    assert not flat(np.array([0.2, 0.2])) and not flat(np.array([0.2, np.nan, 0.2]))
    assert not raw(np.full((1, 4, 4), 0.25)).informative.flat  # outputs × inputs: the rows are compared instead


def test_a_result_and_a_table_say_in_the_same_words_what_rounding_left():
    left = "|Σg| is 2e-08 of Σ|g|"
    (said,) = Informative(0.2, 0.0, 0.1, None, rounding=2e-8).doubts
    assert said == f"the scores are rounding error: {left}"
    said = f"mine is rounding error here: {left}"
    assert rounding_note("mine", [1e-9, 2e-8, 1e-7], 3) == f"{said} (median over 3 examples)"
    assert rounding_note("mine", [2e-8], 3).endswith(f"{left} (median over 1 of 3 examples)")
    assert rounding_note("mine", [2e-8], 1).endswith(f"{left} (median over 1 example)")
