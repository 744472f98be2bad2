"""The command: the table on the screen, files beside it, and errors before a model is loaded."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from attnflow.commands.compare import compare_command
from attnflow.errors import AttnFlowError, FileError
from tests.tiny_models import tiny, tokenizer

app = typer.Typer()
app.command(name="compare")(compare_command)
app.command(name="other")(lambda: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("the key to the cabinets\nthe film was dull\n")
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_table_records_and_files(model, data, tmp_path):
    more = ["--methods", "raw,rollout", "--references", "gradient,blankout", "--layers", "0,-1", "--no-progress"]
    files = ["--table", tmp_path / "t.tex", "--plot", tmp_path / "p.png"]
    done = run(model, data, "--out", tmp_path / "run", *more, *files)
    assert done.exit_code == 0, done.output
    assert "| gradient | raw | " in done.output and "Comparison(2 examples" in done.output
    assert (tmp_path / "t.tex").read_text().startswith(r"\begin{tabular}")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    again = run(model, data, "--out", tmp_path / "run", *more)
    assert isinstance(again.exception, FileError) and "resume" in str(again.exception)
    assert run(model, data, "--out", tmp_path / "run", "--resume", *more).exit_code == 0
    changed = run(model, data, "--out", tmp_path / "run", "--resume", "--unit", "word", *more)
    assert "unit:" in str(changed.exception)


def test_edges_go_with_every_method(model, data, tmp_path):
    more = ["--methods", "raw,flow:gradient", "--edges", "attention", "--edges", "alti", "--references", "gradient"]
    done = run(model, data, "--out", tmp_path / "run", "--layers", "-1", "--no-progress", *more)
    assert done.exit_code == 0, done.output
    assert all(f"| gradient | {name} | " in done.output for name in ("raw", "raw:alti", "flow:gradient"))


def test_progress_is_on_by_default(model, data, tmp_path):
    done = run(model, data, "--out", tmp_path / "run", "--methods", "raw", "--references", "gradient")
    assert "2/2" in done.output and "a second" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "top"], "--layers top is not known"),
        (["--position", "middle"], "--position middle is not known. Use a number, cls, last or mask"),
        (["--table", "t.doc"], "--table t.doc ends in '.doc'. Use .md or .tex"),
        (["--plot", "p.gif"], "--plot p.gif ends in '.gif'. Use one of: .png, .pdf, .svg"),
        (["--methods", "flw"], "'flw' is not known"),
        (["--edges", "values"], "edges='values' is not known. Use 'attention', 'norm', 'alti'"),
        (["--engine", "spark"], "engine='spark' is not known"),
    ],
)
def test_errors_come_before_the_model_is_loaded(arguments, message, data, tmp_path):
    found = run("no/such-model", data, "--out", tmp_path / "run", *arguments)
    assert isinstance(found.exception, AttnFlowError) and message in str(found.exception)
    assert not (tmp_path / "run").exists()
