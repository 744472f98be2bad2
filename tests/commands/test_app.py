from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from attnflow import Relevance, __version__, demo, gradient, rollout
from attnflow.commands.app import main
from tests.pages import data_of

TEXT = demo.SENTENCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The demo model as a user would have saved it."""
    path = tmp_path_factory.mktemp("model")
    demo.model().save_pretrained(path)
    demo.tokenizer().save_pretrained(path)
    return str(path)


def run(*arguments: str) -> int:
    """Exit code of a call within this process."""
    try:
        main(list(arguments))
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0


def refused(capsys, *arguments: str) -> str:
    """The message of a call that must fail: one paragraph on stderr, exit code 2, no traceback."""
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert err.startswith("attnflow: ")
    assert err.strip().count("\n") == 0
    return err


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == f"attnflow {__version__}"


def test_demo_prints_a_table_and_writes_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("demo") == 0
    out = capsys.readouterr().out
    for wanted in ("raw", "rollout", "flow", "cabinet", "<unk>", str(tmp_path / "attnflow-demo.html")):
        assert wanted in out
    assert "cabinet" in (tmp_path / "attnflow-demo.html").read_text()
    assert run("demo") == 0  # its own page may be written again


def test_the_module_runs_as_a_program_too():
    done = subprocess.run([sys.executable, "-m", "attnflow", "--version"], capture_output=True, text=True, check=True)
    assert __version__ in done.stdout


def test_explain_shows_what_the_library_computes(capsys, folder):
    assert run("explain", folder, TEXT, "--method", "rollout", "--layer", "2", "--position", "2") == 0
    out = capsys.readouterr().out
    expected = rollout(demo.model(), demo.tokenizer(), TEXT, layer=2, position=2)
    for score in expected.scores[0]:
        assert f"{score:.3f}" in out
    assert "layer 2 · position 2 key" in " ".join(out.split())


def test_words_and_special_tokens(capsys, folder):
    assert run("explain", folder, TEXT, "-m", "raw", "--words", "--drop-special") == 0
    out = capsys.readouterr().out
    assert "<eos>" not in out
    assert "of the mass lay on special tokens (dropped)" in out


@pytest.mark.parametrize("suffix", ["html", "png", "pdf", "svg", "csv", "json", "safetensors"])
def test_every_kind_of_file(capsys, folder, tmp_path, suffix):
    path = tmp_path / f"out.{suffix}"
    assert run("explain", folder, TEXT, "-m", "rollout", "--out", str(path)) == 0
    assert f"Written: {path}" in capsys.readouterr().out.replace("\n", "")
    expected = rollout(demo.model(), demo.tokenizer(), TEXT, position="cls").scores
    if suffix == "csv":
        assert np.allclose(pd.read_csv(path).score, expected.ravel())
    elif suffix == "json":
        assert np.allclose(json.loads(path.read_text())[0]["scores"], expected)
    elif suffix == "safetensors":
        assert np.allclose(Relevance.load(path).scores, expected)
    else:
        heads = {"html": b"<!doctype html>", "png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
        assert path.read_bytes().startswith(heads[suffix])


def test_a_page_has_every_method_and_opens_at_the_layer_asked_for(capsys, folder, tmp_path):
    path = tmp_path / "page.html"
    assert run("explain", folder, TEXT, "--layer", "2", "--position", "1", "--drop-special", "--out", str(path)) == 0
    data = data_of(path.read_text())
    first = data["fusions"][0]
    assert [m["name"] for m in first["methods"]] == [
        *("raw", "rollout", "flow", "gradient", "blankout", "integrated_gradients-signed")
    ]
    assert first["outputs"][0] == [2, 1]
    assert data["start"] == {"words": False, "special": False}
    assert len(first["curves"]) == 9, "three methods against three that ask the model"
    heads = demo.model().config.num_attention_heads
    assert [f["name"] for f in data["fusions"]] == ["mean", "max", "min", *(f"head {h}" for h in range(heads))]
    assert "blankout" in capsys.readouterr().out


def test_gradients_stand_beside_attention(capsys, folder):
    assert run("explain", folder, TEXT, "-m", "raw", "-m", "gradient", "--layer", "0", "--words") == 0
    out = capsys.readouterr().out
    for score in gradient(demo.model(), demo.tokenizer(), TEXT).scores[0]:
        assert f"{score:.3f}" in out


def test_edges_are_an_option_and_a_part_of_a_name(capsys, folder, tmp_path):
    out = tmp_path / "found.json"
    given = ("-m", "rollout", "-m", "chefer", "-m", "direct:gradient", "-m", "blankout", "--out", str(out))
    assert run("explain", folder, TEXT, "--edges", "attention", "--edges", "gradient", *given) == 0
    names = [r["method"] for r in json.loads(out.read_text())]
    assert names == ["rollout", "rollout:gradient", "chefer", "direct:gradient", "blankout"]
    assert "rollout:gradient" in capsys.readouterr().out.replace("\n", "")
    assert "--edges value is not known" in refused(capsys, "explain", folder, TEXT, "--edges", "value")


def test_a_file_that_exists_is_refused_before_anything_runs(capsys, tmp_path):
    path = tmp_path / "out.csv"
    path.write_text("mine")
    assert "exists already" in refused(capsys, "explain", "no-such-model", TEXT, "--out", str(path))
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--method", "grad"], "--method 'grad' is not known. Use some of: raw, rollout, flow, direct,"),
        (["--position", "middle"], "--position middle is not known: no word of the text is 'middle'"),
        (["--position", "99"], "--position 99, but there are 7 positions: use -7 to 6."),
        (["--position", "mask"], "--position mask, but the input has no mask token"),
        (["--layer", "12"], "--layer 12, but the layers with attention are 0, 1, 2, 3, 4, 5."),
        (["--heads", "some"], "--heads some is not known. Use mean, max, min, or numbers: 3 or 0,2,5."),
        (["--heads", "9"], "8 heads"),
        (["--residual", "1.5"], "a residual share is in [0, 1)"),
        (["--residual", "half"], "--residual half is not known. Use a number, none, add or measured."),
        (["--residual", "measured", "--edges", "gradient"], "these are gradient edges"),
        (["--out", "a.docx"], "--out a.docx ends in '.docx'. Use one of: .html"),
        (["--out", "a.safetensors"], "holds one result, and 3 methods are asked for. Choose one:  --method flow"),
    ],
)
def test_bad_options_get_one_paragraph(capsys, folder, options, text):
    assert text in refused(capsys, "explain", folder, TEXT, *options)


def test_bad_models_and_texts(capsys, folder, tmp_path):
    assert "could not be loaded" in refused(capsys, "explain", "no-such/model", TEXT)
    assert "folder without a config.json" in refused(capsys, "explain", str(tmp_path), TEXT)
    assert "empty" in refused(capsys, "explain", folder, "")
    assert "64" in refused(capsys, "explain", folder, "key " * 100)


def test_debug_shows_the_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "attnflow", "--debug", "explain", "x", "y", "--method", "z"],
        capture_output=True,
        text=True,
    )
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_models_lists_routes(capsys):
    assert run("models") == 0
    out, err = capsys.readouterr()
    assert "bert\tinterface" in out
    assert "model types" in err
    assert run("models", "llama") == 0
    assert capsys.readouterr().out == "llama: interface\n"
    assert "'lama' is not one of the" in refused(capsys, "models", "lama")


@pytest.mark.parametrize(
    "command", [["explain"], ["compare"], ["audit"], ["probe", "verb-number"], ["probe", "pronouns"]]
)
def test_the_help_shows_defaults_that_depend_on_the_input(capsys, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(*command, "--help") == 0
    shown = capsys.readouterr().out
    assert "(default: " in shown and "so many" not in shown


HOSTILE = ["", "\udcff", "a\0b", "-1", "../../..", "<img src=x>", "[red]x", "é" * 300, "/dev/null", "NaN", "9" * 40]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("command", [
    ("explain", "{}", "a text"), ("compare", "{}", "x.csv", "--out", "run"),
    ("compare", "nowhere", "{}", "--out", "run"), ("audit", "{}", "lstm", "x.csv"),
    ("audit", "correlation", "lstm", "{}"), ("probe", "verb-number", "{}"), ("models", "{}"), ("{}",),
    ("explain", "nowhere", "a text", "--out", "{}"), ("explain", "nowhere", "a text", "--position", "{}"),
    ("compare", "nowhere", "x.csv", "--out", "{}"), ("compare", "nowhere", "x.csv", "--out", "run", "--layers", "{}"),
    ("audit", "all", "lstm", "x.csv", "--penalties", "{}"), ("audit", "all", "lstm", "x.csv", "--work", "{}"),
])  # fmt: skip
def test_hostile_arguments_end_in_one_paragraph(capsys, tmp_path, monkeypatch, command, value):
    here = tmp_path / "a" / "b" / "c"  # so that ../../.. is a folder of this test too
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    code = run(*(part.format(value) for part in command))
    out, err = capsys.readouterr()
    assert code == 2 and "Traceback" not in out + err and err.strip()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "c"]


def test_a_folder_with_a_damaged_file_is_said_once(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d.parquet").write_bytes(b"PA")
    code = "from attnflow.commands.app import main; main(['compare', 'nowhere', 'data', '--out', 'run'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("Parquet file size is 2 bytes") == 1


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", b"text,label\n\xfc,1\n"), ("a.csv", b"text,label\na,1\nb\n"), ("a.csv", b""), ("a.csv", b"x\ny\n"),
    ("a.jsonl", b"{"), ("a.parquet", b"PAR1"), ("a.csv.gz", b"x"), ("a.txt", b"\xff"), ("a.csv", b"text,label\n,1\n"),
])  # fmt: skip
def test_data_files_that_are_not_data_end_in_one_paragraph(capsys, tmp_path, folder, name, content):
    (tmp_path / name).write_bytes(content)
    said = refused(capsys, "compare", folder, str(tmp_path / name), "--out", str(tmp_path / "run"))
    assert name in said or "column" in said
    said = refused(capsys, "audit", "uniform", "lstm", str(tmp_path / name), "--label-column", "label",
                   "--work", str(tmp_path / "work"))  # fmt: skip
    assert name in said or "column" in said


@pytest.mark.parametrize("change", ["cut", "config", "no tokenizer", "code"])
def test_folders_that_are_no_model_end_in_one_paragraph(capsys, tmp_path, folder, change):
    import shutil

    path = tmp_path / "model"
    shutil.copytree(folder, path)
    weights = next(path.glob("*.safetensors"))
    if change == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif change == "config":
        (path / "config.json").write_text('{"model_type": "<img>"')
    elif change == "no tokenizer":
        (path / "tokenizer.json").write_bytes(b"\xff{")
    else:
        config = {"model_type": "x", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
        (path / "config.json").write_text(json.dumps(config))
        (path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "could not be loaded" in refused(capsys, "explain", str(path), "a text")
    assert not (tmp_path / "ran").exists()
