"""Several experiments by one call from Python, and the registry that they come from."""

from __future__ import annotations

import pytest

from attnflow import audit
from attnflow.audit import Finding, experiments, registry
from attnflow.errors import InputError, SelectionError

ORDER = ["correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter"]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "a good film,pos\na bad film,neg\nthe good one here,pos\nsome bad one,neg\n" * 5)
    return path


def test_the_registry_names_what_the_package_exports():
    assert list(experiments()) == ORDER
    for name, one in experiments().items():
        assert one.function is getattr(audit, name) and name in audit.__all__ and one.question.endswith("?")


def test_a_run_shares_the_base_and_reports_each_finding_as_it_stands(data, tmp_path):
    seen = []
    found = audit.run(
        ["imposter", "permutation", "seeds"], "lstm", data, label_column="label", limit=3, min_count=1, epochs=1,
        work=tmp_path / "work", report=seen.append, permutations=4, seeds=[1], penalties=[0.001],
    )  # fmt: skip
    assert list(found) == ["permutation", "seeds", "imposter"] and list(found.values()) == seen
    assert found["permutation"].settings["permutations"] == 4 and len(found["permutation"].records) == 3
    # The curve of the imposters stands with the other seeds, which were run before it.
    assert found["imposter"].table["model"].tolist() == ["base", "imposter", "other seeds"]
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"seed-0", "seed-1", "imposter-0"}
    assert [p.name for p in audit.write_report(list(found.values()), tmp_path / "r.html", "Audit", {})] == ["r.html"]


def test_what_is_wrong_is_said_before_anything_runs(data):
    with pytest.raises(SelectionError, match=r"'magic' is no experiment. Use one of: correlation.*imposter, all"):
        audit.run(["uniform", "magic"], "lstm", data)
    with pytest.raises(SelectionError, match="epochs=0"):
        audit.run("uniform", "lstm", data, epochs=0)
    with pytest.raises(SelectionError, match="rate=0, and a learning rate is above 0"):
        audit.run("uniform", "lstm", data, rate=0)
    with pytest.raises(SelectionError, match="'permutation' is an option of no experiment. Use some of: epsilon"):
        audit.run("permutation", "lstm", data, permutation=1000)
    with pytest.raises(InputError, match="Training needs labels"):
        audit.run("uniform", "lstm", data)


def test_an_experiment_of_ones_own_is_run_and_reported_like_the_others(data, tmp_path, monkeypatch):
    import pandas as pd

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @audit.experiment("3", "How long are the texts?", trains=False, options=registry.takes("least"))
    def length(model, tokenizer, texts, *, labels, max_length, progress, least=0):
        counts = [len(text.split()) for text in texts]
        table = pd.DataFrame({"mean": [sum(counts) / len(counts)]})
        return Finding("length", table, table, f"At least {least}: {min(counts) >= least}.", ())

    assert list(experiments())[:4] == [*ORDER[:3], "length"]
    found = audit.run("length", "lstm", data, label_column="label", limit=4, epochs=1, work=tmp_path / "w", least=3)
    assert found["length"].verdict == "At least 3: True."
    page = audit.write_report([found["length"]], tmp_path / "r.md", "Mine", {})[0].read_text()
    assert "**How long are the texts?** At least 3" in page
