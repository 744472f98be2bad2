"""The benchmark of the debate: its readers, its page, and all of it at toy size."""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("audit", "audit_data", "audit_page", "report", "train_sst2"):
        sys.modules.pop(name, None)


def test_readers(load, tmp_path):
    data = load("audit_data")
    for name in ("sst", "agnews", "imdb"):
        (tmp_path / name).mkdir()
    tree = "(3 (2 It) (4 (2 's) (3 (2 a) (4 (3 lovely) (2 (2 21st) (2 (2 film) (2 .)))))))\n(2 (2 no) (2 one))\n"
    for name in ("train", "dev", "test"):
        (tmp_path / "sst" / f"{name}.txt").write_text(tree)
    sst = data.read("sst", tmp_path, data.Sizes())
    assert sst.train == [("it 's a lovely qqq film .", 1)]
    news = "".join(f"Oil rose {i} % \\today.\t{c}\n" for i in range(10) for c in ("World", "Business", "Sports"))
    for name in ("dev", "test"):
        (tmp_path / "agnews" / f"{name}.tsv").write_text(news)
    agnews = data.read("agnews", tmp_path, data.Sizes())
    assert (len(agnews.train), len(agnews.valid), len(agnews.test)) == (17, 3, 20)
    assert agnews.test[:2] == [("oil rose qqq % today .", 0), ("oil rose qqq % today .", 1)]
    for name in ("train", "test"):
        with gzip.open(tmp_path / "imdb" / f"{name}.tsv.gz", "wt") as file:
            file.write("".join(f"Don't<br />go! {'x ' * (i % 5)}\t{i % 2}\n" for i in range(20)))
    imdb = data.read("imdb", tmp_path, data.Sizes(4, 2, 3, 10))
    assert [len(part) for part in (imdb.train, imdb.valid, imdb.test)] == [4, 2, 3]
    assert imdb.test[0][0].startswith("don't go !") and all(len(t.split()) <= 10 for t, _ in imdb.test)
    words = sst.words()
    assert words.convert_ids_to_tokens(words("it 's new .")["input_ids"]) == [
        "<cls>",
        "it",
        "'s",
        "<unk>",
        ".",
        "<eos>",
    ]
    assert sst.splits(words).edges


def test_words_have_the_same_numbers_in_every_process():
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); from audit_data import Data\n"
        "rows = [('one two three four five six', 0), ('seven eight one nine', 1)]\n"
        "print(sorted(Data('made', rows, rows, rows, 1).words().get_vocab().items()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(seen) == 1


def test_word_vectors_are_read_and_the_rest_begins_at_random(load, tmp_path, capsys):
    data = load("audit_data")
    words = data.Data("made", [("good film", 1)], [], [], 1).words()
    lines, packed = tmp_path / "glove.txt", tmp_path / "wink.json"
    lines.write_text("2 3\ngood 1 2 3\nother 4 5 6\n")
    packed.write_text('{"dimensions": 3, "vectors": {"good": [1, 2, 3, 3.7, 0], "other": [4, 5, 6, 8.8, 1]}}')
    one, two = (data.word_vectors(path, words) for path in (lines, packed))
    good, film = words.convert_tokens_to_ids(["good", "film"])
    assert one.equal(two) and one.shape == (len(words), 3)
    assert one[good].tolist() == [1, 2, 3] and not one[words.pad_token_id].any() and one[film].any()
    assert f"vectors for 1 of {len(words)} words" in capsys.readouterr().out


def test_vectors_dealt_at_random_are_the_same_vectors(load):
    import torch

    data = load("audit_data")
    given = torch.arange(40.0).reshape(10, 4)
    one, again, other = (data.dealt(given, seed) for seed in (1, 1, 2))
    assert one.equal(again) and not one.equal(other) and not one.equal(given)
    assert sorted(one[:, 0].tolist()) == given[:, 0].tolist() and one[0].equal(given[0])


def test_a_page_keeps_what_is_around_the_marks_and_figures_only_of_what_was_run(load, tmp_path):
    import pandas as pd

    from attnflow.audit import Finding

    page, data = load("audit_page"), load("audit_data")
    table = pd.DataFrame(
        {"attention": ["trained", "uniform"], "F1": [0.5, 0.25], "F1 std": [0.01, 0.02], "accuracy": [0.75, 0.5]}
    )
    claim = {"uniform: trained against uniform attention": 0.01}
    settings = {"seed": 0, "F1 of the base": 0.55}
    found = Finding("uniform", table, pd.DataFrame({"seed": [1, 2]}), "So so.", ("One.",), settings, tests=claim)
    page.keep(tmp_path / "uniform.json", found, 1.5, 1.2)
    again = page.kept(tmp_path / "uniform.json")
    assert again.table.equals(table) and again.settings["seconds"] == 1.5 and again.tests == claim
    assert page.kept(tmp_path / "seeds.json") is None
    made = data.read("sst", None, data.Sizes(4, 2, 2))
    target = tmp_path / "debate.md"
    target.write_text("# Page\n\n<!-- audit -->\nold\n<!-- /audit -->\n\nbelow\n")
    for _ in range(2):
        page.write(target, "lstm-sst", {"uniform": again}, made, tmp_path)
    text, rows = target.read_text(), (tmp_path / "data" / "debate.csv").read_text()
    assert (
        "| BiLSTM, SST |" in text
        and "lstm,sst,uniform,trained,F1,0.5000," in rows
        and "lstm,sst,uniform,the base,F1,0.5500," in rows
        and "lstm,sst,uniform,uniform,std of F1 over seeds,0.0200," in rows
        and (tmp_path / "images" / "debate.svg").is_file()
    )
    assert text.startswith("# Page") and "below" in text and "\nold" not in text
    assert text.count("](images/debate.svg)") == 1
    assert rows.count("lstm,sst,uniform,uniform,F1,0.2500,0.822") == 1 and "guide" not in rows
    kept = {name: (tmp_path / "data" / f"debate-{name}.csv").read_text() for name in ("verdicts", "tests", "seconds")}
    assert "lstm,sst,uniform,So so." in kept["verdicts"] and "lstm,sst,uniform,2,1" in kept["seconds"]
    assert "lstm,sst,uniform,trained against uniform attention,texts and 2 seeds,0.25,0.01,0.01" in kept["tests"]
    assert "trained attention is better than uniform | texts and 2 seeds | +0.25 | 0.01 | 0.01 |" in text


def test_all_tests_of_the_page_are_corrected_together(load):
    import pandas as pd

    from attnflow.audit import Finding

    page = load("audit_page")
    guides = pd.DataFrame({"guide": ["uniform", "raw", "flow"], "accuracy": [0.8, 0.7, 0.9]})
    seeds = pd.DataFrame({"seed": [0, 1, 2, 3, 4]})
    peaks = pd.DataFrame({"max_attention": [0.1, 0.2, 0.3], "change": [0.3, 0.2, 0.1], "class": "a"})
    p = {"guide: raw against uniform": 0.001, "guide: flow against uniform": 0.5, "guide: flow against raw": 0.02}
    found = {
        "guide": Finding("guide", guides, seeds, "", (), tests=p),
        "permutation": Finding("p", peaks, peaks, "", (), tests={"permutation: largest weight and change": 0.01}),
    }
    made = page.tests_of("transformer-sst", found)
    assert made["size"].tolist() == ["-0.100", "0.100", "0.200", "-1.000"]
    assert made["test"].tolist() == ["texts and 5 seeds"] * 3 + ["Spearman within classes"]
    tests = made.assign(p=made["p"].astype(float), size=made["size"].astype(float))
    tests = page.corrected(tests)
    assert tests["corrected"].tolist() == pytest.approx([0.004, 0.03, 0.04, 0.5])
    said, guided, shuffled = page.test_table(tests).split("\n\n")
    assert said == "Of 4 tests 3 hold after Holm's correction for all of them together."
    assert [line.split(" | ")[0] for line in (guided + "\n" + shuffled).splitlines() if ":" in line] == [
        "| transformer, SST: raw guides worse than uniform",
        "| transformer, SST: flow guides better than raw",
        "| transformer, SST: the larger the largest weight, the less shuffling changes",
    ]


def test_recorded_imposters_are_judged_beside_their_controls(load, tmp_path):
    import pandas as pd

    page = load("audit_page")

    def rows(data, seeds):
        given = [
            ("uniform", "the base", "F1", 0.9), ("imposter", "λ 0", "TVD", 0.03), ("imposter", "λ 0", "JSD", 0.1),
            ("imposter", "λ 0.01", "F1", 0.8), ("imposter", "λ 0.01", "TVD", 0.06), ("imposter", "λ 0.01", "JSD", 0.6),
            *([("seeds", "other seeds", "mean TVD", seeds)] * (seeds is not None)),
            *([("seeds", "other seeds", "highest TVD", 0.08)] * (seeds == 0.07)),
        ]  # fmt: skip
        return [["lstm", data, *one, None] for one in given]

    found = pd.DataFrame(rows("sst", 0.07) + rows("imdb", 0.05) + rows("agnews", None), columns=page.COLUMNS)
    lines = page.imposter_table(found).splitlines()[2:]
    assert lines == [
        "| BiLSTM, SST | 0.01 | 0.600 | 0.060 | 0.030 | 0.070 | 0.080 | no |",
        "| BiLSTM, IMDB | 0.01 | 0.600 | 0.060 | 0.030 | 0.050 |  | yes |",
        "| BiLSTM, AG News | 0.01 | 0.600 | 0.060 | 0.030 |  |  | yes |",
    ]
    file = tmp_path / "verdicts.csv"
    file.write_text(
        "model,data,experiment,verdict\nlstm,sst,imposter,old\nlstm,sst,seeds,stays\nlstm,imdb,imposter,old\n"
    )
    page.judge(file, found)
    sst, seeds, imdb = pd.read_csv(file)["verdict"]
    assert "as much like the base as the furthest of other seeds (0.080; other seeds 0.070; λ = 0 0.030)" in sst
    assert "though less so than λ = 0: at λ = 0.01" in sst
    assert seeds == "stays" and imdb.startswith("To attend elsewhere costs agreement")


def test_the_short_table_is_in_units_of_what_seeds_differ_by(load):
    import pandas as pd

    page = load("audit_page")
    given = [
        ("correlation", page.RAW_PRODUCT, "mean τ", 0.3), ("correlation", page.RAW_LENGTH, "mean τ", 0.6),
        ("uniform", "trained", "F1", 0.80), ("uniform", "uniform", "F1", 0.83),
        ("seeds", "all seeds", "std of F1", 0.02),
        ("seeds", "other seeds", "mean JSD", 0.05), ("seeds", "other seeds", "mean TVD", 0.04),
        ("seeds", "uniform weights", "mean JSD", 0.2), ("adversary", "furthest weights", "mean JSD", 0.5),
        ("permutation", "change of the output", "median TVD", 0.02),
        ("imposter", "λ 0", "JSD", 0.1), ("imposter", "λ 0", "TVD", 0.01),
        ("imposter", "λ 0.01", "JSD", 0.6), ("imposter", "λ 0.01", "TVD", 0.06),
    ]  # fmt: skip
    rows = [["lstm", "sst", *one, None] for one in given]
    rows.append(["minilm", "sst", "correlation", page.RAW_LOO, "mean τ", 0.25, None])
    head, _, bilstm, minilm = page.short_table(pd.DataFrame(rows, columns=page.COLUMNS)).splitlines()
    assert head.split(" | ")[4:] == [
        "F1, trained − uniform", "uniform weights, JSD", "adversary, JSD", "shuffled, TVD", "imposter, TVD |",
    ]  # fmt: skip
    assert bilstm == "| BiLSTM, SST | 0.600 | 0.300 |  | −1.5 sd | 4.0 × | 10.0 × | 0.5 × | 1.5 × |"
    assert minilm == "| MiniLM, SST |  |  | 0.250 |  |  |  |  |  |"
    alike = [[*row[:5], 0.0 if row[2] == "seeds" else row[5], row[6]] for row in rows]
    assert page.short_table(pd.DataFrame(alike, columns=page.COLUMNS)).splitlines()[2].endswith("|  |  |  |  |  |  |")


def test_seeds_give_what_the_units_are(load):
    import pandas as pd

    from attnflow.audit import Finding

    page = load("audit_page")
    records = pd.DataFrame(
        {"instance": [0, 1, 0, 1], "seed": [1, 1, 2, 2], "uniform": [0.2, 0.4] * 2, "jsd": [0.1, 0.1, 0.2, 0.4],
         "tvd": [0.0, 0.1, 0.2, 0.3]}
    )  # fmt: skip
    table = pd.DataFrame({"seed": ["0 (base)", "1", "2"], "F1": [0.8, 0.9, 0.7]})
    found = {(a, b): c for a, b, c in page.numbers("seeds", Finding("seeds", table, records, "", ()))}
    assert found == pytest.approx({
        ("other seeds", "lowest JSD"): 0.1, ("other seeds", "highest JSD"): 0.3, ("other seeds", "mean JSD"): 0.2,
        ("uniform weights", "mean JSD"): 0.3, ("all seeds", "std of F1"): 0.1, ("other seeds", "mean TVD"): 0.15,
        ("other seeds", "highest TVD"): 0.25,
    })  # fmt: skip


def test_guides_are_shown_with_their_spread(load):
    import pandas as pd

    page = load("audit_page")
    rows = [
        ["transformer", data, "guide", guide, statistic, value, None]
        for data, more in (("sst", 0.0), ("imdb", 0.1)) for guide in page.GUIDES
        for statistic, value in (("F1", 0.7 + more), ("std of F1 over seeds", 0.01))
    ]  # fmt: skip
    lines = page.guide_table(pd.DataFrame(rows, columns=page.COLUMNS)).splitlines()
    assert lines[0] == "| guide | SST | IMDB |" and lines[-1] == "| flow | 0.700 ± 0.010 | 0.800 ± 0.010 |"


def test_verdicts_stand_beside_what_holds_on_the_whole_page(load, tmp_path):
    import pandas as pd

    page = load("audit_page")
    key = ["transformer", "sst", "guide"]
    tests = pd.DataFrame(
        [[*key, "raw against uniform", 0.15], [*key, "flow against raw", 0.03]],
        columns=["model", "data", "experiment", "claim", "corrected"],
    )
    file = tmp_path / "verdicts.csv"
    file.write_text("model,data,experiment,verdict\ntransformer,sst,guide,raw is worse\ntransformer,sst,seeds,near\n")
    for _ in range(2):  # and once more over its own file
        page.holding(file, tests)
        found = pd.read_csv(file, keep_default_na=False)
        assert found["verdict"].tolist() == ["raw is worse", "near"]
        assert found["corrected"].tolist() == [
            "raw against uniform: is not shown (p = 0.15); flow against raw: holds (p = 0.03)", "",
        ]  # fmt: skip


def test_the_spread_over_texts_is_kept_and_drawn(load, tmp_path):
    import pandas as pd

    from attnflow.audit import Finding

    page = load("audit_page")
    raw, both = "attention – ‖gradient‖", "‖gradient‖ – leave-one-out"
    pairs = [(0, raw, "raw", 0.1), (0, raw, "flow", 0.9), (0, both, None, 0.3), (250, raw, "raw", 0.2)]
    tables = {
        "correlation": pd.DataFrame(pairs, columns=["number", "pair", "method", "tau"]),
        "permutation": pd.DataFrame({"number": [0], "class": ["A"], "max_attention": [0.5], "change": [0.12345]}),
        "seeds": pd.DataFrame({"instance": [0, 1], "seed": [1, 1], "max_attention": [0.5, 0.6], "jsd": [0.01, 0.02]}),
    }
    found = {n: Finding(n, pd.DataFrame(), records, "", ()) for n, records in tables.items()}
    rows = page.records_of("lstm-sst", found)
    assert rows[["experiment", "group", "value"]].to_numpy().tolist() == [
        ["correlation", raw, 0.1], ["correlation", both, 0.3], ["permutation", "A", 0.1234],
        ["seeds", 1, 0.01], ["seeds", 1, 0.02],
    ]  # fmt: skip
    histogram, scatter, violins = page.spreads(rows).axes
    assert len(histogram.patches) == 2 and scatter.collections[0].get_offsets().tolist() == [[0.5, 0.1234]]
    assert [tick.get_text() for tick in violins.get_xticklabels()] == ["1"]
    assert not len(page.records_of("lstm-sst", {}))


def test_a_new_run_replaces_its_own_rows_alone(load, tmp_path):
    import pandas as pd

    from attnflow.audit import Finding

    page, data = load("audit_page"), load("audit_data")
    shutil.copytree(FOLDER.parent / "docs" / "data", tmp_path / "data")
    (tmp_path / "debate.md").write_text("# Page\n")
    old = (tmp_path / "data" / "debate.csv").read_text().splitlines()
    table = pd.DataFrame({"attention": ["trained", "uniform"], "F1": [0.5, 0.25], "F1 std": [0.01, 0.02]})
    found = {"uniform": Finding("uniform", table, pd.DataFrame({"a": [1]}), "So so.", (), {"F1 of the base": 0.5})}
    page.write(tmp_path / "debate.md", "lstm-imdb", found, data.read("sst", None, data.Sizes(4, 2, 2)), tmp_path)
    new = (tmp_path / "data" / "debate.csv").read_text().splitlines()
    changed = set(new) - set(old)
    assert changed == {
        "lstm,imdb,data,train,texts,4,", "lstm,imdb,data,valid,texts,2,", "lstm,imdb,data,test,texts,2,",
        "lstm,imdb,uniform,trained,F1,0.5000,0.88 / 0.902", "lstm,imdb,uniform,uniform,F1,0.2500,0.879",
        "lstm,imdb,uniform,trained,std of F1 over seeds,0.0100,",
        "lstm,imdb,uniform,uniform,std of F1 over seeds,0.0200,", "lstm,imdb,uniform,the base,F1,0.5000,",
    }  # fmt: skip
    assert len(new) == len(old)


@pytest.mark.slow
def test_all_parts_at_toy_size(load, tmp_path, capsys):
    bench = load("audit")
    page = tmp_path / "debate.md"
    arguments = ["--quick", "--work", str(tmp_path / "work"), "--page", str(page)]
    bench.main(arguments)
    first = capsys.readouterr().out
    assert "transformer-agnews imposter" in first
    text, rows = page.read_text(), (tmp_path / "data" / "debate.csv").read_text()
    assert "| transformer, AG News |" in text
    assert "transformer,sst,guide,flow,F1," in rows and "lstm,imdb,imposter,λ 0.01,JSD," in rows
    bench.main(arguments)
    assert "imposter" not in capsys.readouterr().out and page.read_text() == text


def test_a_run_on_fewer_texts_leaves_the_docs_as_they_are(load, tmp_path, capsys):
    bench, own = load("audit"), ["--work", "w", "--data", "d"]
    assert bench.arguments([*own, "--part", "lstm-imdb", "--tokens", "150"]).writes
    assert not bench.arguments([*own, "--part", "lstm-imdb", "--tokens", "149"]).writes
    assert not bench.arguments([*own, "--part", "lstm-sst", "--train", "9000"]).writes  # its own limit is none
    assert not bench.arguments(["--quick"]).writes
    assert not bench.arguments(["--quick", "--page", str(FOLDER.parent / "docs" / "debate.md")]).writes
    assert bench.arguments([*own, "--train", "9", "--page", str(tmp_path / "debate.md")]).writes
    said = "--tokens 149 is a limit below that of the recorded run on imdb: debate.md stays as it is."
    assert said in capsys.readouterr().out


def test_the_docs_page_is_drawn_from_its_csv_file(load, tmp_path):
    bench, docs = load("audit"), FOLDER.parent / "docs"
    shutil.copytree(docs / "data", tmp_path / "data")
    shutil.copyfile(docs / "debate.md", tmp_path / "debate.md")
    bench.main(["--redraw", "--page", str(tmp_path / "debate.md")])
    assert (tmp_path / "debate.md").read_text() == (docs / "debate.md").read_text()
    recorded = load("audit_page").read(docs)
    assert set(recorded["model"] + "-" + recorded["data"]) == set(bench.PARTS)
    with pytest.raises(SystemExit):
        bench.main(["--work", "somewhere"])
    with pytest.raises(SystemExit):
        bench.main([])


def test_the_recorded_numbers_are_what_a_run_would_name(load):
    page, docs = load("audit_page"), FOLDER.parent / "docs"
    rows = page.read(docs)
    rows = rows[(rows["model"] == "lstm") & rows["published"].notna()]
    for name, published in page.PUBLISHED.items():
        here = rows[rows["data"] == name]
        keys = here[["experiment", "quantity", "statistic"]].itertuples(index=False, name=None)
        assert dict(zip(keys, here["published"], strict=True)) == published
