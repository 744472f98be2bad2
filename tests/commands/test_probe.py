from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from attnflow import AttnFlowError
from attnflow.commands.app import main
from attnflow.commands.probe import app
from attnflow.errors import AttnFlowWarning

run = CliRunner()


@pytest.fixture(scope="session")
def folders(tmp_path_factory, classifier, masked, causal):
    out = {}
    for name, (model, tokenizer) in {"classifier": classifier, "masked": masked, "causal": causal}.items():
        out[name] = str(tmp_path_factory.mktemp(name))
        model.save_pretrained(out[name])
        tokenizer.save_pretrained(out[name])
    return out


def invoke(*arguments):
    result = run.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_verb_number_prints_accuracy_and_layers_and_writes_a_file(folders, tmp_path):
    out = tmp_path / "layers.csv"
    text = invoke("verb-number", folders["classifier"], "--limit", "6", "--out", str(out))
    assert "attractors" in text and "majority" in text and "Rank correlation with blankout, 6 examples" in text
    assert len(pd.read_csv(out)) == 3 * 2 * 2


def test_edges_go_with_every_method(folders, tmp_path):
    out = tmp_path / "layers.csv"
    given = ("-m", "rollout", "-m", "direct:norm", "--edges", "alti", "--limit", "2", "--out", str(out))
    invoke("verb-number", folders["classifier"], *given)
    assert set(pd.read_csv(out)["method"]) == {"rollout:alti", "direct:norm"}
    sentence = ("--text", "The author talked to Sara about [MASK] book.", "--referents", "author,Sara")
    text = invoke("pronouns", folders["masked"], *sentence, "-m", "raw", "--edges", "gradient")
    assert "raw:gradient" in text


def test_verb_number_from_a_file_without_layers(folders, tmp_path):
    (tmp_path / "a.tsv").write_text("prefix\tlabel\nthe key\tsingular\n")
    text = invoke("verb-number", folders["classifier"], "--data", str(tmp_path / "a.tsv"), "--no-layers")
    assert "Rank correlation" not in text


def test_unknown_words_have_a_table_of_their_own(folders, tmp_path):
    (tmp_path / "a.tsv").write_text("prefix\tlabel\nthe key\tsingular\nthe zyzzyva\tsingular\n")
    with pytest.warns(AttnFlowWarning, match="1 of 2 sentences"):
        text = invoke("verb-number", folders["classifier"], "--data", str(tmp_path / "a.tsv"), "--no-layers")
    assert "with <unk>" in text and "without <unk>" in text


def test_pronouns_of_one_sentence(folders, tmp_path):
    out = tmp_path / "layers.json"
    text = invoke(
        "pronouns", folders["masked"], "--text", "The author talked to Sara about [MASK] book.",
        "--referents", "author,Sara", "-m", "raw", "-m", "flow", "--out", str(out),
    )  # fmt: skip
    assert "the model chooses" in text and "agrees" in text
    assert {row["method"] for row in json.loads(out.read_text())} == {"raw", "flow"}


def test_pronouns_of_the_paper_and_of_winobias(folders, tmp_path):
    assert "Points to the chosen referent, 4 examples" in invoke("pronouns", folders["masked"], "-m", "rollout")
    sentence = "1 [The developer] argued with the designer because [she] did not like the design.\n"
    (tmp_path / "anti_stereotyped_type1.txt.dev").write_text(sentence * 5)
    text = invoke("pronouns", folders["masked"], "--data", str(tmp_path), "-m", "raw")
    assert "type1 anti" in text and "5 examples" in text


def test_how_many_examples_cannot_be_asked_is_printed_and_not_written(folders, tmp_path):
    out, data = tmp_path / "layers.csv", tmp_path / "pro_stereotyped_type1.txt.dev"
    sentence = "1 [The developer] argued with the designer because [{}] did not like the design.\n"
    # "himself" is no word of the tokenizer, so that it cannot stand at the mask.
    data.write_text(sentence.format("she") * 5 + sentence.format("himself") * 2)
    text = invoke("pronouns", folders["masked"], "--data", str(data), "-m", "raw", "--out", str(out))
    assert "2 of 7 examples cannot be asked of this model." in text
    assert "cannot be asked" not in out.read_text() and set(pd.read_csv(out)["n"]) == {5}
    assert "cannot be asked" not in invoke("pronouns", folders["masked"], "-m", "raw")


def test_rows_of_gap_that_are_left_out_are_told_on_the_error_stream(folders, tmp_path, capfd):
    head = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\n"
    row = "x\tMary slapped Sara and she talked\tshe\t22\tMary\t0\t{}\tSara\t13\tFALSE\n"
    (tmp_path / "gap.tsv").write_text(head + row.format("TRUE") + row.format("FALSE"))
    with pytest.raises(SystemExit, match="^0$"):
        main(["probe", "pronouns", folders["causal"], "--data", str(tmp_path / "gap.tsv"), "-m", "raw"])
    said = capfd.readouterr()
    assert "attnflow: 1 of 2 rows that were read from" in said.err
    assert "the model chooses" in said.out and "left out" not in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pronouns", "x", "--text", "a", "--data", "b"], "leave one of them out"),
        (["pronouns", "x", "--text", "a [MASK]", "--referents", "a"], "names 1, and two are compared"),
        (["pronouns", "x", "--out", "a.png"], "Use .csv or .json"),
        (["verb-number", "x", "--method", "gradient"], "the table's rows are raw"),
        (["verb-number", "x", "--method", "lime"], "method 'lime' is not known"),
        (["verb-number", "/nowhere.gguf", "--limit", "1"], "nowhere.gguf is not there"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(arguments, message):
    with pytest.raises(AttnFlowError, match=message):
        run.invoke(app, arguments, catch_exceptions=False)


def test_a_file_is_not_replaced(folders, tmp_path):
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(AttnFlowError, match="a.csv"):
        run.invoke(
            app, ["verb-number", folders["classifier"], "--out", str(tmp_path / "a.csv")], catch_exceptions=False
        )


@pytest.fixture
def examples_folder():
    folder = str(Path(__file__).parents[2] / "examples")
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


def test_the_example_scripts_run(examples_folder, classifier, masked, tmp_path, capsys):
    import pronoun_resolution
    import verb_number

    verb_number.main(["--limit", "4"], loaded=classifier)
    assert "flow     with gradient" in capsys.readouterr().out
    pronoun_resolution.main(["model"], loaded=masked)
    assert "The model chooses" in capsys.readouterr().out
    sentence = "1 [The developer] argued with the designer because [she] did not like the design.\n"
    (tmp_path / "pro_stereotyped_type1.txt.dev").write_text(sentence)
    pronoun_resolution.main(["model", "--data", str(tmp_path)], loaded=masked)
    assert "Rate(type1 pro" in capsys.readouterr().out
