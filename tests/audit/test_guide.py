from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from attnflow import AttnFlowError, capture, flow, raw, rollout
from attnflow.audit import AttentionRow, Recipe, guide
from attnflow.audit.guide import _token_wise, guide_weights, judged, settled, uniform_rows
from attnflow.audit.training import trained

from .tiny import RECIPE, bert, lstm, splits


@pytest.fixture(scope="module")
def data():
    return splits()


@pytest.fixture(scope="module")
def model(data):
    return trained(bert, data, recipe=Recipe(epochs=1)).model


def test_weights_that_point_to_the_deciding_word_beat_uniform_ones():
    long = splits(length=14)
    quick = Recipe(epochs=2, patience=2, batch=8, rate=0.01)
    options = {"recipe": Recipe(epochs=8, patience=8, batch=8, rate=0.02), "training": quick}
    found = guide(lstm, long, width=8, seeds=(0, 1), **options)
    scores = dict(zip(found.table["guide"], found.table["validation"], strict=True))
    assert list(scores) == ["uniform", "own trained", "raw"]
    assert scores["raw"] > scores["uniform"]
    assert len(found.records) == 3 * 2 * len(long.test) and set(found.records["seed"]) == {0, 1}
    assert "mean of 2 seeds" in found.verdict and list(found.tests) == ["guide: raw against uniform"]
    assert (
        "raw does not differ significantly from uniform" in found.verdict
        or "raw carries more than uniform" in found.verdict
    )
    found.plot()


def test_a_transformers_guides_and_an_adversary(data, tmp_path):
    options = {"width": 8, "folder": tmp_path, "seeds": (0,), "recipe": RECIPE, "training": Recipe(epochs=1)}
    found = guide(bert, data, adversary=0.1, imposters=Recipe(epochs=1), **options)
    assert found.table["guide"].tolist() == ["uniform", "own trained", "raw", "rollout", "flow", "adversary"]
    assert "flow does not differ significantly from raw" in found.verdict or "than raw" in found.verdict

    def never(done, total):
        raise AssertionError("computed again")

    again = guide(bert, data, adversary=0.1, imposters=Recipe(epochs=1), progress=never, **options)
    assert again.table.equals(found.table)
    assert sorted(p.name for p in (tmp_path / "guides-0").iterdir()) == [
        "flow.safetensors", "raw.safetensors", "rollout.safetensors"
    ]  # fmt: skip


def test_the_token_wise_model_begins_with_given_word_vectors(data):
    vectors = torch.randn(data.vocabulary, 5)
    for own in (True, False):
        model = _token_wise(own, data, 8, vectors, seed=0)
        assert torch.equal(model.get_input_embeddings().weight, vectors) and model.config.hidden_size == 8
    short = Recipe(epochs=1)
    found = guide(lstm, data, width=8, vectors=vectors, seeds=(0,), recipe=short)
    assert found.settings["vectors"] == "given, 5 numbers per word"
    assert guide(lstm, data, width=8, seeds=(0,), recipe=short).settings["vectors"] == "random"
    with pytest.raises(AttnFlowError, match=rf"\(3, 5\), and the texts have {data.vocabulary} words"):
        guide(lstm, data, vectors=vectors[:3])


@pytest.mark.parametrize(("method", "function"), [("raw", raw), ("rollout", rollout), ("flow", flow)])
def test_guides_are_the_librarys_own_rows_without_special_tokens(data, model, method, function):
    found = guide_weights(method, model, data, AttentionRow())
    for i in (0, 5):
        ids = list(data.valid.ids[i])
        row = function(capture(model, None, ids), layer=-1, position=0).scores[-1]
        expected = np.concatenate([[0], row[1:-1] / row[1:-1].sum(), [0]])
        np.testing.assert_allclose(found["valid"][i], expected, atol=1e-5)


def test_the_gradient_guides_too(data, model):
    from dataclasses import replace

    few = replace(data, train=data.test, valid=data.test)
    found = guide_weights("gradient", model, few, AttentionRow())
    assert all(row.sum().item() == pytest.approx(1, abs=1e-5) for row in found["test"])


def test_weights_sum_to_one_and_none_is_on_a_special_token(data):
    rows = uniform_rows(data)["train"]
    assert rows[0][0] == rows[0][-1] == 0 and rows[0].sum().item() == pytest.approx(1)
    empty = settled([torch.zeros(len(x)) for x in data.test.ids], data.test, data)
    torch.testing.assert_close(empty[0], uniform_rows(data)["test"][0])


def test_weights_of_another_model_are_refused(data, model, tmp_path):
    path = tmp_path / "raw.safetensors"
    guide_weights("raw", model, data, AttentionRow(), path, "one")
    with pytest.raises(AttnFlowError, match="of one., and .raw .* of two. were asked for.*another folder="):
        guide_weights("raw", model, data, AttentionRow(), path, "two")


def test_bad_choices_are_refused(data, model):
    with pytest.raises(AttnFlowError, match="guide 'lime' is not known. Use some of: raw, rollout"):
        guide(lstm, data, guides=["lime"])
    with pytest.raises(AttnFlowError, match="guide 'lime' is not known"):
        guide_weights("lime", model, data, AttentionRow())
    with pytest.raises(AttnFlowError, match="adversary=-1"):
        guide(lstm, data, adversary=-1)
    with pytest.raises(AttnFlowError, match="convention='x'"):
        guide(lstm, data, convention="x")
    with pytest.raises(AttnFlowError, match="Pass residual='none'"):
        guide(lstm, data, guides=["rollout"], recipe=Recipe(epochs=1))


def answers(count=60, **right):
    """Records of made-up guides: for each a list, by seed, of texts that are answered rightly."""
    rows = [
        {"guide": name, "seed": seed, "instance": i, "right": i in found}
        for name, seeds in right.items() for seed, found in enumerate(seeds) for i in range(count)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_verdict_on_made_up_records_of_known_answer():
    table = pd.DataFrame({"guide": ["uniform", "raw", "flow"], "F1": [0.5, 0.8, 0.5]})
    base = set(range(30))
    records = answers(uniform=[base, base], raw=[set(range(50)), set(range(48))], flow=[base | {40}, base - {3}])
    said, tests = judged(table, records)
    assert "raw carries more than uniform (better in 2 of 2 seeds" in said
    assert "flow does not differ significantly from uniform (better in 1 of 2 seeds" in said
    assert "flow carries less than raw (better in 0 of 2 seeds" in said
    assert list(tests) == ["guide: raw against uniform", "guide: flow against uniform", "guide: flow against raw"]
    same, tests = judged(table, answers(uniform=[base], raw=[base], flow=[base]))
    assert "raw carries" not in same and set(tests.values()) == {1.0}


def test_a_guide_is_judged_by_its_mean_and_not_by_how_many_texts_it_helps():
    """Worse in every seed, by few texts that are lost in all of them; helped are more texts, in one seed each."""
    table = pd.DataFrame({"guide": ["uniform", "raw"], "F1": [0.9, 0.8]})
    lost, base = set(range(100)), set(range(300))
    helped = [set(range(300 + 48 * i, 348 + 48 * i)) for i in range(5)]
    said, tests = judged(table, answers(uniform=[base] * 5, raw=[(base - lost) | some for some in helped], count=600))
    assert (
        "raw carries less than uniform (better in 0 of 5 seeds" in said and tests["guide: raw against uniform"] < 1e-3
    )
