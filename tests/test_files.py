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
    with pytest.raises(FileError, match=r"format 99, and this attnflow reads formats up to 1. Update it:  pip install"):
        files.load(path, "relevance")


def test_another_kind_says_who_reads_it(tmp_path):
    path = tmp_path / "a.safetensors"
    files.save(path, "attention", {"x": np.zeros(1)}, {})
    with pytest.raises(
        FileError, match=r"holds 'attention', but 'relevance' was asked for. Use attnflow.Attention.load"
    ):
        files.load(path, "relevance")
