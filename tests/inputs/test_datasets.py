"""Every kind of data gives the same rows, and every wrong column is named."""

from __future__ import annotations

import gzip
import json

import pytest

from attnflow.errors import AttnFlowError, InputError
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


def test_a_name_with_brackets_is_a_name_and_not_a_pattern(tmp_path):
    (tmp_path / "x1.csv").write_text("text\nthe wrong file\n")
    (tmp_path / "x[1].csv").write_text("text\nthe right file\n")
    assert [row.text for row in open_data(tmp_path / "x[1].csv")] == ["the right file"]
    (tmp_path / "x*.txt").write_text("the right file\n")
    assert [row.text for row in open_data(tmp_path / "x*.txt")] == ["the right file"]


def test_words_that_look_like_nothing_stay_words(tmp_path):
    words = ["NA", "null", "nan", "None", "N/A", "true", "1984", "2020-01-01", "-0", "1e5"]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{w},{w}\n" for w in words))
    data = open_data(tmp_path / "a.csv", target_column="label")
    assert [(row.text, row.target) for row in data] == [(w, w) for w in words]


def test_a_column_of_whole_numbers_holds_numbers_and_another_does_not(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,name\na,0,00\nb,12,1\nc,-1,2\n")
    assert [row.target for row in open_data(tmp_path / "a.csv", target_column="label")] == [0, 12, -1]
    assert [row.target for row in open_data(tmp_path / "a.csv", target_column="name")] == ["00", "1", "2"]


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", "text,label\na,0\nb,\n"), ("a.csv", "text,label\na,0\nb,  \n"), ("a.tsv", "text\tlabel\na\t0\nb\t\n"),
    ("a.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "label": null}\n'),
    ("a.jsonl", '{"text": "a", "label": 0}\n{"text": "b"}\n'), ("a.json", '[{"text": "a", "label": 0}, {"text": "b"}]'),
    ("a.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "label": NaN}\n'),
])  # fmt: skip
def test_a_missing_label_is_refused_with_its_row(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=r"Row 1 of .*a\..* \(from 0\) has nothing in the column 'label': fill it in"):
        open_data(tmp_path / name, target_column="label")


def test_a_missing_text_is_refused_with_its_row(tmp_path):
    from datasets import Dataset

    (tmp_path / "a.csv").write_text('id,text\n0,a\n1,""\n')
    with pytest.raises(InputError, match="Row 1 .* has nothing in the column 'text'"):
        open_data(tmp_path / "a.csv")
    with pytest.raises(InputError, match=r"Row 2 \(from 0\) has nothing in the column 'text'"):
        list(open_data(Dataset.from_dict({"text": ["a", "b", None]})))
    with pytest.raises(InputError, match=r"Row 1 \(from 0\) is None, and a text is needed"):
        list(open_data(["a", None]))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.csv", "text,label\nüber,1\n".encode("latin-1"), "is not UTF-8. Write it anew.*iconv -f latin1 -t utf-8 a.csv"),
    ("a.txt", "über\n".encode("latin-1"), "is not UTF-8"),
    ("a.jsonl", '{"text": "ü"}\n'.encode("latin-1"), "is not UTF-8"),
    ("a.csv", b"text,label\na,1\nb\n", "Row #3.*Expected 2 columns, got 1"),
    ("a.csv", b"", "a.csv"), ("a.csv", b"text\n", "has 0 rows"), ("a.txt", b"", "has 0 rows"),
    ("a.csv", b"text,text\na,b\n", "two columns that are called 'text'"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"), ("a.json", b"[1, 2", "is not JSON"),
    ("a.jsonl", b"[" * 100_000, "is not JSON"), ("a.jsonl", b"5\n", "holds a int in its first row"),
    ("a.jsonl", b'{"text": "a"}\n5\n', r"Row 1 \(from 0\) is 5, and a text is needed"),
    ("a.parquet", b"PAR1 not a table PAR1", "a.parquet"), ("a.csv.gz", b"not packed", "a.csv.gz"),
    ("a.csv.xz", b"not packed", "a.csv.xz"), ("a.csv.zst", b"not packed", "a.csv.zst"),
])  # fmt: skip
def test_damaged_and_foreign_files_are_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AttnFlowError, match=message):
        open_data(tmp_path / name)


def test_names_that_no_file_can_have():
    for name in ("", "a\0.csv", "\udcff\ud800.csv"):
        with pytest.raises(AttnFlowError, match="is not a name that a file can have"):
            open_data(name)


def test_a_local_file_causes_no_look_up_in_the_network(tmp_path, monkeypatch):
    """``datasets`` reports every load to a counter unless it is told to be offline."""
    import socket

    import datasets

    asked = []
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", True)
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, lambda *given: asked.append(given) or 1 / 0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **options: asked.append(given) or 1 / 0)
    for kind in ("csv", "tsv", "csv.gz", "json", "jsonl", "parquet", "txt"):
        assert [row.text for row in open_data(written(tmp_path, kind))] == TEXTS
    assert not asked


def test_an_image_of_a_file_is_read_from_its_bytes_alone(tmp_path):
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (4, 4), (9, 8, 7)).save(data, "png")
    rows = [{"text": {"bytes": data.getvalue(), "path": None}}, {"text": {"bytes": None, "path": "http://x.invalid/a"}}]
    pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "a.parquet")
    (row,) = open_data(tmp_path / "a.parquet")
    assert row.text.getpixel((0, 0)) == (9, 8, 7)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="The image of row 1 cannot be read from its bytes"):
        open_data(tmp_path / "a.parquet")


def test_a_hub_data_set_is_loaded_without_its_code(monkeypatch):
    import datasets

    seen = {}
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **options: seen.update(options) or [{"text": "a"}])
    open_data("somebody/something")
    assert seen["trust_remote_code"] is False
