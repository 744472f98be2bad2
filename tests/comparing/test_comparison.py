"""The result: tables, curves, files; and a bootstrap against theory."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from attnflow.comparing.comparison import Comparison, interval
from attnflow.errors import FileError, SelectionError


def made(examples=40, seed=0):
    rng = np.random.default_rng(seed)
    rows = [
        {"example": e, "digest": "", "target": "x", "method": m, "reference": r, "correlation": c, "special": s,
         "layer": layer, "value": float(rng.normal(0.1 * layer, 0.1)), "n": 9, "ties": 0.25, "reference_ties": 0.0,
         "error": None}
        for e in range(examples) for m in ("raw", "flow_100%") for r in ("gradient", "blankout")
        for c in ("spearman", "kendall") for s in (False, True) for layer in (0, 3)
    ]  # fmt: skip
    rows[0]["value"] = float("nan")
    return Comparison(pa.Table.from_pylist(rows), {"k": 5}, {"flow": 2.0})


NOTE = "gradient is rounding error here: |Σg| is 1e-08 of Σ|g| (median over 3 of 40 examples)"


def noisy(name="gradient"):
    """The same with what is left of the sums of one reference, or method, by example: many records of the third."""
    rows = made().table.to_pylist()
    for column in ("reference", "method"):
        share = "rounding" if column == "method" else f"{column}_rounding"
        for row in rows:
            row[share] = {0: 1e-8, 1: 9e-9, 2: 5e-8}.get(row["example"]) if row[column] == name else None
    kept = [row for row in rows if row["example"] > 1 or row["correlation"] == "spearman"]
    return Comparison(pa.Table.from_pylist(kept), {"k": 5}, {"flow": 2.0})


def notes_of(axes):
    return [" ".join(text.get_text().split()) for text in axes.texts]


def test_the_bootstrap_interval_is_near_the_normal_one():
    values = np.random.default_rng(1).normal(0.4, 0.2, 400)
    low, high = interval(values, 4000)
    half = 1.96 * values.std(ddof=1) / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=2e-3)
    assert high == pytest.approx(values.mean() + half, abs=2e-3)
    assert interval(values, 200, seed=3) == interval(values, 200, seed=3) != interval(values, 200, seed=4)
    assert all(math.isnan(x) for x in interval(values[:1])) and all(math.isnan(x) for x in interval(values, 0))


def test_counts_of_nan():
    frame = made().to_frame()
    assert frame["nan"].sum() == 1 and frame[frame["nan"] == 1]["n"].iloc[0] == 39


def test_markdown_and_latex():
    c = made()
    lines = c.to_markdown().splitlines()
    assert lines[0] == "| reference | method | layer 0 | layer 3 | n | NaN | ties |"
    assert len(lines) == 2 + 4 and " ± " in lines[2]
    assert lines[2].startswith("| gradient | raw | ") and lines[2].endswith("| 40 | 1 | 0.25 |")
    assert c.to_markdown("kendall", True) != c.to_markdown()
    text = c.to_latex()
    assert text.startswith(r"\begin{tabular}{llccrrr}") and r"flow\_100\%" in text and r" $\pm$ " in text
    assert text.count(r"\\") == 5 and "_" not in text.replace(r"\_", "")
    with pytest.raises(SelectionError, match="correlation='pearson' was not computed. There is: spearman, kendall"):
        c.to_markdown("pearson")


def test_the_plot_has_a_curve_and_a_band_for_each_method_and_leaves_pyplot_alone():
    import sys

    before = "matplotlib.pyplot" in sys.modules
    axes = made().plot(reference="blankout")
    assert [line.get_label() for line in axes.lines[:2]] == ["raw", "flow_100%"] and len(axes.collections) == 2
    assert axes.get_ylabel() == "spearman with blankout" and list(axes.get_xticks()) == [0, 3]
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert made().plot(ax=axes) is axes
    with pytest.raises(SelectionError, match="reference='lime' was not computed. There is: gradient, blankout"):
        made().plot(reference="lime")


def test_rounding_error_is_said_below_every_table(tmp_path):
    c = noisy()
    assert repr(c).endswith(f"2 layers; careful: {NOTE})")
    table, _, said = c.to_markdown().partition("\n\n")
    assert said == NOTE and len(table.splitlines()) == 2 + 4
    assert c.to_markdown("kendall", True).endswith(f" |\n\n{NOTE}"), "also where the table shows a part of the records"
    table, _, said = c.to_latex().partition("\\end{tabular}\n")
    assert table.count(r"\\") == 5 and said.startswith(r"\par{\footnotesize gradient is rounding error here: ")
    assert r"\textbar{}\ensuremath{\Sigma}g\textbar{} is 1e-08 of \ensuremath{\Sigma}\textbar{}g\textbar{} (" in said
    assert said.count("{") == said.count("}") and not set(said) & set("|Σ")
    c.save(tmp_path / "c.parquet")
    back = Comparison.load(tmp_path / "c.parquet")
    assert repr(back) == repr(c) and back.to_markdown() == c.to_markdown() and back.to_latex() == c.to_latex()


def test_rounding_error_is_said_below_the_plot_of_its_reference():
    axes = noisy().plot(reference="gradient")
    assert notes_of(axes) == [NOTE] and not any(text.get_parse_math() for text in axes.texts)
    figure = axes.figure
    figure.draw_without_rendering()
    (note,), label = axes.texts, axes.xaxis.label.get_window_extent()
    box = note.get_window_extent()
    assert 0 <= box.y0 < box.y1 <= label.y0 and box.x1 <= figure.bbox.x1, "below the label, inside the figure"
    assert notes_of(noisy().plot(reference="blankout")) == []


def test_a_method_that_is_rounding_error_is_named_whatever_the_reference():
    c, said = noisy("flow_100%"), NOTE.replace("gradient", "flow_100%")
    assert c.to_markdown().endswith(f"\n\n{said}") and r"flow\_100\% is rounding error" in c.to_latex()
    assert notes_of(c.plot(reference="gradient")) == notes_of(c.plot(reference="blankout")) == [said]


def test_without_rounding_error_and_in_records_that_do_not_know_it_there_is_no_note():
    for c in (made(), noisy("nothing")):
        assert "rounding" not in repr(c) + c.to_markdown() + c.to_latex() and notes_of(c.plot()) == []
        assert c.to_latex().endswith(r"\end{tabular}")


def test_saved_and_loaded(tmp_path):
    c = made()
    c.save(tmp_path / "c.parquet")
    back = Comparison.load(tmp_path / "c.parquet")
    assert back.records.equals(c.records) and back.settings == c.settings and back.costs == c.costs
    with pytest.raises(FileError, match="exists already and overwrite=False"):
        c.save(tmp_path / "c.parquet")
    c.save(tmp_path / "c.parquet", overwrite=True)
    with pytest.raises(FileError, match="is neither a file nor a folder"):
        Comparison.load(tmp_path / "nothing")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(FileError, match="is not a whole Parquet file"):
        Comparison.load(tmp_path / "bad.parquet")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(FileError, match=r"Comparison.save did not write it"):
        Comparison.load(tmp_path / "other.parquet")


def test_a_changed_byte_of_a_saved_comparison_is_seen(tmp_path):
    import pyarrow.parquet as pq

    c, path = made(), tmp_path / "c.parquet"
    c.save(path)
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            back = Comparison.load(path)
        except FileError:
            refused += 1
            continue
        assert back.records.equals(c.records) and back.settings == c.settings and back.costs == c.costs
    assert refused > len(whole) / 14
    table = pq.read_table(path) if path.write_bytes(whole) else None
    head = table.schema.metadata[b"attnflow"]
    for bad in (b"{", b"5", b"{}", head.replace(b'"seed": 0', b'"seed": "x"')):
        pq.write_table(table.replace_schema_metadata({b"attnflow": bad}), path)
        with pytest.raises(FileError, match=r"c\.parquet"):
            Comparison.load(path)
    pq.write_table(table.drop_columns("ties").replace_schema_metadata(
        {b"attnflow": head.replace(b'"format": 2', b'"format": 1')}), path)  # fmt: skip
    with pytest.raises(FileError, match="A comparison has the column ties"):
        Comparison.load(path)
