"""Attention against gradients and leave-one-out: by hand, and by scipy on the library's own scores."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kendalltau

from attnflow import blankout, gradient, raw, rollout
from attnflow.audit import correlation
from attnflow.audit.correlation import LENGTH, LENGTH_LOO, LOO, PRODUCT, PRODUCT_LOO, SHARE, _line, _table, _verdict
from attnflow.correlation import coefficients, kendall_p_values
from attnflow.errors import AttnFlowError
from tests import standin
from tests.audit import tiny
from tests.audit.hand import HandModel, causal, classifier, masked, own, state

TEXTS = ["the key to the cabinets is near", "the author of the books is on the table"]


def tau(found, pair, method="raw", number=0):
    picked = found.records[(found.records["pair"] == pair) & (found.records["number"] == number)]
    return picked[picked["method"].isin([method, ""])].iloc[0]


def by_hand(model, ids, detach):
    """(attention, gradient × input, leave-one-out) of the predicted class, from the formulas."""
    weights, values, p = own(model, ids)
    c = int(p.argmax())
    scores = np.array([float(model.table.weight[i, 0].detach()) for i in ids])
    slope = p[c] * (np.eye(len(p))[c] - p)
    g = weights * (values @ slope)
    if not detach:
        g = g + scores * weights * ((values - weights @ values) @ slope)
    loo = []
    for t in range(len(ids)):
        _, _, q = own(model, ids[:t] + ids[t + 1 :])
        loo.append(np.abs(q - p).sum() / 2)
    return weights, np.abs(g), np.array(loo)


@pytest.mark.parametrize("detach", [True, False])
def test_the_three_correlations_by_hand(detach):
    rng = np.random.default_rng(3)
    model = HandModel(rng.normal(size=9) * 2, rng.normal(size=(9, 3)) * 2)
    texts = [[0, 1, 2, 3, 4, 5], [8, 2, 6, 7, 1, 3, 5]]
    found = correlation(model, None, texts, detach_attention=detach)
    assert set(found.records["method"]) == {"raw", ""} and found.settings["detach_attention"] is detach
    for number, ids in enumerate(texts):
        weights, g, loo = by_hand(model, ids, detach)
        for pair, a, b in ((PRODUCT, weights, g), (LOO, weights, loo), (PRODUCT_LOO, g, loo)):
            known, got = kendalltau(a, b), tau(found, pair, number=number)
            assert got["tau"] == pytest.approx(known.statistic) and got["p"] == pytest.approx(known.pvalue)
            assert got["tokens"] == len(ids)


def test_against_the_librarys_own_methods():
    model, tokenizer = classifier(), standin.tokenizer()
    found = correlation(model, tokenizer, TEXTS, methods=("raw", "rollout"), layers=[0, 1], detach_attention=False)
    for number, text in enumerate(TEXTS):
        slopes = gradient(model, tokenizer, text, method="input_x_gradient", reduce="abs_of_sum", score="prob")
        loo = blankout(model, tokenizer, text, blank="delete", score="tvd")
        lengths = gradient(model, tokenizer, text, reduce="l2", score="prob")
        for name, method in (("raw", raw), ("rollout", rollout)):
            scores = method(model, tokenizer, text, position="cls")
            for layer in (0, 1):
                for pair, other in ((LENGTH, lengths), (PRODUCT, slopes), (LOO, loo)):
                    known = kendalltau(scores.scores[layer, 1:-1], other.scores[0, 1:-1])
                    same = (found.records[["pair", "method", "layer"]] == [pair, name, layer]).all(axis=1)
                    rows = found.records[same]
                    assert rows["tau"].iloc[number] == pytest.approx(known.statistic)
                    assert rows["p"].iloc[number] == pytest.approx(known.pvalue)


def test_detaching_changes_gradients_alone():
    model, tokenizer = classifier(), standin.tokenizer()
    one = correlation(model, tokenizer, TEXTS, methods="raw").records
    two = correlation(model, tokenizer, TEXTS, methods="raw", detach_attention=False).records
    same = one["pair"] == LOO
    assert np.allclose(one[same]["tau"], two[same]["tau"]) and not np.allclose(one[~same]["tau"], two[~same]["tau"])


def test_heads_one_by_one():
    model, tokenizer = classifier(), standin.tokenizer()
    found = correlation(model, tokenizer, TEXTS[:1], methods="raw", heads=2)
    scores = raw(model, tokenizer, TEXTS[0], position="cls", heads=2, layer=-1).scores[0, 1:-1]
    loo = blankout(model, tokenizer, TEXTS[0], blank="delete", score="tvd").scores[0, 1:-1]
    assert tau(found, LOO)["tau"] == pytest.approx(kendalltau(scores, loo).statistic) and found.settings["heads"] == 2


def test_attention_that_is_not_seen_cannot_be_held_constant(monkeypatch):
    function = sys.modules["attnflow.audit.correlation"]
    monkeypatch.setattr(function, "replaced", lambda model, replace: nullcontext([]))
    with pytest.raises(AttnFlowError, match="was not seen as a matrix.*detach_attention=False"):
        correlation(classifier(), standin.tokenizer(), TEXTS, methods="raw")


def test_the_table_is_the_mean_of_the_records():
    found = correlation(classifier(), standin.tokenizer(), TEXTS * 2, labels=["a", "b", "b", "b"], methods="raw")
    for name, part in [(c, found.records[found.records["class"] == c]) for c in "ab"] + [("all", found.records)]:
        for pair in (LENGTH, PRODUCT, LOO, LENGTH_LOO, PRODUCT_LOO):
            row = found.table[(found.table["class"] == name) & (found.table["pair"] == pair)].iloc[0]
            mine = part[part["pair"] == pair]
            assert row["mean τ"] == pytest.approx(mine["tau"].mean()) and row["n"] == len(mine)
            assert row["std"] == pytest.approx(np.std(mine["tau"]))
            assert row["significant"] == pytest.approx((mine["p"] <= 0.05).mean())
    assert "Over 4 texts: raw attention " in found.verdict and found.settings["layers"] == [1]
    assert len(found.plot().patches) == 5 and "<svg" in found.to_html()


def test_what_ranks_nothing_has_no_tau():
    flat = (np.ones((1, 4)), np.arange(4.0))
    assert np.isnan(coefficients(*flat, "kendall")).all() and np.isnan(kendall_p_values(*flat)).all()
    model = HandModel([0.0] * 5, [[1.0, 0], [0, 1], [2, 0], [0, 3], [1, 1]])
    found = correlation(model, None, [[0, 1, 2, 3, 4]])
    row = found.table[found.table["pair"] == PRODUCT].iloc[0]
    assert np.isnan(row["mean τ"]) and row["nan"] == 1 and "cannot be compared" in found.verdict
    assert "have no τ" in found.verdict


@pytest.mark.parametrize("kind", ["masked", "gpt2", "llama", "base"])
def test_language_models_and_models_without_a_head(kind):
    if kind == "masked":
        model, tokenizer, texts = masked(), standin.tokenizer(), ["the key to the [MASK] is near"]
    elif kind == "base":
        model, tokenizer, texts = standin.model(2), standin.tokenizer(), TEXTS[:1]
    else:
        model, tokenizer, texts = causal(kind), None, [[5, 6, 7, 8, 9]]
    found = correlation(model, tokenizer, texts, layers="all")
    assert set(found.records["method"]) == {"raw", "rollout", "flow", ""}
    assert found.records[found.records["method"] != ""].groupby("method")["layer"].nunique().eq(2).all()
    assert found.records["tau"].notna().mean() > 0.5


def test_words_of_the_verdict():
    row = {"pair": PRODUCT, "method": "raw", "layer": 3, "mean τ": 0.21, "significant": 0.34}
    said = "raw attention of layer 3 agrees weakly with gradients times embeddings (mean τ 0.21, p ≤ 0.05 for 34%)"
    assert _line([row], 0.05) == said
    for value, words in ((0.6, "agrees strongly"), (0.05, "agrees hardly at all"), (-0.4, "disagrees moderately")):
        assert words in _line([{**row, "mean τ": value}], 0.05)
    both = _line([{**row, "pair": PRODUCT_LOO, "mean τ": 0.5}], 0.05)
    assert both.startswith("gradients times embeddings agree strongly with leave-one-out")
    both = _line([row, {**row, "layer": 4, "mean τ": -0.1}], 0.05)
    assert "most at layer 3 (mean τ 0.21" in both and "least at layer 4 (mean τ -0.10" in both


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "agrees strongly"), (0.5, "agrees strongly"), (0.49, "agrees moderately"), (0.3, "agrees moderately"),
        (0.29, "agrees weakly"), (0.1, "agrees weakly"), (0.09, "agrees hardly at all"), (0.0, "agrees hardly at all"),
        (-0.09, "agrees hardly at all"), (-0.1, "disagrees weakly"), (-0.3, "disagrees moderately"),
        (-0.5, "disagrees strongly"),
    ],
)  # fmt: skip
def test_each_word_of_the_verdict_has_its_range(value, words):
    row = {"pair": LOO, "method": "flow", "layer": 0, "mean τ": value, "significant": 0.0}
    assert _line([row], 0.01).startswith(f"flow attention of layer 0 {words} with leave-one-out (mean τ {value:.2f},")


def made_up(pair, taus, p_values, method="raw", layer=1, classes="a"):
    columns = {"class": classes, "pair": pair, "method": method, "layer": layer, "tau": taus, "p": p_values}
    return pd.DataFrame(columns)


def test_a_verdict_on_made_up_records_of_known_answer():
    nan = np.nan
    records = pd.concat([
        made_up(LENGTH, [0.8, 0.4, 0.6, nan], [0.01, 0.2, 0.05, nan]),
        made_up(PRODUCT, [0.2, -0.3, 0.0, 0.1], [0.01, 0.04, 1.0, 0.9]),
        made_up(LOO, [nan, nan, nan, nan], [nan] * 4),
        made_up(PRODUCT_LOO, [-0.4, -0.4, -0.2, nan], [0.06, 0.07, 0.08, nan], "", -1),
    ])  # fmt: skip
    table = _table(records, 0.05)
    assert table["n"].tolist() == [3, 4, 0, 3] and table["nan"].tolist() == [1, 0, 4, 1]
    assert _verdict(table, 4, 0.05) == (
        "Over 4 texts: raw attention of layer 1 agrees strongly with the lengths of gradients (mean τ 0.60, p ≤ 0.05 "
        "for 67%); raw attention of layer 1 agrees hardly at all with gradients times embeddings (mean τ 0.00, "
        "p ≤ 0.05 for 50%); "
        "raw attention and leave-one-out cannot be compared; "
        "gradients times embeddings disagree moderately with leave-one-out (mean τ -0.33, p ≤ 0.05 for 0%). "
        "Up to 4 of them have no τ, because a scoring ranked nothing."
    )
    whole = _verdict(_table(made_up(LOO, [0.3, 0.3], [0.5, 0.5]), 0.05), 2, 0.05)
    assert whole.endswith("agrees moderately with leave-one-out (mean τ 0.30, p ≤ 0.05 for 0%).")


def test_the_verdict_is_of_all_classes_together():
    records = made_up(LOO, [0.9, 0.1, 0.2], [0.0, 0.5, 0.5], classes=["a", "b", "b"])
    table = _table(records, 0.05)
    assert table["class"].tolist() == ["a", "b", "all"] and table["mean τ"].tolist() == pytest.approx([0.9, 0.15, 0.4])
    assert "agrees moderately with leave-one-out (mean τ 0.40, p ≤ 0.05 for 33%)" in _verdict(table, 3, 0.05)


def test_of_several_layers_the_one_that_has_a_figure_is_named():
    rows = [{"pair": LOO, "method": "raw", "layer": i, "mean τ": t, "significant": 0.5}
            for i, t in ((0, np.nan), (1, 0.6), (2, np.nan))]  # fmt: skip
    assert _line(rows, 0.05).startswith("raw attention of layer 1 agrees strongly with leave-one-out")


@pytest.mark.parametrize("how", ["well", "error", "interrupt"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_it_was(how, training):
    model = classifier().train(training)
    model.classifier.weight.requires_grad_(False)
    before = state(model)
    kind = {"error": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)

    def progress(done, total):
        assert total == 2
        if kind is not None:
            raise kind("stop")

    def run():
        with torch.inference_mode():
            correlation(model, standin.tokenizer(), TEXTS, methods="raw", progress=progress)

    if kind is None:
        run()
    else:
        with pytest.raises(kind):
            run()
    assert state(model) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 5}, "layer=5, but the layers with attention are 0, 1"),
        ({"layers": "top"}, "layers='top' is not known"),
        ({"layers": []}, "layers is an empty list"),
        ({"methods": "grad"}, "methods: 'grad' is not known. Use raw, rollout, flow"),
        ({"methods": []}, "methods is empty"),
        ({"significance": 5}, "significance=5, but a p-value is between 0 and 1"),
        ({"batch_size": 0}, "batch_size=0, but at least 1"),
        ({"labels": [1, 2, 3]}, "3 labels for 2 texts"),
        ({"limit": 0}, "limit=0, but at least 1 example is needed"),
    ],
)
def test_errors_name_both_facts(options, message):
    with pytest.raises(AttnFlowError, match=message):
        correlation(classifier(), standin.tokenizer(), TEXTS, **options)


def test_behind_a_norm_of_the_embeddings_a_words_product_is_minus_that_of_its_position_and_type():
    """Why lengths stand beside products: the norm ignores the scale of the sum of the three."""
    import torch

    model, ids = classifier(), torch.tensor([[2, 7, 9, 11, 3]])
    parts = model.bert.embeddings
    words = parts.word_embeddings(ids).detach().requires_grad_()
    rest = (
        parts.position_embeddings(torch.arange(5))[None] + parts.token_type_embeddings(torch.zeros_like(ids))
    ).detach()
    rest.requires_grad_()
    hidden = model.bert.encoder(parts.LayerNorm(words + rest)).last_hidden_state
    chosen = model.classifier(model.bert.pooler(hidden))[0, 0]
    for_words, for_rest = torch.autograd.grad(chosen, (words, rest))
    one, two = (for_words * words).sum(-1), (for_rest * rest).sum(-1)
    torch.testing.assert_close(one, -two, atol=1e-3 * float(one.detach().abs().max()), rtol=0)
    assert float(for_words.norm(dim=-1).min()) > 0


CAVEAT = "but these products are no measure of the words here"


def test_behind_a_norm_the_finding_says_that_the_product_measures_no_words():
    found = correlation(classifier(), standin.tokenizer(), TEXTS, methods="raw")
    assert found.settings[SHARE] < 1e-5
    lines = found.verdict.split("; ")
    # The length leads: attention with lengths, products, leave-one-out; lengths and products with leave-one-out.
    assert [CAVEAT in line for line in lines] == [False, True, False, False, True]
    assert found.limits[0].startswith("The product of gradient and embedding is no measure of the words here")
    assert f"(measured: |Σ g·x| is {found.settings[SHARE]:.0e} of Σ|g·x|" in found.limits[0]
    assert found.limits[0].endswith("Take the length of the gradient.")


@pytest.mark.parametrize("kind", ["lstm", "gpt2", "llama", "hand"])
def test_without_such_a_norm_nothing_is_said_against_the_product(kind):
    torch.manual_seed(0)
    hand = HandModel([0.0, 1.0, 2.0], [[1.0, 0], [0, 1], [2, 0]]) if kind == "hand" else None
    model = hand or (tiny.lstm().eval() if kind == "lstm" else causal(kind))
    found = correlation(model, None, [[1, 2, 0, 1]] if hand else [[5, 6, 7, 4, 3]], methods="raw")
    # The values of the hand-made model are no vectors behind an embedding, so nothing is measured there.
    assert np.isnan(found.settings[SHARE]) if hand else found.settings[SHARE] > 0.01
    assert CAVEAT not in found.verdict and not any("no measure" in limit for limit in found.limits)
