from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from attnflow import AttnFlowError
from attnflow.audit import AttentionRow, Finding, Recipe, imposter, seeds
from attnflow.audit.imposter import FURTHEST, BaseOutcomes, judged, train_imposter
from attnflow.audit.training import build, trained

from .tiny import RECIPE, bert, lstm, splits

LONGER = Recipe(epochs=15, patience=15, batch=8, rate=0.02)


@pytest.fixture(scope="module")
def data():
    return splits()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("imposter")


@pytest.fixture(scope="module")
def finding(data, folder):
    return imposter(lstm, data, penalties=[0.0, 0.002, 0.05], folder=folder, recipe=RECIPE, training=LONGER)


def test_without_a_penalty_it_predicts_like_the_base_and_with_one_it_attends_elsewhere(finding):
    curve = finding.table[finding.table["model"] == "imposter"]
    assert curve["TVD"].iloc[0] < 0.05
    assert (np.diff(curve["JSD"]) > 0).all() and curve["JSD"].iloc[-1] > 0.3
    np.testing.assert_allclose(curve["TVD scalar"], curve["TVD"] / 2, atol=1e-6)
    assert finding.table["λ"].tolist() == ["nan", "0", "0.002", "0.05"]
    assert "λ" in finding.verdict and "batch" in finding.limits[0]


def curve(*points, seeds=None):
    """A table of made-up imposters (λ, JSD, TVD)."""
    rows = [{"model": "base", "λ": "nan", "F1": 0.9, "JSD": np.nan, "TVD": np.nan}]
    rows += [{"model": "imposter", "λ": f"{p:g}", "F1": 0.9, "JSD": jsd, "TVD": tvd} for p, jsd, tvd in points]
    rows += [] if seeds is None else [{"model": "other seeds", "λ": "nan", "F1": np.nan, "JSD": 0.2, "TVD": seeds}]
    return pd.DataFrame(rows)


def test_a_distance_is_a_cost_only_beyond_what_the_controls_differ_by():
    within = judged(curve((0, 0.1, 0.01), (1, 0.5, 0.064), seeds=0.077))
    assert "as much like the base as other seeds (0.077; λ = 0 0.010), though less so than λ = 0: at λ = 1" in within
    beyond = judged(curve((0, 0.1, 0.01), (1, 0.5, 0.064), seeds=0.05))
    assert "costs agreement with the base, beyond that of other seeds (0.050; λ = 0 0.010): at λ = 1" in beyond
    near = judged(curve((0, 0.1, 0.064), (1, 0.5, 0.064), seeds=0.077))
    assert "as much like the base as other seeds (0.077; λ = 0 0.064): at λ = 1" in near
    # Without seeds λ = 0 is all there is; a control that was not measured is none.
    alone = judged(curve((0, 0.1, 0.01), (1, 0.5, 0.064)))
    assert "beyond that of λ = 0 (0.010): at λ = 1" in alone
    assert alone == judged(curve((0, 0.1, 0.01), (1, 0.5, 0.064), seeds=float("nan")))
    # Of several seeds the furthest is the yardstick, and their mean stands beside it.
    spread = curve((0, 0.1, 0.01), (1, 0.5, 0.064), seeds=0.05)
    spread[FURTHEST] = [np.nan] * 3 + [0.07]
    said = judged(spread)
    assert (
        "as much like the base as the furthest of other seeds (0.070; other seeds 0.050; λ = 0 0.010), though" in said
    )
    spread[FURTHEST] = [np.nan] * 3 + [0.06]
    assert "costs agreement with the base, beyond that of the furthest of other seeds (0.060; other" in judged(spread)
    # A training at λ = 0 that failed does not excuse what is further than other seeds.
    failed = judged(curve((0, 0.1, 0.5), (1, 0.5, 0.4), seeds=0.05))
    assert "costs agreement with the base, beyond that of other seeds (0.050; λ = 0 0.500)" in failed
    assert "cannot be said without a control: add λ = 0" in judged(curve((1, 0.5, 0.064)))
    assert "No imposter got further than 0.300" in judged(curve((0, 0.1, 0.01), (1, 0.3, 0.02)))


def test_the_imposter_that_predicts_most_like_the_base_is_judged():
    said = judged(curve((0, 0.1, 0.01), (1, 0.41, 0.009), (2, 0.6, 0.2)))
    assert said.startswith("A model that attends elsewhere can predict as much like the base")
    assert ": at λ = 1 the attention is 0.410 nats" in said
    # An imposter at λ = 0 that attends elsewhere by itself is no control of itself.
    assert "cannot be said without a control" in judged(curve((0, 0.5, 0.01), (1, 0.6, 0.02)))
    # 0.4 nats are not further than 0.4, and the furthest imposter is named, wherever it stands.
    assert "further than 0.400 nats (JSD, at most 0.693; at λ = 1)" in judged(curve((1, 0.4, 0.02), (2, 0.3, 0.01)))


def test_other_findings_join_the_curve(data, folder):
    points = pd.DataFrame({"instance": [0, 1], "jsd": [0.3, 0.5], "tvd": [0.01, 0.0]})
    adversaries = Finding("adversary", points, points, "", ())
    others = seeds(lstm, data, seeds=[1], folder=folder, recipe=RECIPE)
    found = imposter(
        lstm,
        data,
        penalties=[1.0],
        folder=folder,
        recipe=RECIPE,
        training=LONGER,
        adversaries=adversaries,
        seeds=others,
    )
    assert found.table["model"].tolist() == ["base", "imposter", "per-instance adversaries", "other seeds"]
    assert found.table["JSD"].iloc[2] == pytest.approx(0.4)
    labels = [t.get_text() for t in found.plot().get_legend().get_texts()]
    assert labels == ["imposters, one for each λ", "per-instance adversaries", "other seeds"]


def test_the_loss_is_the_papers(data):
    base = trained(lstm, data, recipe=Recipe(epochs=1))
    outcomes = BaseOutcomes.of(base.model, data, AttentionRow())
    recipe = Recipe(epochs=1, batch=64, rate=1e-6)
    found = train_imposter(
        lstm,
        data,
        base,
        outcomes,
        0.1,
        seed=0,
        folder=None,
        recipe=recipe,
        attention_row=AttentionRow(),
        convention="scalar",
    )
    start = build(lstm, 0)
    total = 0.0
    for i, ids in enumerate(data.train.ids):
        out = start(torch.tensor([ids]), output_attentions=True)
        p, q = out.logits.softmax(-1)[0], outcomes.train.probabilities[i]
        a, b = out.attentions[0][0, 0, 0, 1:-1], outcomes.train.attention[i][1:-1]
        total += (0.5 * abs(p[1] - q[1]) - 0.1 * (a * (a / b).log()).sum()).item()
    assert found.history[0]["loss"] == pytest.approx(total, abs=1e-4)


def test_a_transformer_runs(data):
    found = imposter(bert, data, penalties=[0.5], recipe=RECIPE)
    assert found.table["JSD"].iloc[1] > 0
    assert len(found.records) == len(data.test)


def test_bad_choices_are_refused(data, finding):
    with pytest.raises(AttnFlowError, match="penalties is empty"):
        imposter(lstm, data, penalties=[])
    with pytest.raises(AttnFlowError, match="λ = -1.*use 0 or more"):
        imposter(lstm, data, penalties=[-1])
    with pytest.raises(AttnFlowError, match="convention='half' is not known. Use 'exact' or 'scalar'"):
        imposter(lstm, data, convention="half")
    bare = Finding("uniform", pd.DataFrame(), pd.DataFrame({"F1": [1.0]}), "", ())
    with pytest.raises(AttnFlowError, match="'uniform' have no columns jsd and tvd.*adversary"):
        imposter(lstm, data, penalties=[0.0], recipe=Recipe(epochs=1), adversaries=bare)
