from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from attnflow import AttnFlowError
from attnflow.audit import seeds
from attnflow.audit.seeds import by_bin, judged

from .tiny import RECIPE, bert, lstm, splits


@pytest.fixture(scope="module")
def data():
    return splits()


def test_the_same_seed_is_no_distance_away(data):
    finding = seeds(lstm, data, seeds=[0, 1], recipe=RECIPE)
    own = finding.records[finding.records["seed"] == 0]
    assert own["jsd"].max() < 1e-6 and own["tvd"].max() == 0
    assert finding.records[finding.records["seed"] == 1]["jsd"].mean() > 1e-4
    assert finding.table["seed"].tolist() == ["0 (base)", "0", "1"]
    assert "the attention of 2 other seeds is " in finding.verdict
    bins = by_bin(finding.records)
    assert bins["n"].sum() == len(finding.records) == 2 * len(data.test)
    finding.plot()


def test_runs_are_shared_in_a_folder(data, tmp_path):
    first = seeds(bert, data, seeds=[1], folder=tmp_path, recipe=RECIPE)

    def never(done, total):
        raise AssertionError("trained again")

    again = seeds(bert, data, seeds=[1], folder=tmp_path, recipe=RECIPE, progress=never)
    np.testing.assert_array_equal(first.records["jsd"], again.records["jsd"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["seed-0", "seed-1"]


def test_no_seeds_are_refused(data):
    with pytest.raises(AttnFlowError, match="seeds is empty"):
        seeds(lstm, data, seeds=[])


@pytest.mark.parametrize(
    ("apart", "start"),
    [
        ((0.29, 0.1, 0.2), "Other seeds attend more like the base than uniform weights do: the attention of 3 other"),
        ((0.29, 0.3, 0.01), "Only 2 of 3 other seeds attend more like the base than uniform weights do: the attention"),
        ((0.3, 0.31, 0.5), "Another seed moves attention as far as making it uniform would: the attention of 3 other"),
    ],
)
def test_a_verdict_on_made_up_records_of_known_answer(apart, start):
    # The mean of a seed decides: single texts lie on either side of the uniform weights.
    records = pd.DataFrame({
        "seed": [1, 1, 2, 2, 5, 5], "jsd": np.repeat(apart, 2) + [-0.01, 0.01] * 3,
        "uniform": [0.25, 0.35] * 3, "tvd": [0.0, 0.06] * 3,
    })  # fmt: skip
    said = judged(records)
    assert said.startswith(start)
    spread = f"is {min(apart):.3f} to {max(apart):.3f} nats (JSD, at most 0.693; mean {np.mean(apart):.3f})"
    assert f"{spread} from the base's, and uniform weights are 0.300" in said
    assert said.endswith("the predictions differ by 0.030 (TVD).")
