"""Shuffled attention: hand-made models with known answers, what must stay, and what must not matter."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr, t

from attnflow.audit import permutation
from attnflow.audit.instances import open_texts
from attnflow.audit.intervention import find_intervention, forward, replaced
from attnflow.audit.permutation import _bin, _Shuffle, changes_of, judged, shuffled, trend
from attnflow.errors import AttnFlowError, InputError, SelectionError
from tests import standin
from tests.audit.hand import HandModel, causal, classifier, masked, own, softmax, state

TEXTS = ["the key to the cabinets", "the author of the books is near"]


def shuffle_of(model, text, tokenizer=None, seed=0, **options):
    chosen = {"layers": -1, "heads": None, "rows": "position", "fix_special": False, **options}
    (instance,) = open_texts([text]).instances(model, tokenizer)
    return _Shuffle(find_intervention(model, instance, **chosen), instance, seed, False)


def watched(model, shuffle, first=0):
    """(layer, weights, what they became) of every call in one run with permutation ``first``."""
    seen, shuffle.first = [], first

    def watch(call, weights):
        new = shuffle(call, weights)
        seen.append((call.layer, weights.clone(), new))
        return new

    with torch.no_grad(), replaced(model, watch) as records:
        forward(model, shuffle.instance.example.inputs, records)
    return seen


def test_an_identity_permutation_changes_nothing(monkeypatch):
    model = classifier()
    for rows in ("position", "all"):
        shuffle = shuffle_of(model, TEXTS[0], standin.tokenizer(), layers="all", rows=rows)
        monkeypatch.setattr(shuffle, "_noise", lambda layer, i, old: np.broadcast_to(
            np.linspace(0, 0.9, old.shape[-1], dtype=np.float32), old.shape[1:]))  # fmt: skip
        assert changes_of(model, shuffle, 5, 2).max() < 1e-6


def test_equal_values_make_weights_irrelevant():
    model = classifier()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.value.weight.zero_()
    found = permutation(model, standin.tokenizer(), TEXTS, layers="all", rows="all", fix_special=False, permutations=7)
    assert found.records["largest"].max() < 1e-6


def test_moving_away_from_the_token_that_decides_changes_the_output_by_the_known_amount():
    model = HandModel([30.0, 0, 0, 0, 0], [[5.0, 0], [0, 0], [0, 0], [0, 0], [0, 0]])
    found = permutation(model, None, [[0, 1, 2, 3, 4]], permutations=50).records.iloc[0]
    known = softmax([5.0, 0])[0] - 0.5
    assert found["change"] == pytest.approx(known, abs=1e-6) and found["largest"] == pytest.approx(known, abs=1e-6)
    assert found["max_attention"] == pytest.approx(1) and found["movable"] == pytest.approx(1)
    # One in five keeps the token where it is, and 50 draws of that kind have a mean within four deviations.
    assert abs(found["mean"] / known - 0.8) < 4 * np.sqrt(0.16 / 50)


def test_every_change_is_that_of_some_permutation_of_the_weights():
    model = HandModel([2.0, 0, -1], [[3.0, 0], [0, 1], [0, 2]])
    weights, values, before = own(model, [0, 1, 2])
    known = {abs(softmax(np.array(order) @ values) - before).sum() / 2 for order in itertools.permutations(weights)}
    shuffle = shuffle_of(model, [0, 1, 2])
    changes = changes_of(model, shuffle, 60, 16)
    assert {min(known, key=lambda k: abs(k - c)) for c in changes} == known  # all six were drawn
    assert all(min(abs(k - c) for k in known) < 1e-6 for c in changes)


def test_shuffled_keeps_what_is_fixed_and_loses_nothing():
    torch.manual_seed(0)
    weights, free = torch.rand(4, 3, 2, 6), torch.rand(4, 1, 2, 6) > 0.4
    new = shuffled(weights, free, torch.rand(4, 3, 2, 6))
    kept = ~free.expand_as(weights)
    assert torch.equal(new[kept], weights[kept]) and not torch.equal(new, weights)
    assert torch.equal(new.sort(-1).values, weights.sort(-1).values)


@pytest.mark.parametrize("rows", ["position", "all"])
def test_causal_rows_are_shuffled_within_what_they_see(rows):
    model = causal()
    shuffle = shuffle_of(model, [5, 6, 7, 8, 9], layers="all", rows=rows)
    for _, before, after in watched(model, shuffle):
        assert torch.equal(after.triu(1), torch.zeros_like(after))
        assert not torch.equal(before, after)
        if rows == "position":
            assert torch.equal(before[:, :, :-1], after[:, :, :-1])


def test_special_tokens_and_other_heads_stay():
    model = classifier()
    shuffle = shuffle_of(model, TEXTS[0], standin.tokenizer(), heads=[1, -1], fix_special=True)
    pair = watched(model, shuffle, 3)
    assert [(layer, new is None) for layer, _, new in pair] == [(0, True), (1, False)]
    _, before, after = pair[1]
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert torch.equal(before[..., [0, -1]], after[..., [0, -1]]) and torch.equal(before[:, :, 1:], after[:, :, 1:])
    assert not torch.equal(before[:, [1, 3], 0], after[:, [1, 3], 0])


def test_batches_do_not_matter_and_seeds_do():
    model, tokenizer = classifier(), standin.tokenizer()
    whole = permutation(model, tokenizer, TEXTS, permutations=12, batch_size=12).records
    parts = permutation(model, tokenizer, TEXTS, permutations=12, batch_size=5).records
    again = permutation(model, tokenizer, TEXTS[1:], permutations=12, batch_size=5).records
    other = permutation(model, tokenizer, TEXTS, permutations=12, seed=1).records
    assert np.allclose(whole["change"], parts["change"], atol=1e-6)
    assert not np.allclose(whole["mean"], other["mean"], atol=1e-6)
    assert again["max_attention"][0] == pytest.approx(whole["max_attention"][1])


def test_one_module_that_is_every_layer_is_told_apart_by_its_calls():
    from transformers import AlbertConfig, AlbertForSequenceClassification

    sizes = {"hidden_size": 16, "embedding_size": 8, "num_attention_heads": 4, "intermediate_size": 16}
    torch.manual_seed(0)
    model = AlbertForSequenceClassification(AlbertConfig(**sizes, num_hidden_layers=3, vocab_size=40)).eval()
    seen = watched(model, shuffle_of(model, [5, 6, 7, 8], layers=1))
    assert [new is None for _, _, new in seen] == [True, False, True]
    assert permutation(model, None, [[5, 6, 7, 8]], permutations=3).settings["layers"] == [2]


def test_attention_of_fewer_rows_than_tokens():
    from transformers import FunnelConfig, FunnelForSequenceClassification

    sizes = {"d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 16, "block_sizes": [1, 1], "num_decoder_layers": 1}
    torch.manual_seed(0)
    model = FunnelForSequenceClassification(FunnelConfig(**sizes, vocab_size=40)).eval()
    with pytest.raises(AttnFlowError, match="3 rows and the text 5 output positions.* Use rows='all'"):
        permutation(model, None, [[5, 6, 7, 8, 9]])
    assert len(permutation(model, None, [[5, 6, 7, 8, 9]], rows="all", fix_special=False, permutations=3).records) == 1


@pytest.mark.parametrize("kind", ["masked", "gpt2", "llama", "gpt-oss", "gemma2", "bloom"])
def test_language_models(kind):
    if kind == "masked":
        model, tokenizer, texts = masked(), standin.tokenizer(), ["the key to the [MASK]", "the [MASK] is near"]
    else:
        model, tokenizer, texts = causal(kind), None, [[5, 6, 7, 8], [9, 3, 4]]
    found = permutation(model, tokenizer, texts, permutations=6, rows="all", layers="all")
    assert (found.records["largest"] > 0).all() and set(found.records["class"]) == {""}
    assert list(found.table["class"].unique()) == ["all"]


def test_one_permutation_for_all_heads_moves_their_mean():
    model = classifier()
    shuffle = shuffle_of(model, TEXTS[0], standin.tokenizer())
    shuffle.share_heads = True
    _, *pair = watched(model, shuffle)[-1]
    before, after = (w[0, :, 0].mean(0).sort().values for w in pair)
    assert torch.allclose(before, after)


def test_classes_bins_and_verdict():
    model, tokenizer = classifier(), standin.tokenizer()
    found = permutation(model, tokenizer, TEXTS * 2, labels=["a", "b"] * 2, permutations=5)
    assert list(found.table["class"].unique()) == ["a", "b", "all"] and found.table["n"].iloc[-1] == 4
    middle = found.records["change"].median()
    assert " By class: a " in found.verdict
    assert f"median TVD of {middle:.3f}" in found.verdict and "layer 1 (the row of the output" in found.verdict
    assert found.settings["rows"] == "position" and found.settings["class"] == "label given"
    assert found.table.query("`class` == 'all' and `max attention` == 'all'")["median change"].item() == middle
    assert [_bin(x) for x in (0, 0.25, 0.7, 0.75, 1.0)] == [
        "[0, 0.25)", "[0.25, 0.5)", "[0.5, 0.75)", "[0.75, 1]", "[0.75, 1]",
    ]  # fmt: skip
    assert len(found.plot().lines) >= 2 and "<svg" in found.to_html()


def test_peaked_texts_are_told_from_flat_ones():
    model = HandModel([30.0, 0, 0, 0, 0], [[5.0, 0], [0, 0], [0, 0], [0, 0], [0, 0]])
    texts = [[0, 1, 2, 3, 4]] * 20 + [[1, 2, 3, 4, 1]] * 20
    both = permutation(model, None, texts, permutations=20)
    assert "The more peaked attention is, the more the output depends on which tokens" in both.verdict
    assert "in [0, 0.25) (n = 20) 0.000, in [0.75, 1] (n = 20) 0.493." in both.verdict
    assert both.tests["permutation: largest weight and change"] < 1e-6
    few = permutation(model, None, texts[:19], permutations=5)
    assert "cannot be told from fewer than 20 texts" in few.verdict and few.tests == {}


def made_up(weights, changes):
    """Records of texts with these largest weights and changes."""
    columns = {"max_attention": weights, "change": changes, "bin": [_bin(w) for w in weights], "class": "all"}
    return pd.DataFrame(columns)


def test_a_verdict_on_made_up_records_of_known_answer():
    rng = np.random.default_rng(0)
    weights = rng.uniform(0, 1, 200)
    small, _ = judged(made_up(weights, 0.04 * weights), "layer 1", 5)
    assert "100% of the texts the change was below 0.05" in small
    assert "the more the output depends" in small and "Spearman 1.00" in small, "small, and still a clear relation"
    turned, _ = judged(made_up(weights, 1 - weights), "layer 1", 5)
    assert "the less the output depends" in turned and "Spearman -1.00" in turned
    chance, tests = judged(made_up(weights, rng.uniform(0, 1, 200)), "layer 1", 5)
    assert "could not be shown" in chance and tests["permutation: largest weight and change"] > 0.05
    same, tests = judged(made_up(weights, np.full(200, 0.3)), "layer 1", 5)
    assert "is the same for all texts" in same and tests == {}


def test_twenty_texts_are_enough_and_nineteen_are_not():
    weights = np.linspace(0, 1, 20)
    said, tests = judged(made_up(weights, weights), "layer 1", 5)
    assert "the more the output depends" in said and len(tests) == 1
    said, tests = judged(made_up(weights[:19], weights[:19]), "layer 1", 5)
    assert "cannot be told from fewer than 20 texts" in said and tests == {}


def test_what_only_the_classes_differ_by_is_no_relation():
    """One class has larger weights and larger changes; within each, the two have nothing to do with each other."""
    rng = np.random.default_rng(0)
    weights, changes = rng.uniform(0, 0.4, (2, 100)), rng.uniform(0, 0.4, (2, 100))
    rows = [made_up(weights[i] + i / 2, changes[i] + i / 2).assign(**{"class": str(i)}) for i in (0, 1)]
    both = pd.concat(rows, ignore_index=True)
    assert spearmanr(both["max_attention"], both["change"]).pvalue < 1e-9
    said, tests = judged(both, "layer 1", 5)
    assert "could not be shown" in said and "within 2 classes, n = 200" in said
    assert tests["permutation: largest weight and change"] > 0.05


def test_the_relation_is_spearmans_in_one_class_and_the_mean_rank_in_several():
    rng = np.random.default_rng(1)
    weights = rng.uniform(0, 1, 60).round(1)  # with ties
    rows = made_up(weights, weights + rng.uniform(0, 2, 60))
    known = spearmanr(rows["max_attention"], rows["change"])
    rho, p, groups = trend(rows)
    assert (rho, p, groups) == (pytest.approx(known.statistic), pytest.approx(known.pvalue), 1)
    # Classes of fewer than twenty texts are taken together.
    several = rows.assign(**{"class": [f"text {i}" for i in range(60)]})
    assert trend(several) == pytest.approx(trend(rows))
    rho, p, groups = trend(rows.assign(**{"class": np.arange(60) % 3}))
    parts = [rows[np.arange(60) % 3 == i].rank() for i in range(3)]
    x, y = (np.concatenate([part[c] - part[c].mean() for part in parts]) for c in ("max_attention", "change"))
    assert groups == 3 and rho == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert p == pytest.approx(2 * t.sf(abs(rho) * np.sqrt(56 / (1 - rho**2)), 56))


def test_a_bin_of_few_texts_is_not_compared():
    weights = np.r_[np.linspace(0, 0.2, 40), np.full(19, 0.9)]
    said, _ = judged(made_up(weights, weights), "layer 1", 5)
    assert "by largest weight" not in said
    said, _ = judged(made_up(np.r_[weights, 0.9], np.r_[weights, 0.9]), "layer 1", 5)
    assert "in [0, 0.25) (n = 40) 0.100, in [0.75, 1] (n = 20) 0.900." in said


@pytest.mark.parametrize("how", ["well", "error", "interrupt"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_it_was(how, training):
    model, tokenizer = classifier().train(training), standin.tokenizer()
    model.classifier.weight.requires_grad_(False)
    before, calls = state(model), []

    def progress(done, total):
        calls.append((done, total))
        if how != "well":
            raise (KeyboardInterrupt if how == "interrupt" else RuntimeError)("stop")

    def run():
        permutation(model, tokenizer, TEXTS, permutations=3, progress=progress)

    if how == "well":
        run()
    else:
        with pytest.raises(KeyboardInterrupt if how == "interrupt" else RuntimeError):
            run()
    assert state(model) == before and calls[0] == (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 7}, "layer=7, but the layers with attention are 0, 1"),
        ({"layers": -3}, "layer=-3, but there are 2 layers"),
        ({"layers": "top"}, "layers='top' is not known"),
        ({"layers": []}, "layers is an empty list: use a number"),
        ({"heads": 4}, "heads=4, but the model has 4 heads: use 0 to 3"),
        ({"heads": []}, "heads is an empty list"),
        ({"rows": "cls"}, "rows='cls' is not known. Use one of: 'position', 'all'"),
        ({"permutations": 0}, "permutations=0, but at least 1 is needed"),
        ({"batch_size": 0}, "batch_size=0, but at least 1 is needed"),
        ({"labels": [1]}, "1 labels for 2 texts: give one for each text"),
        ({"labels": [1, 2], "target_column": "y"}, "leave one of them out"),
        ({"position": 99}, "Text 0: position=99, but there are"),
        ({"texts": []}, "The dataset has 0 examples"),
        ({"texts": "one text alone"}, "texts is one str, and a list"),
        ({"texts": ["the key", ""]}, "Text 1: The text '' is empty"),
    ],
)
def test_errors_name_both_facts(options, message):
    given = {"texts": TEXTS, **options}
    with pytest.raises(AttnFlowError, match=message.replace("(", r"\(")):
        permutation(classifier(), standin.tokenizer(), given.pop("texts"), **given)


def test_models_without_probabilities_are_refused():
    with pytest.raises(SelectionError, match="BertModel has no head"):
        permutation(standin.model(2), standin.tokenizer(), TEXTS)
    with pytest.raises(SelectionError, match="one output, which is no probability"):
        permutation(classifier(num_labels=1), standin.tokenizer(), TEXTS)
    yes = classifier(num_labels=1, problem_type="multi_label_classification")
    assert permutation(yes, standin.tokenizer(), TEXTS, permutations=3).records["largest"].min() > 0


def test_labels_of_a_column_and_of_the_config():
    rows = [{"text": t, "label": i} for i, t in enumerate(TEXTS)]
    found = permutation(classifier(), standin.tokenizer(), rows, target_column="label", permutations=2, limit=2)
    assert list(found.records["class"]) == ["LABEL_0", "LABEL_1"]
    with pytest.raises(InputError, match="target_column='y', but the columns are text, label"):
        permutation(classifier(), standin.tokenizer(), rows, target_column="y")
