"""Parts that are whole or not there, settings that may not be mixed, and what a damaged folder says."""

from __future__ import annotations

import json

import pytest

from attnflow.comparing.records import (
    COLUMNS,
    COMPARE,
    Layout,
    costs_of,
    differences,
    open_records,
    read_parts,
    read_settings,
    to_table,
)
from attnflow.errors import FileError

SETTINGS = {"model": {"name": "bert"}, "k": 5, "layers": [0, 1]}


def rows(*examples):
    return [
        {"example": e, "digest": f"d{e}", "method": "raw", "reference": "gradient", "correlation": "spearman",
         "special": True, "layer": layer, "value": float("nan") if layer else 0.25, "n": 7, "ties": 0.5}
        for e in examples for layer in (0, 1)
    ]  # fmt: skip


def open_it(*arguments, **options):
    with open_records(*arguments, **options):
        pass


def test_records_come_back_as_they_were(tmp_path):
    with open_records(tmp_path / "run", SETTINGS) as records:
        records.add(to_table(rows(2, 3), {"flow": 1.5}))
        records.add(to_table(rows(0), {"flow": 0.5, "raw": 1.0}))
    with open_records(tmp_path / "run", SETTINGS, resume=True) as records:
        table = records.table()
        assert records.done == {0: "d0", 2: "d2", 3: "d3"} and records.costs() == {"flow": 2.0, "raw": 1.0}
    assert table.column("example").to_pylist() == [0, 0, 2, 2, 3, 3]
    assert table.column_names == list(COLUMNS)
    value = table.column("value").to_pylist()
    assert value[0] == 0.25 and value[1] != value[1] and table.column("error").null_count == 6
    assert read_settings(tmp_path / "run") == SETTINGS


def test_in_memory_nothing_is_written(tmp_path):
    with open_records(None, SETTINGS) as records:
        records.add(to_table(rows(1), {}))
        assert records.table().num_rows == 2
    assert not list(tmp_path.iterdir())


def test_costs_are_in_each_part():
    assert costs_of(to_table(rows(1), {"raw": 2.0})) == {"raw": 2.0}
    assert costs_of(to_table(rows(1), {}).replace_schema_metadata(None)) == {}


def test_a_run_is_not_overwritten_and_settings_are_not_mixed(tmp_path):
    with open_records(tmp_path, SETTINGS) as records:
        records.add(to_table(rows(0), {}))
    with pytest.raises(FileError, match="holds the records of a run already. Go on with it by resume=True"):
        open_it(tmp_path, SETTINGS)
    changed = {**SETTINGS, "model": {"name": "gpt2"}, "k": 3, "unit": "word"}
    with pytest.raises(FileError) as caught:
        open_it(tmp_path, changed, resume=True)
    message = str(caught.value)
    assert "records of other settings" in message
    for line in ("k: 5 then, 3 now", 'model.name: "bert" then, "gpt2" now', 'unit: nothing then, "word" now'):
        assert line in message
    assert "layers" not in message
    assert read_settings(tmp_path) == SETTINGS


def test_a_run_that_ended_before_its_first_record_is_none(tmp_path):
    open_it(tmp_path, SETTINGS)
    open_it(tmp_path, {**SETTINGS, "k": 3})
    open_it(tmp_path, {**SETTINGS, "k": 4}, resume=True)
    assert read_settings(tmp_path)["k"] == 4


def test_a_file_of_the_same_name_is_left_alone(tmp_path):
    (tmp_path / "settings.json").write_text('{"mine": 1}')
    with pytest.raises(FileError):
        open_it(tmp_path, SETTINGS)
    assert (tmp_path / "settings.json").read_text() == '{"mine": 1}'


def test_differences_of_equal_settings_are_none():
    assert differences(SETTINGS, json.loads(json.dumps(SETTINGS))) == []


def test_one_run_at_a_time(tmp_path):
    pytest.importorskip("fcntl")
    with open_records(tmp_path, SETTINGS), pytest.raises(FileError, match="Another run is writing to"):
        open_it(tmp_path, SETTINGS, resume=True)
    open_it(tmp_path, SETTINGS, resume=True)


def test_a_stray_file_of_a_killed_run_is_removed_and_whole_parts_are_kept(tmp_path):
    with open_records(tmp_path, SETTINGS) as records:
        records.add(to_table(rows(0), {}))
    (tmp_path / "parts" / "000000009.part").write_bytes(b"PAR1 half")
    with open_records(tmp_path, SETTINGS, resume=True) as records:
        assert set(records.done) == {0}
    assert [p.name for p in (tmp_path / "parts").iterdir()] == ["000000000.parquet"]


def test_a_run_killed_before_its_settings_were_written_can_start(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "settings.jsonabc.part").write_bytes(b"{")
    with open_records(tmp_path, SETTINGS, resume=True) as records:
        assert records.done == {}


def test_a_damaged_or_foreign_folder_is_refused(tmp_path):
    with open_records(tmp_path / "run", SETTINGS) as records:
        records.add(to_table(rows(0), {}))
    part = tmp_path / "run" / "parts" / "000000000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-20])
    with pytest.raises(
        FileError, match=r"is not a whole Parquet file .*Remove it, and its examples are done again:  rm"
    ):
        list(read_parts(tmp_path / "run"))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), part)
    with pytest.raises(FileError, match="has columns a: attnflow compare did not write it"):
        list(read_parts(tmp_path / "run"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(FileError, match="is not empty and holds no run of attnflow compare"):
        open_it(tmp_path / "other", SETTINGS)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"
    with pytest.raises(FileError, match=r"has no settings.json"):
        read_settings(tmp_path / "other")
    (tmp_path / "run" / "settings.json").write_text("{")
    with pytest.raises(FileError, match="is not JSON: damaged"):
        read_settings(tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text('{"format": 99, "settings": {}}')
    with pytest.raises(FileError, match="is not of format 1 to 2"):
        read_settings(tmp_path / "run")


def test_the_lock_is_held_before_the_settings_are_looked_at(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    from attnflow.comparing import records

    prepare, held = records._prepare, []

    def watched(path, *given):
        with open(path / "lock") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(path)
        prepare(path, *given)

    monkeypatch.setattr(records, "_prepare", watched)
    open_it(tmp_path, SETTINGS)
    assert held == [tmp_path]


def test_while_one_run_writes_another_with_other_settings_touches_nothing(tmp_path):
    pytest.importorskip("fcntl")
    with open_records(tmp_path, SETTINGS), pytest.raises(FileError, match="Another run is writing to"):
        open_it(tmp_path, {"other": "settings"})
    assert read_settings(tmp_path) == SETTINGS


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    pytest.importorskip("fcntl")
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FileError, match="Cannot write .*lock"):
        open_it(tmp_path / "run", SETTINGS)
    assert (tmp_path / "precious").read_text() == "mine"


def test_any_changed_byte_of_a_part_or_of_the_settings_is_seen(tmp_path):
    with open_records(tmp_path, SETTINGS) as records:
        records.add(to_table([{**r, "target": "é", "error": None} for r in rows(0, 1, 2)], {"flow": 1.5}))
    (table,) = read_parts(tmp_path)
    part = tmp_path / "parts" / "000000000.parquet"
    whole = part.read_bytes()
    refused = 0
    for at in range(0, len(whole), 3):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            (found,) = read_parts(tmp_path)
        except FileError:
            refused += 1
            continue
        assert str(found.to_pylist()) == str(table.to_pylist()) and costs_of(found) == {"flow": 1.5}
    assert refused > len(whole) / 6
    part.write_bytes(whole)
    path = tmp_path / "settings.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert read_settings(tmp_path) == SETTINGS
        except FileError:
            continue


def test_a_part_without_its_digest_is_refused_and_a_run_of_the_first_format_is_read(tmp_path):
    import pyarrow.parquet as pq

    with open_records(tmp_path, SETTINGS) as records:
        records.add(to_table(rows(0), {}))
    pq.write_table(to_table(rows(0), {}), tmp_path / "parts" / "000000000.parquet")
    with pytest.raises(FileError, match="its records and its digest disagree. It is damaged. Remove it"):
        list(read_parts(tmp_path))
    (tmp_path / "settings.json").write_text(json.dumps({"format": 1, "settings": SETTINGS}))
    assert len(list(read_parts(tmp_path))) == 1


def test_records_without_the_later_columns_are_read_and_gone_on_with(tmp_path):
    old = Layout(COMPARE.command, {name: kind for name, kind in COLUMNS.items() if name not in COMPARE.later})
    with open_records(tmp_path, SETTINGS, layout=old) as records:
        records.add(to_table(rows(0), {"raw": 1.5}, old))
    with open_records(tmp_path, SETTINGS, resume=True) as records:
        records.add(to_table([{**row, "rounding": 1e-8} for row in rows(1)], {"raw": 0.5}))
    with open_records(tmp_path, SETTINGS, resume=True) as records:
        table = records.table()
        assert records.done == {0: "d0", 1: "d1"} and records.costs() == {"raw": 2.0}
    assert table.schema == COMPARE.schema() and table.column("n").to_pylist() == [7] * 4
    assert table.column("rounding").to_pylist() == [None, None, 1e-8, 1e-8]
    assert table.column("reference_rounding").null_count == 4


@pytest.mark.parametrize("lost", ["value", "error"])
def test_a_part_without_any_other_column_is_refused(tmp_path, lost):
    less = Layout(COMPARE.command, {name: kind for name, kind in COLUMNS.items() if name != lost})
    with open_records(tmp_path, SETTINGS, layout=less) as records:
        records.add(to_table([{k: v for k, v in row.items() if k != lost} for row in rows(0)], {}, less))
    with pytest.raises(FileError, match="attnflow compare did not write it"):
        list(read_parts(tmp_path))


def test_a_part_with_columns_of_other_kinds_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from attnflow.comparing.records import sealed

    open_it(tmp_path, SETTINGS)
    odd = pa.table({name: ["<img>"] for name in COLUMNS})
    pq.write_table(sealed(odd), tmp_path / "parts" / "000000000.parquet")
    with pytest.raises(FileError, match="does not hold what attnflow writes"):
        list(read_parts(tmp_path))


def test_a_full_disk_says_that_the_run_can_go_on(tmp_path):
    resource = pytest.importorskip("resource")
    import signal

    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open_records(tmp_path, SETTINGS) as records:
        records.add(to_table(rows(0), {}))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
            with pytest.raises(FileError, match=r"Cannot write .*000000001.parquet: File too large.*resume=True"):
                records.add(to_table(rows(1), {}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
    with open_records(tmp_path, SETTINGS, resume=True) as records:
        assert set(records.done) == {0}
