from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, capture
from attnflow.audit.outcomes import AttentionRow, f1, outcome, quality, rank_quality, uniform_weights, watched
from attnflow.audit.training import CHECKPOINT, Recipe, build, fit, trained
from attnflow.capturing import live

from .tiny import RECIPE, bert, lstm, splits


@pytest.fixture(scope="module")
def data():
    return splits()


def same(a, b):
    return all(torch.equal(x, b.state_dict()[k]) for k, x in a.state_dict().items())


def test_a_word_that_decides_is_learned(data):
    found = trained(lstm, data, recipe=RECIPE)
    assert found.score == 1.0 and not found.model.training
    assert (
        f1(outcome(found.model, data.test, 0, AttentionRow()).probabilities.argmax(-1).numpy(), data.test.labels, 2)
        > 0.9
    )


@pytest.mark.parametrize("make", [lstm, bert])
def test_a_run_that_was_stopped_goes_on_to_the_same_end(data, make, tmp_path):
    recipe = Recipe(epochs=3, patience=3, batch=8, rate=0.01)
    whole = fit(build(make, 5), data, recipe, seed=5)

    def stop(done, total):
        if done > total * 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(build(make, 5), data, recipe, seed=5, folder=tmp_path, progress=stop)
    assert (tmp_path / CHECKPOINT).is_file()
    resumed = fit(build(make, 5), data, recipe, seed=5, folder=tmp_path)
    assert resumed.history == whole.history and same(resumed.model, whole.model)
    again = fit(build(make, 5), data, recipe, seed=5, folder=tmp_path, progress=stop)
    assert same(again.model, whole.model) and again.epoch == whole.epoch


def test_the_best_epoch_is_what_is_left_and_patience_ends_a_run(data):
    scores = iter([0.1, 0.5, 0.3, 0.2, 0.9])
    states = []

    def score(model, split):
        states.append({k: v.clone() for k, v in model.state_dict().items()})
        return next(scores)

    found = fit(lstm(), data, Recipe(epochs=5, patience=2, batch=32), score=score)
    assert (found.epoch, found.score, len(found.history)) == (2, 0.5, 4)
    assert all(torch.equal(v, states[1][k]) for k, v in found.model.state_dict().items())


def test_test_texts_are_not_looked_at_while_training(data):
    from dataclasses import replace

    blind = replace(data, test=None)
    fit(lstm(), blind, Recipe(epochs=1))


def test_the_callers_random_numbers_stay_as_they_were(data):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trained(bert, data, recipe=Recipe(epochs=1))
    assert torch.equal(torch.rand(1), expected)


def test_a_factory_that_does_not_look_at_its_seed_still_has_one():
    assert same(build(lstm, 1), build(lstm, 1)) and not same(build(lstm, 1), build(lstm, 2))


def test_another_run_in_the_folder_is_refused(data, tmp_path):
    fit(lstm(), data, Recipe(epochs=1), folder=tmp_path, name="first")
    with pytest.raises(AttnFlowError, match=r"of another run \('first'\) than 'second'.*another folder="):
        fit(lstm(), data, Recipe(epochs=1), folder=tmp_path, name="second")
    (tmp_path / CHECKPOINT).write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(AttnFlowError, match="not a whole checkpoint.*delete it"):
        fit(lstm(), data, Recipe(epochs=1), folder=tmp_path)


def test_a_recipe_checks_its_numbers():
    with pytest.raises(AttnFlowError, match="epochs=0, but at least 1"):
        Recipe(epochs=0)
    with pytest.raises(AttnFlowError, match="rate=0, and a learning rate is above 0"):
        Recipe(rate=0)


def test_scores_by_their_definitions():
    rng = np.random.default_rng(0)
    p = torch.tensor(rng.integers(0, 5, 60) / 4)
    labels = rng.integers(0, 2, 60)
    pairs = [(a > b) + 0.5 * (a == b) for a in p[labels == 1].tolist() for b in p[labels == 0].tolist()]
    assert rank_quality(torch.stack([1 - p, p], 1), labels) == pytest.approx(np.mean(pairs))
    predicted = (p > 0.5).long().numpy()
    precision = labels[predicted == 1].mean()
    recall = predicted[labels == 1].mean()
    assert f1(predicted, labels, 2) == pytest.approx(2 * precision * recall / (precision + recall))
    three, truth = np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1])
    assert f1(three, truth, 3) == pytest.approx(np.mean([2 / 3, 2 / 4, 0]))


def test_balanced_classes_change_the_loss():
    from attnflow.audit.splits import Splits
    from attnflow.audit.training import cross_entropy

    from .tiny import TOKENIZER

    part = (["good w1", "good w2", "good w3", "bad w1"], [1, 1, 1, 0])
    uneven = Splits.of(TOKENIZER, part, part, part)
    model, batch = lstm(), next(uneven.train.batches(4, 0))
    logits = model(batch.ids, batch.mask).logits
    expected = torch.nn.functional.cross_entropy(logits, batch.labels, torch.tensor([2, 2 / 3]))
    torch.testing.assert_close(cross_entropy(uneven, True)(model, batch), expected)


def test_several_classes_are_judged_by_accuracy():
    p = torch.eye(3)
    assert rank_quality(p, np.array([0, 1, 1])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("make", [lstm, bert])
def test_the_attention_seen_while_training_is_the_attention_captured(data, make):
    model = build(make, 0)
    model.eval()
    batch = next(data.test.batches(4, 0))
    with watched(model, AttentionRow()) as watch:
        model.train()
        model(batch.ids, batch.mask)
        in_training = watch.rows(batch.mask)
        model.eval()
        model(batch.ids, batch.mask)
        rows = watch.rows(batch.mask)
    expected = capture(model, None, {"input_ids": batch.ids, "attention_mask": batch.mask})
    for row, seen, one in zip(rows, in_training, expected, strict=True):
        np.testing.assert_allclose(row[row > 0].detach(), one.weights[-1, 0][one.weights[-1, 0] > 0], atol=1e-5)
        # Before dropout, so they still sum to one.
        assert seen.sum().item() == pytest.approx(1, abs=1e-5)
    assert rows.requires_grad


def test_look_takes_layers_and_positions(data):
    model = build(bert, 0).eval()
    batch = next(data.test.batches(4, 0))
    att = capture(model, None, {"input_ids": batch.ids, "attention_mask": batch.mask})[0]
    n = int(batch.mask[0].sum())
    for attention_row, expected in (
        (AttentionRow((0, 1)), att.weights[:, 0].mean(0)),
        (AttentionRow((0,), "last"), att.weights[0, n - 1]),
        (AttentionRow((0,), 2), att.weights[0, 2]),
    ):
        with watched(model, attention_row) as watch, torch.no_grad():
            model(batch.ids, batch.mask)
            np.testing.assert_allclose(watch.rows(batch.mask)[0, :n], expected, atol=1e-5)


def test_bad_looks_are_refused(data):
    with pytest.raises(AttnFlowError, match="layers is empty"):
        AttentionRow(())
    with pytest.raises(AttnFlowError, match="position='mask' is not known"):
        AttentionRow(position="mask")
    model = build(bert, 0)
    with pytest.raises(AttnFlowError, match="position=99, but a text has"):
        outcome(model, data.test, 0, AttentionRow(position=99))
    with pytest.raises(AttnFlowError, match="7"):
        outcome(model, data.test, 0, AttentionRow((7,)))
    with (
        pytest.raises(AttnFlowError, match="no attention module that can be watched"),
        live(torch.nn.Linear(1, 1), print),
    ):
        pass
    with pytest.raises(AttnFlowError, match="no attention was seen: 0 calls"), watched(model, AttentionRow()) as watch:
        watch.rows(torch.ones(1, 3))


def test_live_leaves_no_trace(data):
    model = build(bert, 0).train()
    before = (model.config._attn_implementation, model.training, len(model._forward_hooks))
    with pytest.raises(RuntimeError, match="stop"), live(model, uniform_weights):
        raise RuntimeError("stop")
    assert (model.config._attn_implementation, model.training, len(model._forward_hooks)) == before


def test_quality_is_computed_under_the_change_that_is_on(data):
    model = trained(lstm, data, recipe=RECIPE).model
    plain = quality(model, data.valid, 0)
    with live(model, lambda call, weights: torch.zeros_like(weights)):
        assert quality(model, data.valid, 0) == 0.5 < plain


def test_any_changed_byte_of_a_checkpoint_is_seen(data, tmp_path):
    fit(lstm(), data, Recipe(epochs=1), folder=tmp_path)
    path = tmp_path / CHECKPOINT
    whole = path.read_bytes()
    for at in [*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1, len(whole) - 40]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(AttnFlowError, match="not a whole checkpoint: its digest is missing or wrong"):
            fit(lstm(), data, Recipe(epochs=1), folder=tmp_path)
    for cut in (0, 10, 47, 48, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(AttnFlowError, match="not a whole checkpoint"):
            fit(lstm(), data, Recipe(epochs=1), folder=tmp_path)


def test_a_checkpoint_made_to_run_code_runs_none(data, tmp_path):
    import hashlib
    import io

    from attnflow.audit.training import _MARK

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    for state in ({"identity": Evil()}, [1, 2]):
        file = io.BytesIO()
        torch.save(state, file)
        whole = file.getvalue()
        (tmp_path / CHECKPOINT).write_bytes(whole + _MARK + hashlib.sha256(whole).digest())
        with pytest.raises(AttnFlowError, match=r"not a whole checkpoint \(UnpicklingError\)|holds a list, not a"):
            fit(lstm(), data, Recipe(epochs=1), folder=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_folder_that_cannot_be_made_is_named(data, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AttnFlowError, match="Cannot write .*file"):
        fit(lstm(), data, Recipe(epochs=1), folder=tmp_path / "file" / "below")
