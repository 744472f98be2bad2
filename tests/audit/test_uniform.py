from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from attnflow.audit import uniform
from attnflow.audit.outcomes import AttentionRow, outcome, uniform_weights
from attnflow.audit.training import CHECKPOINT, build
from attnflow.audit.uniform import judged

from .tiny import RECIPE, bert, lstm, splits


@pytest.fixture(scope="module")
def data():
    return splits()


@pytest.fixture(scope="module")
def found(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uniform")
    return uniform(lstm, data, seeds=[1, 0], folder=folder, recipe=RECIPE), folder


def test_table_and_verdict(found, data):
    finding, folder = found
    assert finding.table["attention"].tolist() == ["trained", "uniform"]
    # The base's seed is no second run where it is named again.
    assert len(finding.records) == 2 * len(data.test) and finding.settings["seeds"] == [0, 1]
    assert "means of 2 seeds" in finding.verdict and f"{finding.table['F1'][0]:.3f}" in finding.verdict
    names = sorted(path.name for path in folder.iterdir() if (path / CHECKPOINT).is_file())
    assert names == ["seed-0", "seed-1", "uniform-0", "uniform-1"]
    half = finding.records["tvd"] / 2
    assert finding.records["tvd_scalar"].to_numpy() == pytest.approx(half.to_numpy(), abs=1e-6)
    finding.plot()
    assert "<svg" in finding.to_html()


def test_the_table_has_the_mean_of_seeds_that_were_run_alone(found, data):
    finding, folder = found
    alone = [uniform(lstm, data, seed=seed, seeds=(), folder=folder, recipe=RECIPE) for seed in (0, 1)]
    each = np.array([one.table["F1"].to_numpy() for one in alone])
    assert finding.table["F1"].to_numpy() == pytest.approx(each.mean(0))
    assert finding.table["F1 std"].to_numpy() == pytest.approx(each.std(0, ddof=1))
    assert finding.settings["F1 of the base"] == pytest.approx(each[0, 0])
    assert all("one run of each" in one.verdict for one in alone)


def test_it_resumes_to_the_same(found, data):
    finding, folder = found
    again = uniform(lstm, data, seeds=[1, 0], folder=folder, recipe=RECIPE)
    assert again.table.equals(finding.table)


def test_the_swap_is_the_models_own_uniform_attention(data):
    model, own = build(lstm, 0), build(lambda s: lstm(attention="uniform"), 0)
    own.load_state_dict(model.state_dict())
    swapped = outcome(model, data.test, 0, AttentionRow(), uniform_weights)
    expected = outcome(own, data.test, 0, AttentionRow())
    torch.testing.assert_close(swapped.probabilities, expected.probabilities)
    torch.testing.assert_close(swapped.attention[0], expected.attention[0])


def test_a_transformer_is_uniform_in_every_layer_while_it_trains(data):
    seen = []

    def watch(call, weights):
        changed = uniform_weights(call, weights)
        seen.append((call.layer, changed))
        return changed

    model = build(bert, 0).train()
    batch = next(data.train.batches(4, 0))
    from attnflow.capturing import live

    with live(model, watch):
        model(batch.ids, batch.mask, labels=batch.labels).loss.backward()
    assert [layer for layer, _ in seen] == [0, 1]
    expected = (batch.mask / batch.mask.sum(1, keepdim=True))[:, None, None].expand(seen[0][1].shape)
    for _, weights in seen:
        torch.testing.assert_close(weights, expected)
    # The scores have no part in the output, so that nothing is learned in them; the values are.
    attention = model.bert.encoder.layer[1].attention.self
    assert attention.value.weight.grad.abs().max() > 0
    assert attention.query.weight.grad is None or attention.query.weight.grad.abs().max() == 0


def test_a_transformer_runs(data):
    finding = uniform(bert, data, seeds=(), recipe=RECIPE, attention_row=AttentionRow((0, 1)))
    assert finding.records["jsd"].between(0, 0.6932).all()


def made_up(both, gained, lost, neither=0, seeds=1):
    """(table, records): how many test texts are right with both, only trained, only uniform, and no attention."""
    counts = np.array([both, gained, lost, neither])
    columns = {
        "instance": np.arange(counts.sum()),
        "label": np.arange(counts.sum()) % 2,
        "trained_right": np.repeat([True, True, False, False], counts),
        "uniform_right": np.repeat([True, False, True, False], counts),
    }
    records = pd.concat([pd.DataFrame({**columns, "seed": seed}) for seed in range(seeds)])
    return pd.DataFrame({"F1": [0.9, 0.8], "F1 std": [0.0, 0.0]}), records


# With n texts that only one of the two gets right, each side has chance ½: p is twice the binomial tail, over 2ⁿ.
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("gained", "lost", "p", "start"),
    [
        (6, 0, 2 / 2**6, "Trained attention is worth something"),
        (10, 2, 2 * (1 + 12 + 66) / 2**12, "Trained attention is worth something"),
        (5, 0, 2 / 2**5, "This task does not show that it needs attention"),
        (9, 2, 2 * (1 + 11 + 55) / 2**11, "This task does not show that it needs attention"),
        (0, 5, 2 / 2**5, "This task does not show that it needs attention"),
        (0, 0, 1.0, "This task does not show that it needs attention"),
        (0, 6, 2 / 2**6, "Uniform attention does better"),
        (2, 10, 2 * (1 + 12 + 66) / 2**12, "Uniform attention does better"),
    ],
)
def test_a_verdict_on_made_up_records_of_known_answer(gained, lost, p, start, seeds):
    # Seeds that answer all alike are no further texts: the p-value stays.
    said, found = judged(*made_up(60, gained, lost, neither=3, seeds=seeds))
    assert found == pytest.approx(p) and said.startswith(start)
    assert "F1 0.900 with trained and 0.800 with uniform attention" in said
    count = 63 + gained + lost
    assert f"right on {(60 + gained) / count:.3f} and {(60 + lost) / count:.3f} of {count} test texts" in said
    assert f"(p = {p:.2g} over texts{', by sign flips' if seeds == 1 else ' and seeds'})" in said
    if seeds == 1:
        assert "one run of each" in said and said.endswith("is not known: give more of them,  seeds=(1, 2, 3, 4).")
        assert ("in these two runs" in said) is (p < 0.05)
    else:
        assert f"means of 3 seeds, trained better in {3 * (gained > lost)}" in said and "two runs" not in said


def test_seeds_that_contradict_each_other_show_nothing():
    """What one seed alone would show is gone where another shows the opposite."""
    _, one = made_up(60, 10, 0)
    _, two = made_up(60, 10, 0)
    two[["trained_right", "uniform_right"]] = two[["uniform_right", "trained_right"]].to_numpy()
    table = pd.DataFrame({"F1": [0.9, 0.8]})
    assert judged(table, one)[1] < 0.01
    said, p = judged(table, pd.concat([one, two.assign(seed=1)]))
    assert p == pytest.approx(1.0) and said.startswith("This task does not show") and "trained better in 1" in said


def test_a_model_that_has_learnt_nothing_is_said_to_prove_nothing():
    table = pd.DataFrame({"F1": [0.0, 0.8]})
    records = pd.DataFrame({
        "seed": 0, "instance": range(4), "label": [0, 0, 0, 1], "trained_right": [True, True, False, False],
        "uniform_right": [True] * 4,
    })  # fmt: skip
    said, _ = judged(table, records)
    assert said.startswith("The model has not learnt the task: it is right on 0.500")
    assert "most frequent class would be on 0.750" in said


def test_what_a_constant_answer_reaches_is_not_learnt_either_however_clear_the_test_is():
    said, p = judged(*made_up(0, 10, 0, neither=10))
    assert p < 0.05 and said.startswith("The model has not learnt the task: it is right on 0.500")
    said, _ = judged(*made_up(0, 11, 0, neither=9))
    assert said.startswith("Trained attention is worth something in these two runs")
