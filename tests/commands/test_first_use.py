"""What a new user meets on the command line: help at once, own words in errors, a way to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import transformers as tf

from attnflow.commands.app import app
from attnflow.commands.wording import as_options, command_of, suggested
from tests.commands.test_app import refused, run
from tests.tiny_models import tiny, tokenizer

DATA = "text,label\n" + "".join(f"the key to the table {'is' if i % 2 else 'are'},{i % 2}\n" for i in range(12))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    tiny("bert").save_pretrained(place)
    tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data.csv").write_text(DATA)
    return str(tmp_path / "data.csv")


@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["explain", "--help"], ["compare", "--help"], ["rank", "--help"], ["audit", "--help"],
    ["probe", "verb-number", "--help"], ["models", "--help"], ["demo", "--help"],
])  # fmt: skip
def test_help_imports_no_torch(arguments):
    code = (
        "import sys\nfrom attnflow.commands.app import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'pandas', 'scipy', 'matplotlib', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_help_shows_every_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run("explain", "--help")
    said = capsys.readouterr().out
    for shown in (
        "default: -1",
        "default: mean",
        "default: 0.5",
        "default: cls; last in a causal model",
        "default: raw, rollout, flow,",
    ):
        assert shown in said, shown
    run("compare", "--help")
    said = capsys.readouterr().out
    assert "default: spearman" in said and "default: 32" in said


def test_shell_completion():
    given = {"_ATTNFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "attnflow explain m t --method ro", "COMP_CWORD": "5"}
    done = subprocess.run([sys.executable, "-m", "attnflow"], capture_output=True, text=True, env=os.environ | given)
    assert done.stdout.split() == ["rollout"], done.stderr


def test_debug_stands_anywhere(folder):
    for arguments in (["--debug", "explain", folder, "the key", "--layer", "9"],
                      ["explain", folder, "the key", "--layer", "9", "--debug"]):  # fmt: skip
        with pytest.raises(ValueError, match="layer"):
            run(*arguments)


def test_residual_none(capsys, folder):
    assert run("explain", folder, "the key to the table", "--residual", "none", "--method", "rollout") == 0
    plain = capsys.readouterr().out
    assert run("explain", folder, "the key to the table", "--method", "rollout") == 0
    assert capsys.readouterr().out != plain


def test_top_shows_so_many_tokens(capsys, folder):
    assert run("explain", folder, "the key to the table is on a book", "--top", "3") == 0
    said = capsys.readouterr().out
    assert "The 3 of 11 tokens" in said
    assert sum(line.strip().startswith("│") for line in said.splitlines()) == 3


def test_a_long_text_is_cut_when_asked_for(capsys, folder):
    long = "the key to the table " * 40
    said = refused(capsys, "explain", folder, long)
    assert said.rstrip().endswith("the model has 48 positions. Cut it:  --max-length 48")
    assert run("explain", folder, long, "--max-length", "48", "--top", "3") == 0
    assert "The text was cut to 48 of 202 tokens." in capsys.readouterr().out


def test_messages_in_the_words_of_the_command(capsys, folder, data, tmp_path):
    page = tmp_path / "x.html"
    page.write_text("")
    said = refused(capsys, "explain", folder, "the key", "--out", str(page))
    assert "--overwrite" in said and "overwrite=" not in said
    said = refused(capsys, "compare", folder, data, "--out", str(tmp_path / "run"), "--text-column", "words")
    assert "--text-column words, but the columns are text, label. Name one:  --text-column text" in said
    said = refused(capsys, "audit", "permutation", folder, data, "--label-column", "klass")
    assert "--label-column klass, but the columns are text, label" in said
    said = refused(capsys, "compare", folder, data, "--out", str(tmp_path / "run"), "--correlation", "x")
    assert "--correlation x is not known" in said


@pytest.mark.parametrize(("message", "command", "typed"), [
    ("resume=True", "compare", "--resume"), ("out by on_error='skip'.", "compare", "out by --skip-errors."),
    ("untrained=True", "explain", "--untrained"), ("methods=['raw', 'flow']", "compare", "--methods raw,flow"),
    ("position='the bank'", "explain", '--position "the bank"'),
    ("x.out=3 my_layer=2", "explain", "x.out=3 my_layer=2"),
    ("another blank:  blank='delete'", "explain", "another blank:  --method blankout-delete"),
    ("baseline:  steps=128", "explain",
     "baseline:  steps=128  of attnflow.gradient in Python"),
    ("Use 'cls', a word of the text or None.", "explain", "Use 'cls' or a word of the text."),
    ("Cut it:  truncation=True  in this call, or  tokenizer(text, truncation=True, max_length=48, return_tensors='pt')",
     "explain", "Cut it:  --max-length 48"),
    ("by resume=True (--resume), or", "compare", "by --resume, or"),
    ("max_length=1, but", "compare", "--max-length 1, but"), ("layer=9", "nothing", "layer=9"),
])  # fmt: skip
def test_arguments_become_options(message, command, typed):
    assert as_options(message, command_of(app, [command])) == typed


def test_names_are_suggested(capsys):
    assert "Did you mean bert" in refused(capsys, "models", "berrt")
    assert suggested("qqqq", ["bert"]) == ""


def test_a_missing_file_is_noticed_before_the_model_is_loaded(capsys, data, tmp_path):
    wrong = data.replace("data.csv", "dota.csv")
    for arguments in (["compare", "no-such-model", wrong, "--out", str(tmp_path / "run")],
                      ["rank", "no-such-model", wrong], ["audit", "permutation", "no-such-model", wrong],
                      ["audit", "uniform", "no-such-model", data, "--test", wrong]):  # fmt: skip
        said = refused(capsys, *arguments)
        assert "dota.csv is not a file" in said and "Did you mean data.csv?" in said
    said = refused(capsys, "probe", "verb-number", "no-such-model", "--data", str(tmp_path / "no.tsv"))
    assert "no.tsv" in said and "no-such-model" not in said


def test_a_model_of_a_like_name_is_named(capsys, tmp_path):
    tiny("bert").save_pretrained(tmp_path / "my-bert")
    assert "my-bert" in refused(capsys, "explain", str(tmp_path / "my-bort"), "the key")


def test_a_random_head_is_said_and_refused(capsys, tmp_path):
    tiny("base").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    config = tf.AutoConfig.from_pretrained(tmp_path)
    config.architectures = ["BertForSequenceClassification"]
    config.save_pretrained(tmp_path)
    assert run("explain", str(tmp_path), "the key") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Random weights: classifier.weight, classifier.bias" in shown
    assert "%). This is chance: weights behind it were drawn at random. It drew most on" in shown
    assert "Without integrated_gradients-signed: " in shown and shown.endswith("ask for it as it is: --untrained")
    said = refused(capsys, "explain", str(tmp_path), "the key", "--method", "gradient")
    assert "not in the saved model" in said and said.rstrip().endswith("--untrained")
    assert run("explain", str(tmp_path), "the key", "--method", "gradient", "--untrained") == 0
    assert "drawn at random" in capsys.readouterr().err


def test_a_folder_without_tokenizer_is_refused(capsys, tmp_path):
    tiny("bert").save_pretrained(tmp_path)
    assert "no tokenizer in it" in refused(capsys, "explain", str(tmp_path), "the key")


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(folder, tmp_path):
    (tmp_path / "data.csv").write_text("text\n" + "the key to the table\n" * 20_000)
    command = [sys.executable, "-m", "attnflow", "compare", folder, str(tmp_path / "data.csv"), "--methods", "raw",
               "--references", "gradient", "--no-progress", "--out", str(tmp_path / "run")]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list((tmp_path / "run").glob("parts/*")):
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "interrupted" in said and "--resume" in said and "Traceback" not in said
