"""Measures against a model on which they are known, against loops of one text at a time, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnflow import blankout, demo, faithfulness, flow, raw, rollout
from attnflow.errors import AttnFlowError, InputError, SelectionError, ShapeError
from attnflow.faithfulness.case import Case, orders, steps_of
from attnflow.faithfulness.erasure import area, deletion_curve, insertion_curve
from attnflow.faithfulness.randomise import Randomised, groups_of
from attnflow.faithfulness.registry import MEASURES
from attnflow.faithfulness.soft import probabilities
from attnflow.faithfulness.variants import Variants, group
from attnflow.inputs.example import one_example
from attnflow.significance import duels, holm, paired
from tests.faithfulness.bag import WORDS, bag, tokenizer
from tests.tiny_models import state, tiny

TEN = [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
TEXT = " ".join(WORDS[:10])


def padded(scores):
    """Scores of the words with the special tokens around them."""
    return [0.0, *scores, 0.0]


def value(scores, measure, **options):
    frame = faithfulness.measure(bag(TEN), tokenizer(), TEXT, padded(scores), measures=measure, **options)
    return frame["value"].to_numpy()


@pytest.mark.parametrize(
    ("measure", "known"),
    [
        # The best 1, 5 and 10 % of ten words are one word, 20 % are two, 50 % are five: 10, 10, 10, 19, 40.
        ("comprehensiveness", 17.8),
        ("sufficiency", 55 - 17.8),
        # The value after each step: 55 45 36 28 21 15 10 6 3 1 0, by trapezoids of width 0.1.
        ("deletion", 19.25),
        ("insertion", 35.75),
        ("leave_one_out", 1.0),
        ("infidelity", 0.0),
    ],
)
def test_a_linear_model_has_known_measures(measure, known):
    np.testing.assert_allclose(value(TEN, measure), known, atol=1e-9)
    if MEASURES[measure].ranks:
        np.testing.assert_allclose(value(np.array(TEN) * 0.01 + 3, measure), known, atol=1e-9)


def test_the_reversed_ranking_is_as_bad_as_can_be():
    wrong = TEN[::-1]
    # The worst 1, 1, 1, 2 and 5 words: 1, 1, 1, 3, 15.
    np.testing.assert_allclose(value(wrong, "comprehensiveness"), 4.2)
    np.testing.assert_allclose(value(wrong, "sufficiency"), 55 - 4.2)
    np.testing.assert_allclose(value(wrong, "leave_one_out"), -1)
    assert (value(wrong, "infidelity") > 1).all()


def test_a_scale_does_not_change_infidelity_and_noise_does():
    assert value(np.array(TEN) * 7, "infidelity") == pytest.approx(0, abs=1e-9)
    noisy = np.array(TEN) + np.random.default_rng(0).normal(0, 2, 10)
    assert (value(noisy, "infidelity") > 0.1).all()


def test_soft_measures_keep_the_same_share_and_prefer_the_truth():
    for weights in ([0.0, 0.0, 1.0], [0.2, 0.9, 0.4], [1.0, 1.0, 1.0], [0.0, 1e-9, 1.0]):
        for share in (0.1, 0.5, 0.9):
            assert probabilities(np.array(weights), share).mean() == pytest.approx(share, abs=1e-6)
    assert (value(TEN, "soft_comprehensiveness") > value(TEN[::-1], "soft_comprehensiveness") + 5).all()
    assert (value(TEN, "soft_sufficiency") < value(TEN[::-1], "soft_sufficiency") - 5).all()
    # A constant score keeps each word with probability π: half of everything is lost on average.
    assert value([1.0] * 10, "soft_sufficiency") == pytest.approx(27.5, abs=6)


def one_at_a_time(model, tok, text, scores, blank, going):
    """A curve by one forward pass per point, on texts that are blanked by hand."""
    ids = tok(text, return_tensors="pt")["input_ids"][0]
    order = [1 + i for i in np.argsort(-np.array(scores)[1:-1])]
    target = int(model(ids[None]).logits[0].argmax())
    n, out = len(order), []
    for step in range(11):
        near = int(np.ceil(min(step, 10 - step) / 10 * n - 1e-9))
        k = near if step <= 5 else n - near
        gone = order[:k] if going else order[k:]
        changed = ids.clone()
        if blank == "delete":
            changed = torch.tensor([int(t) for i, t in enumerate(ids) if i not in gone])
        else:
            changed[gone] = tok.mask_token_id
        with torch.no_grad():
            out.append(float(model(changed[None]).logits.softmax(-1)[0, target]))
    return np.array(out)


@pytest.mark.parametrize("kind", ["deletion", "insertion"])
@pytest.mark.parametrize("blank", ["mask", "delete"])
def test_curves_equal_a_loop_of_one_text_at_a_time(kind, blank):
    model, tok = tiny("bert"), tokenizer()
    text = " ".join(WORDS[:12])
    scores = np.random.default_rng(1).random(14)
    x, y = faithfulness.curve(model, tok, text, scores, kind=kind, blank=blank)
    naive = one_at_a_time(model, tok, text, scores, blank, kind == "deletion")
    np.testing.assert_allclose(x, np.array([0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]) / 12)
    np.testing.assert_allclose(y, naive, atol=1e-6)
    found = faithfulness.measure(model, tok, text, scores, measures=kind, blank=blank)["value"].iloc[0]
    assert found == pytest.approx(sum((a + b) / 2 * (q - p) for a, b, p, q in zip(y, y[1:], x, x[1:], strict=False)))


def variants(model, tok, text, blank="mask", **options):
    example = one_example(model, tok, text)
    return Variants(example, example.goal(None, None, None)[0], group(example, "token"), **options)


def test_the_same_text_is_run_once_whoever_asks():
    model, tok = tiny("bert"), tokenizer()
    text = " ".join(WORDS[:10])
    calls = []
    handle = model.register_forward_pre_hook(lambda module, args, kwargs: calls.append(len(kwargs["input_ids"])),
                                             with_kwargs=True)  # fmt: skip
    try:
        many = {f"m{i}": np.arange(12.0) * (i + 1) for i in range(10)}
        faithfulness.measure(model, tok, text, many)
        ten, calls[:] = sum(calls), []
        faithfulness.measure(model, tok, text, many["m0"])
        assert ten == sum(calls), "ten methods that rank alike cost what one costs"
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["bert", "bert-mlm", "gpt2", "llama"])
@pytest.mark.parametrize("blank", ["pad", "delete", "mean-embedding"])
def test_leaving_one_out_is_blank_out(name, blank):
    model, tok = tiny(name), tokenizer()
    text = "the key to [MASK] is great" if name == "bert-mlm" else [7, 8, 9, 12, 10, 11]
    held = variants(model, tok, text)
    from attnflow.scoring.blankout import settle_blank

    found = held.one_out(settle_blank(held.example, blank))
    alone = blankout(model, tok, text, blank=blank, signed=True).scores[0]
    np.testing.assert_allclose(found, alone[held.units], atol=1e-6)


def test_a_text_of_which_nothing_is_left_is_a_text_of_blanks():
    held = variants(tiny("gpt2"), None, [7, 8, 9, 12])
    assert 3 not in held.units, "the position at which the model predicts stays"
    gone = held.values("delete", np.zeros((1, 3), bool))
    assert np.isfinite(gone).all()


def test_batches_do_not_change_a_value():
    model, tok, text = tiny("bert"), tokenizer(), " ".join(WORDS[:9])
    masks = np.random.default_rng(0).random((40, 9)) < 0.5
    for blank in ("delete", tok.mask_token_id):
        one, many = variants(model, tok, text, batch_size=1), variants(model, tok, text, batch_size=40)
        np.testing.assert_allclose(one.values(blank, masks), many.values(blank, masks), atol=1e-6)
        assert many.passes < one.passes and many.ran == one.ran


def test_words_are_blanked_whole():
    example = one_example(tiny("bert"), tokenizer(), "the key to the cabinets")
    held = Variants(example, example.goal(None, None, None)[0], group(example, "word"))
    assert len(held.units) == 5 and held._members(np.packbits([1, 1, 1, 1, 0]).tobytes()) == (5, 6)


def test_ties_are_broken_at_random_in_pairs_and_counted():
    found = orders(np.zeros(6), 10, 3)
    assert found.shape == (10, 6) and len({tuple(row) for row in found}) > 5
    assert all((found[i] == found[i + 1][::-1]).all() for i in range(0, 10, 2)), "each pair is the reverse"
    some = orders(np.array([0.5, 0.9, 0.5, 0.1, np.nan]), 20)
    assert set(some[:, 0]) == {1} and set(some[:, 1]) == {0, 2} and set(some[:, 3]) == {3} and set(some[:, 4]) == {4}
    assert orders(np.array([1.0, 2.0])).shape == (1, 2), "nothing to draw"
    frame = faithfulness.measure(bag(TEN), tokenizer(), TEXT, padded([1.0] * 10), measures="deletion")
    assert frame["ties"].iloc[0] == 1.0


def test_a_constant_score_is_a_random_ranking():
    """By a loop over permutations that knows nothing of draws."""
    rng = np.random.default_rng(5)
    chance = []
    for _ in range(400):
        cut = np.concatenate([[0], np.cumsum(rng.permutation(TEN))])
        chance.append([np.mean([cut[k] for k in (1, 1, 1, 2, 5)]), area(np.arange(11) / 10, 55 - cut)])
    for column, measure in enumerate(("comprehensiveness", "deletion")):
        mine = np.array([value([2.0] * 10, measure, seed=s)[0] for s in range(30)])
        means = np.array(chance)[:, column]
        assert mine.mean() == pytest.approx(
            means.mean(), abs=4 * means.std() / np.sqrt(400) + 4 * mine.std() / np.sqrt(30)
        )


def truth_case(scores, true):
    return Case(np.array(scores), None, pointed=np.array(scores, float), truth=np.array(true, bool))


def test_truth_measures_by_hand():
    case = truth_case([0.1, 0.4, 0.2, 0.3], [0, 0, 0, 1])
    found = [MEASURES[name].function(case) for name in ("pointing", "reciprocal_rank", "relevance_mass")]
    assert found == pytest.approx([0.0, 0.5, 0.3])
    tied = truth_case([0.4, 0.4, 0.1, 0.4], [1, 0, 0, 0])
    assert MEASURES["pointing"].function(tied) == pytest.approx(1 / 3)
    assert MEASURES["reciprocal_rank"].function(replace(tied, draws=600)) == pytest.approx(
        (1 + 1 / 2 + 1 / 3) / 3, abs=0.03
    )
    assert MEASURES["relevance_mass"].function(truth_case([0, 0, 0], [1, 0, 0])) == pytest.approx(1 / 3)
    assert MEASURES["pointing"].function(truth_case([np.nan, 0.2], [1, 0])) == 0


def test_significance_by_hand():
    assert holm(np.array([0.04, np.nan, 0.01])).tolist()[0::2] == pytest.approx([0.04, 0.02])
    assert holm(np.array([])).size == 0
    rng = np.random.default_rng(0)
    a = rng.random(60)
    assert (
        paired(a + 0.2, a) < 1e-6 and paired(a, rng.random(60)) > 0.01 and np.isnan(paired(np.array([]), np.array([])))
    )
    won = duels(np.array([[1.0, 2.0, np.nan, 5.0]]), np.array([True, True, True, False]))
    assert won[0, :2].tolist() == [0.0, 1.0] and np.isnan(won[0, 2]) and won[0, 3] == 1.0


def test_weights_become_random_from_the_top_on_a_copy():
    model = tiny("bert")
    before = state(model)
    copies = Randomised(model, stages=10)
    assert list(groups_of(model)) == ["embeddings", "layer 0", "layer 1", "head"] and copies.last == "embeddings"
    own = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(2):
        changed = []
        for stage, copy in copies:
            moved = {n for n, p in copy.named_parameters() if not torch.equal(p, own[n])}
            changed.append(
                (stage, len(moved), any("layer.0" in n for n in moved), any("embeddings" in n for n in moved))
            )
        assert [c[0] for c in changed] == ["head", "layer 1", "layer 0", "embeddings"]
        assert [c[2] for c in changed] == [False, False, True, True] and [c[3] for c in changed] == [False] * 3 + [True]
        assert changed[0][1] < changed[1][1] < changed[2][1] < changed[3][1]
    assert state(model) == before
    wide = next(p for n, p in copy.named_parameters() if "word_embeddings" in n)
    assert float(wide.detach().std()) == pytest.approx(
        float(own["bert.embeddings.word_embeddings.weight"].std()), rel=0.1
    )


def test_relevances_of_every_kind_are_measured_and_the_model_is_as_it_was():
    model, tok = demo.model(), demo.tokenizer()
    before = state(model)
    found = {f.__name__: f(model, tok, demo.SENTENCE, position="cls") for f in (raw, rollout, flow)}
    found["blankout"] = blankout(model, tok, demo.SENTENCE)
    frame = faithfulness.measure(model, tok, demo.SENTENCE, found)
    assert len(frame) == 4 * 5 * 2 and frame["value"].notna().all() and set(frame["kind"]) == {"auto", "delete"}
    assert state(model) == before


def test_messages():
    model, tok = tiny("bert"), tokenizer()
    with pytest.raises(ShapeError, match=r"scores has \[3\] scores, and the text has 12 tokens: give one for each"):
        faithfulness.measure(model, tok, TEXT, [1, 2, 3])
    with pytest.raises(ShapeError, match=r"rollout has scores for all output positions, and one is judged"):
        faithfulness.measure(model, tok, TEXT, rollout(model, tok, TEXT))
    with pytest.raises(SelectionError, match="measures: 'aopc' is not known. Use some of: comprehensiveness"):
        faithfulness.measure(model, tok, TEXT, padded(TEN), measures="aopc")
    with pytest.raises(SelectionError, match="'pointing' needs the inputs that must matter, and scores alone"):
        faithfulness.measure(model, tok, TEXT, padded(TEN), measures="pointing")
    with pytest.raises(SelectionError, match="kind='both' is not known. Use 'deletion' or 'insertion'"):
        faithfulness.curve(model, tok, TEXT, padded(TEN), kind="both")
    with pytest.raises(InputError, match=r"1 of its 3 positions \(\[CLS\] film \[SEP\]\) can be blanked"):
        faithfulness.measure(model, tok, "film", [0, 1, 0])
    with pytest.raises(InputError, match="takes an image or has a decoder beside its encoder"):
        faithfulness.measure(tiny("t5"), tok, "the key", [0] * 5)
    with pytest.raises(AttnFlowError, match="two choices|blank='star' is not known"):
        faithfulness.measure(model, tok, TEXT, padded(TEN), blank="star")


def test_deletion_curve_of_draws_is_their_mean():
    held = variants(tiny("bert"), tokenizer(), TEXT)
    case = Case(np.zeros(10), held, tokenizer().mask_token_id, draws=10)
    _, together = deletion_curve(case)
    apart = [deletion_curve(replace(case, scores=-np.argsort(order).astype(float)))[1] for order in case.orders]
    np.testing.assert_allclose(together, np.mean(apart, 0), atol=1e-9)


@pytest.mark.parametrize("units", [2, 3, 9, 10, 23])
def test_steps_of_a_curve_are_the_same_from_either_end(units):
    """So a constant score, whose draws are reversed in pairs, needs no text for insertion that deletion has not run."""
    counts = steps_of(10, units)
    assert counts[0] == 0 and counts[-1] == units and (np.diff(counts) > 0).all()
    assert set(units - counts) - set(counts) <= {units // 2}  # half of an odd number is rounded up from both ends
    held = variants(tiny("bert"), tokenizer(), " ".join(WORDS[:10]))
    case = Case(np.zeros(10), held, tokenizer().mask_token_id, draws=10)
    deletion_curve(case)
    ran = held.ran
    insertion_curve(case)
    assert held.ran == ran
