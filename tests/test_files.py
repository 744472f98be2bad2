from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnflow import files
from attnflow.errors import FileError


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "a.safetensors"
    files.save(path, "relevance", {"x": np.arange(6.0).reshape(2, 3).T}, {"note": "é⟨sink⟩"})
    arrays, header = files.load(path, "relevance")
    assert np.array_equal(arrays["x"], np.arange(6.0).reshape(2, 3).T)
    assert header["note"] == "é⟨sink⟩"
    assert header["format"] == files.FORMAT


def test_a_file_is_not_replaced_unless_told_to(tmp_path):
    path = tmp_path / "a.safetensors"
    files.save(path, "relevance", {"x": np.zeros(1)}, {})
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists already and overwrite=False. Pass overwrite=True"):
        files.save(path, "relevance", {"x": np.ones(1)}, {})
    assert path.read_bytes() == before
    files.save(path, "relevance", {"x": np.ones(1)}, {}, overwrite=True)
    assert files.load(path, "relevance")[0]["x"] == 1


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_bytes(path, b"new", overwrite=True)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileError, match="the folder .*nowhere does not exist"):
        files.save(tmp_path / "nowhere" / "a", "relevance", {}, {})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match="is not a file: nothing to load"):
        files.load(tmp_path / "a", "relevance")


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    files.save(path, "relevance", {"x": np.zeros(100)}, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileError, match="not a whole safetensors file"):
        files.load(path, "relevance")


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"\x80\x04 this might be a pickle")
    with pytest.raises(FileError, match="damaged, cut short, or of another kind"):
        files.load(path, "relevance")
    save_file({"x": np.zeros(1)}, path)
    with pytest.raises(FileError, match="attnflow did not write it"):
        files.load(path, "relevance")
    save_file({"x": np.zeros(1)}, path, metadata={"attnflow": "{not json"})
    with pytest.raises(FileError, match="not readable JSON"):
        files.load(path, "relevance")


def test_a_newer_format_says_how_to_update(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"x": np.zeros(1)}, path, metadata={"attnflow": json.dumps({"format": 99, "kind": "relevance"})})
    with pytest.raises(FileError, match=r"format 99, and this attnflow reads formats up to 2. Update it:  pip install"):
        files.load(path, "relevance")


def test_another_kind_says_who_reads_it(tmp_path):
    path = tmp_path / "a.safetensors"
    files.save(path, "attention", {"x": np.zeros(1)}, {})
    with pytest.raises(
        FileError, match=r"holds 'attention', but 'relevance' was asked for. Use attnflow.Attention.load"
    ):
        files.load(path, "relevance")


def test_any_changed_byte_is_seen(tmp_path):
    """Every byte of a saved result, changed: refused, or (padding, spaces) the same content."""
    path = tmp_path / "a.safetensors"
    arrays = {"x": np.linspace(0, 1, 12).reshape(3, 4), "y": np.arange(3, dtype=np.float16)}
    files.save(path, "relevance", arrays, {"note": "é", "tokens": ["a", "b"]})
    whole, header = path.read_bytes(), files.load(path, "relevance")[1]
    refused = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            found, head = files.load(path, "relevance")
        except FileError:
            refused += 1
            continue
        assert head == header and all(np.array_equal(found[k], v) for k, v in arrays.items())
    assert refused > 0.95 * len(whole)


def test_a_digest_that_was_taken_away_is_missed_and_files_of_the_first_format_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    for number in (1, 2):
        save_file({"x": np.zeros(1)}, path, metadata={"attnflow": json.dumps({"format": number, "kind": "relevance"})})
        if number == 1:
            assert files.load(path, "relevance")[0]["x"] == 0
        else:
            with pytest.raises(FileError, match="content and its digest disagree. It is damaged"):
                files.load(path, "relevance")


def test_a_lone_surrogate_is_kept(tmp_path):
    files.save(tmp_path / "a", "relevance", {}, {"token": "a\ud800"})
    assert files.load(tmp_path / "a", "relevance")[1]["token"] == "a\ud800"


def test_numbers_that_numpy_lacks_are_refused(tmp_path):
    import torch
    from safetensors.torch import save_file as save_tensors

    head = json.dumps({"format": 1, "kind": "relevance"})
    save_tensors({"x": torch.zeros(3).to(torch.float8_e4m3fn)}, tmp_path / "a", metadata={"attnflow": head})
    with pytest.raises(FileError, match="not a whole safetensors file"):
        files.load(tmp_path / "a", "relevance")


def test_a_full_disk_names_the_path_and_leaves_the_old_file(tmp_path):
    resource = pytest.importorskip("resource")
    import signal

    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(
            FileError, match=r"Cannot write .*a.bin: File too large. What was there before is as it was"
        ):
            files.write_bytes(path, b"n" * 5000, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_paths_that_cannot_be(tmp_path):
    for name in ("", "a\0b", "\ud800"):
        with pytest.raises(FileError, match="is not a name that a file can have"):
            files.load(name, "relevance")
    with pytest.raises(TypeError, match="path is a int, and the name of a file or folder is needed"):
        files.load(5, "relevance")
    with pytest.raises(FileError, match="Cannot write"):
        files.save(tmp_path / ("a" * 300), "relevance", {}, {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="Cannot write .*folder: Is a directory"):
        files.save(tmp_path / "folder", "relevance", {}, {}, overwrite=True)


def test_reading_names_the_file_whatever_goes_wrong(tmp_path):
    for error, message in ((KeyError("scores"), "KeyError: 'scores'"), (OSError(5, "I/O"), "Cannot read .*: I/O"),
                           (FileError("no tokens"), "cannot be used: no tokens")):  # fmt: skip
        with pytest.raises(FileError, match=f"here.*{message}|{message}.*"), files.reading(tmp_path / "here"):
            raise error


def headers():
    """The header of a true file of each kind, with one field at a time replaced by something else."""
    from attnflow import Attention, Relevance

    made = {}

    def note(path, kind, arrays, header, overwrite=False):
        made[kind] = (json.loads(json.dumps(header)), dict(arrays))

    save, files.save = files.save, note
    try:
        Relevance(np.ones((1, 2)) / 2, ("a", "b"), (0,), "raw").save("x")
        Attention.of(np.full((2, 3, 3), 1 / 3), tokens=["a", "b", "c"]).save("x")
    finally:
        files.save = save
    return made


WRONG = [None, 5, -1, 1e300, "<img src=x onerror=alert(1)>", [], {}, [None], ["x", 5], {"a": None}, True, 10**15]


def paths(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def put(value, at, new):
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


@pytest.mark.parametrize("kind", ["relevance", "attention"])
def test_a_header_that_holds_anything_else_is_refused_or_harmless(tmp_path, kind):
    import attnflow

    header, arrays = headers()[kind]
    path, refused, tried = tmp_path / "a.safetensors", 0, 0
    for at in paths(header):
        for new in WRONG if at else [{}]:
            files.save(path, kind, arrays, put(header, at, new), overwrite=True)
            # A typed field of another kind is left out of the record: harmless, and not counted as refused.
            left_out = len(at) == 2 and at[0] == "fields"
            tried += not left_out
            try:
                found = getattr(attnflow, kind.capitalize()).load(path)
                repr(found), found.tokens, found.layers
                if kind == "attention":
                    assert len(found.only.missing) < 100_000
            except attnflow.AttnFlowError as error:
                assert str(path) in str(error)
                refused += not left_out
    assert tried > 200 and refused > 0.4 * tried


def test_arrays_that_are_no_weights_are_refused(tmp_path):
    from attnflow import Attention

    header, arrays = headers()["attention"]
    path = tmp_path / "a.safetensors"
    bad = [np.full((3, 3), np.nan), np.full((3, 3), np.inf), -np.ones((3, 3)), np.ones(3), np.ones((1, 1, 3, 3)),
           np.ones((3, 3), np.int64), np.ones((0, 3)), np.ones((2, 3, 3))]  # fmt: skip
    for array in bad:
        files.save(path, "attention", {**arrays, "self/weights/1": array}, header, overwrite=True)
        with pytest.raises(FileError, match="a.safetensors cannot be used"):
            Attention.load(path)
    files.save(path, "attention", {}, header, overwrite=True)
    with pytest.raises(FileError, match=r"KeyError: 'self/weights/0'"):
        Attention.load(path)
