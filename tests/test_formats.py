"""Formats are made from parts; whoever has the part can write the format."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from attnflow import formats
from attnflow.errors import FileError
from attnflow.formats import Document, Format, check_file, endings, suffixes, write_file


def test_suffixes_are_those_of_the_parts():
    assert suffixes("figure") == (".png", ".pdf", ".svg")
    assert suffixes("page", "frame") == (".html", ".csv")
    assert endings("page") == ".html" and endings("frame", "json") == ".csv or .json"


def test_only_the_part_that_is_asked_for_is_made(tmp_path):
    parts = {"frame": lambda: pd.DataFrame({"x": [1]}), "page": lambda: pytest.fail("not asked for")}
    assert write_file(tmp_path / "a.csv", parts) == [tmp_path / "a.csv"]
    assert (tmp_path / "a.csv").read_text() == "x\n1\n"


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"--out a.doc ends in '.doc'. Use .md or .tex."):
        check_file("--out", Path("a.doc"), ("markdown", "latex"), False)
    with pytest.raises(FileError, match=r"--out a ends in 'nothing'. Use one of: .png, .pdf, .svg."):
        check_file("--out", Path("a"), ("figure",), False)
    (tmp_path / "a.md").write_text("mine")
    with pytest.raises(FileError, match="exists already"):
        check_file("--out", tmp_path / "a.md", ("markdown",), False)
    check_file("--out", None, (), False)


def test_a_document_brings_its_files_or_writes_nothing(tmp_path):
    parts = {"markdown": lambda: Document("see f.svg", {"f.svg": b"<svg>"})}
    (tmp_path / "f.svg").write_text("mine")
    with pytest.raises(FileError, match="f.svg exists already"):
        write_file(tmp_path / "a.md", parts)
    assert not (tmp_path / "a.md").exists() and (tmp_path / "f.svg").read_text() == "mine"
    assert write_file(tmp_path / "a.md", parts, overwrite=True) == [tmp_path / "a.md", tmp_path / "f.svg"]
    assert (tmp_path / "f.svg").read_bytes() == b"<svg>"


def test_a_new_format_is_one_entry(tmp_path, monkeypatch):
    entry = Format("frame", lambda frame, path, overwrite: path.write_text(frame.to_string()) and None)
    monkeypatch.setitem(formats.FORMATS, ".txt", entry)
    assert endings("frame", "json") == ".csv, .json or .txt"
    write_file(tmp_path / "a.txt", {"frame": lambda: pd.DataFrame({"x": [1]})})
    assert "x" in (tmp_path / "a.txt").read_text()
