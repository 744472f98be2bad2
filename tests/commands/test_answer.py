"""``attnflow answer`` on a saved small model."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from attnflow.commands.answer import prompt_of
from attnflow.commands.app import app, main
from attnflow.errors import InputError, SelectionError
from tests.answers.tiny import CONTEXT, QUESTION, causal, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    causal().save_pretrained(path)
    tokenizer().save_pretrained(path)
    (path / "notes.txt").write_text(CONTEXT)
    return path


def test_a_page_and_a_table(folder, tmp_path):
    notes, out = folder / "notes.txt", tmp_path / "page.html"
    given = ["answer", str(folder), "--context", str(notes), "--question", QUESTION, "--answer", "It is red."]
    done = CliRunner().invoke(app, [*given, "--sources", "sentences", "--out", str(out), "--check", "2"])
    assert done.exit_code == 0, done.output
    assert "Written:" in done.output and out.read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(app, [*given, "--methods", "direct", "--check", "0", "--out", str(tmp_path / "a.json")])
    assert again.exit_code == 0 and json.loads((tmp_path / "a.json").read_text())["method"] == "direct"


def test_the_models_own_answer(folder):
    done = CliRunner().invoke(
        app,
        [
            "answer",
            str(folder),
            "--prompt",
            "The key of",
            "--max-new-tokens",
            "3",
            "--check",
            "0",
            "--methods",
            "direct",
        ],
    )
    assert done.exit_code == 0 and "Answer:" in done.output


def test_prompts(tmp_path):
    one, two = tmp_path / "a.txt", tmp_path / "b.txt"
    one.write_text("A."), two.write_text("B.")
    assert prompt_of([str(one)], "Q?", None, None) == {"context": "A.", "question": "Q?"}
    assert prompt_of([str(one), str(two)], None, None, None) == {
        "context": {"a.txt": "A.", "b.txt": "B."},
        "question": "",
    }
    assert prompt_of(None, None, "text", None) == "text"
    chat = tmp_path / "chat.json"
    chat.write_text('[{"role": "user", "content": "Hi"}]')
    assert prompt_of(None, None, None, chat)[0]["role"] == "user"
    chat.write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        prompt_of(None, None, None, chat)
    with pytest.raises(InputError, match="none of them was given"):
        prompt_of(None, None, None, None)
    with pytest.raises(InputError, match="--context and --prompt was given"):
        prompt_of([str(one)], None, "text", None)
    with pytest.raises(InputError, match="--question belongs to --context"):
        prompt_of(None, "Q?", "text", None)
    with pytest.raises(InputError, match="Cannot read"):
        prompt_of([str(tmp_path / "none.txt")], None, None, None)


def test_errors_are_one_paragraph(folder, capsys):
    with pytest.raises(SystemExit):
        main(["answer", str(folder), "--prompt", "The key of ", "--answer", "Lora"])
    assert "differently after the prompt" in " ".join(capsys.readouterr().err.split())


def test_many_questions(folder, tmp_path):
    file = tmp_path / "questions.jsonl"
    rows = [{"context": CONTEXT, "question": QUESTION, "answer": "red", "gold": n} for n in (0, 1, 2)]
    file.write_text("\n".join(map(json.dumps, rows)))
    given = [
        "answer",
        str(folder),
        "--data",
        str(file),
        "--methods",
        "direct",
        "--check",
        "0",
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "precision" in done.output and "0.333" in done.output and (tmp_path / "run" / "settings.json").exists()
    with pytest.raises(SelectionError, match="names 2 ways, and a record has room for one"):
        CliRunner().invoke(app, [*given, "--check-by", "mask,removal"], catch_exceptions=False)
    for option, *value in (["--prompt", "x"], ["--question", "Why?"], ["--units", "tokens"], ["--overwrite"]):
        with pytest.raises(InputError, match=f"--data was given and so was {option}, which belongs to one prompt"):
            CliRunner().invoke(app, [*given, option, *value], catch_exceptions=False)


def test_options_of_many_questions_are_refused_for_one_prompt(folder):
    for option, *value in (["--limit", "3"], ["--resume"], ["--skip-errors"], ["--engine", "ray"]):
        with pytest.raises(InputError, match=f"{option} belongs to --data, and no file of questions was given"):
            given = ["answer", str(folder), "--prompt", "The key", option, *value]
            CliRunner().invoke(app, given, catch_exceptions=False)
