"""Every kind of data gives the same rows, and every wrong column is named."""

from __future__ import annotations

import gzip
import json

import pytest

from attnflow.errors import InputError
from attnflow.inputs.datasets import Row, open_data

TEXTS = ["the key to the cabinets", "a dull film", "it was great"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache of ``datasets`` in a folder of the test's own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def written(folder, kind):
    path = folder / f"data.{kind}"
    rows = [{"id": i, "text": t, "label": i % 2} for i, t in enumerate(TEXTS)]
    if kind == "txt":
        path.write_text("\n\n".join(TEXTS) + "\n")
    elif kind in ("csv", "tsv"):
        sign = "," if kind == "csv" else "\t"
        lines = [sign.join(("id", "text", "label"))] + [sign.join(map(str, r.values())) for r in rows]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "csv.gz":
        with gzip.open(path, "wt") as file:
            file.write("id,text,label\n" + "".join(f"{r['id']},{r['text']},{r['label']}\n" for r in rows))
    elif kind in ("json", "jsonl"):
        path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    else:
        import pandas as pd

        pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "json", "jsonl", "parquet", "txt"])
def test_files(tmp_path, kind, streaming):
    data = open_data(str(written(tmp_path, kind)), streaming=streaming)
    assert [row.text for row in data] == TEXTS
    assert [row.text for row in data] == TEXTS, "data are gone through again when a run resumes"
    if kind != "txt":
        data = open_data(written(tmp_path, kind), target_column="label", streaming=streaming, limit=2)
        assert [(row.number, row.text, row.target) for row in data] == [(0, TEXTS[0], 0), (1, TEXTS[1], 1)]


def test_lists_and_datasets():
    from datasets import Dataset

    assert list(open_data(TEXTS)) == [Row(i, t) for i, t in enumerate(TEXTS)]
    assert open_data(TEXTS, limit=2).count == 2 and open_data(TEXTS, limit=9).count == 3
    rows = [{"sentence": t, "label": 1} for t in TEXTS]
    assert [r.text for r in open_data(rows)] == TEXTS
    table = Dataset.from_list(rows)
    assert [r.text for r in open_data(table)] == TEXTS
    stream = open_data(table.to_iterable_dataset(), target_column="label")
    assert stream.count is None and [(r.text, r.target) for r in stream] == [(t, 1) for t in TEXTS]
    assert [r.text for r in open_data([[5, 6], [7]])] == [[5, 6], [7]]


def test_a_digest_marks_text_and_target():
    assert Row(0, "a").digest == Row(5, "a").digest
    assert len({Row(0, "a").digest, Row(0, "b").digest, Row(0, "a", 1).digest}) == 3


def test_errors_name_the_columns(tmp_path):
    from datasets import Dataset, DatasetDict

    rows = [{"premise": "a", "label": 0}]
    with pytest.raises(InputError, match="No column is called text or sentence: the columns are premise, label"):
        open_data(rows)
    with pytest.raises(InputError, match="text_column='x', but the columns are premise, label. Name one"):
        open_data(rows, text_column="x")
    with pytest.raises(InputError, match="target_column='x', but the columns are premise, label"):
        open_data(rows, text_column="premise", target_column="x")
    with pytest.raises(InputError, match="text_column='x', but the examples have no columns"):
        open_data(TEXTS, text_column="x")
    with pytest.raises(InputError, match="dict of train, test: choose one"):
        open_data(DatasetDict({"train": Dataset.from_list(rows), "test": Dataset.from_list(rows)}))
    with pytest.raises(InputError, match="The dataset has 0 examples"):
        open_data([])
    with pytest.raises(InputError, match="limit=0, but at least 1"):
        open_data(TEXTS, limit=0)
    with pytest.raises(InputError, match="dataset is a int"):
        open_data(5)
    with pytest.raises(InputError, match=r"nothing.csv is not a file"):
        open_data(str(tmp_path / "nothing.csv"))
    (tmp_path / "data.xml").write_text("<a/>")
    with pytest.raises(InputError, match=r"ends in '.xml'. Use one of: .csv, .tsv, .json"):
        open_data(tmp_path / "data.xml")
    with pytest.raises(InputError, match="The dataset 'nobody/nothing' could not be loaded"):
        open_data("nobody/nothing")
