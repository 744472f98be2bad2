from __future__ import annotations

import gzip
import json

import pytest

from attnflow import AttnFlowError
from attnflow.probes import data
from attnflow.probes.data import VerbExample, number_of, read


def test_linzen_text_and_gold(tmp_path):
    (tmp_path / "a.text").write_text("the keys to the cabinet are here . <eos>\nWe Are here <eos>\n")
    (tmp_path / "a.gold").write_text("5\tare\tis\t1\n1\tare\tis\t0\n")
    first, second = read(tmp_path / "a.gold")
    assert first == VerbExample("the keys to the cabinet", "plural", "are", "is", "here .", None, 1)
    assert (second.prefix, second.verb, second.label) == ("We", "Are", "plural")


def test_linzen_files_that_do_not_fit_are_errors(tmp_path):
    (tmp_path / "a.text").write_text("the key is here\n")
    with pytest.raises(AttnFlowError, match=r"a\.gold is not there"):
        read(tmp_path / "a.text")
    for mark in ("1\tis\tare\t0", "2\tis\tare\tmany", "2\tis\tare", "x\tis\tare\t0"):
        (tmp_path / "a.gold").write_text(mark + "\n")
        with pytest.raises(AttnFlowError, match="line 1 says"):
            read(tmp_path / "a.text")
    (tmp_path / "a.gold").write_text("")
    with pytest.raises(AttnFlowError, match="1 lines and"):
        read(tmp_path / "a.text")


def test_a_line_with_one_form_twice_has_no_number(tmp_path):
    (tmp_path / "a.text").write_text("versions state that you edit it\nwe are here\nEdit it\n")
    (tmp_path / "a.gold").write_text("4\tedit\tedit\t3\n1\tare\tis\t0\n0\tEdit\tedit\t0\n")
    assert [(e.verb, e.label) for e in read(tmp_path / "a.text")] == [("edit", ""), ("are", "plural"), ("Edit", "")]


HEAD = "pattern constr_id sent_id correct_number form class type prefix n_attr punct freq len_context len_prefix sent"


def tab(*rows):
    return "\n".join("\t".join(row) for row in (HEAD.split(), *rows)) + "\n"


def tab_row(form, which, prefix="the keys to the cabinet", number="plur", sentence="1"):
    sent = f'"{prefix} sat "" here "" . <eos>"'
    return ("L__NOUN", "4", sentence, number, form, which, "generated", prefix, "1", "False", "9", "4", "5", sent)


def test_gulordavas_tables_have_two_rows_per_sentence(tmp_path):
    other = [tab_row("is", "wrong", "the key", "sing", "2"), tab_row("were", "correct", "the key", "plur", "2")]
    rows = [tab_row("are", "correct"), other[0], tab_row("is", "wrong"), other[1]]
    (tmp_path / "generated.tab").write_text(tab(*rows))
    first, second = read(tmp_path / "generated.tab")
    assert first == VerbExample(
        "the keys to the cabinet", "plural", "are", "is", '" here " .', None, 1, "generated"
    )  # fmt: skip
    assert (second.prefix, second.verb, second.other) == ("the key", "were", "is")


def test_gulordavas_tables_that_do_not_fit_are_errors(tmp_path):
    file = tmp_path / "a.tab"
    for text, message in [
        ("prefix\tlabel\n", "lacks the columns class, constr_id"),
        (tab(tab_row("are", "correct")), "one form alone for 1 sentences"),
        (tab(tab_row("are", "correct"), tab_row("is", "correct")), "line 3: the class of the two forms is 'correct'"),
        (tab(tab_row("are", "correct", number="dual"), tab_row("is", "wrong")), "the number 'dual'"),
        (tab(tab_row("are", "correct"), tab_row("is", "wrong")).replace("\t1\tFalse", "\tx\tFalse"), "n_attr 'x'"),
    ]:
        file.write_text(text)
        with pytest.raises(AttnFlowError, match=message):
            read(file)


def test_gulordavas_gold_names_forms_that_are_not_in_the_text(tmp_path):
    mark = "L!N\t1\t0\t2\tVERB\tMood=Ind|Number=Sing\tis\tare\tbe\t1\tNOUN\tThe thing is\n"
    (tmp_path / "g.text").write_text("The thing sits there . <eos>\n")
    (tmp_path / "g.gold").write_text(mark)
    (one,) = read(tmp_path / "g.text")
    assert one == VerbExample("The thing", "singular", "is", "are", "there .", kind="original")
    (tmp_path / "g.gold").write_text(mark.replace("Number=Sing", "Tense=Pres"))
    with pytest.raises(AttnFlowError, match="the features 'Mood=Ind|Tense=Pres'"):
        read(tmp_path / "g.gold")


def test_tables_plain_and_gzipped(tmp_path):
    head = "prefix\tlabel\tverb\tother_form\tsubject_index\tattractors\trelative_clause\n"
    text = head + 'the "key\tsingular\tis\tare\t1\t\t1\n'
    (tmp_path / "a.tsv").write_text(text)
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as file:
        file.write(text)
    (one,), (two,) = read(tmp_path / "a.tsv"), read(tmp_path / "b.tsv.gz")
    assert one == two == VerbExample('the "key', "singular", "is", "are", "", 1, None, "relative")


def test_linzens_own_table_counts_from_one(tmp_path):
    head = "sentence\tverb_pos\tverb_index\tsubj_index\tn_diff_intervening\n"
    (tmp_path / "agr.tsv").write_text(head + "the keys to the NN are here\tVBP\t6\t2\t1\n")
    (one,) = read(tmp_path / "agr.tsv")
    assert one == VerbExample("the keys to the NN", "plural", "are", "", "here", 1, 1)


@pytest.mark.parametrize(("tag", "verb", "subject", "said"), [
    ("VBD", "6", "2", "verb_pos is 'VBD', and VBZ .singular. or VBP .plural. is needed"),
    ("", "6", "2", "verb_pos is ''"),
    ("VBP", "0", "2", "verb_index is 0, and the sentence has the words 1 to 7"),
    ("VBP", "-1", "2", "verb_index is -1"),
    ("VBP", "8", "2", "verb_index is 8"),
    ("VBP", "x", "2", "'x'"),
    ("VBP", "6", "0", "subj_index is 0"),
])  # fmt: skip
def test_linzens_own_table_that_does_not_fit_is_refused_with_its_row(tmp_path, tag, verb, subject, said):
    head = "sentence\tverb_pos\tverb_index\tsubj_index\n"
    sentence = "the keys to the NN are here"
    rows = f"{sentence}\tVBP\t6\t2\n{sentence}\t{tag}\t{verb}\t{subject}\n"
    (tmp_path / "agr.tsv").write_text(head + rows)
    with pytest.raises(AttnFlowError, match=rf"Row 1 \(from 0\) of .*agr.tsv is no verb-number example .*{said}"):
        read(tmp_path / "agr.tsv")


def flags(one, two):
    return {"one_prefix_method": one, "two_prefix_method": two}


def test_blimp_pairs_that_differ_in_the_verb_alone(tmp_path):
    rows = [
        {"sentence_good": "The box of pens doesn't open.", "sentence_bad": "The box of pens don't open.", "UID": "x"},
        {"sentence_good": "The dress crumples.", "sentence_bad": "The dresses crumples.", **flags(False, False)},
        {"sentence_good": "The boys run.", "sentence_bad": "The boys runs.", "one_prefix_method": True},
        {"sentence_good": "One two.", "sentence_bad": "One two three."},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, second = read(tmp_path / "a.jsonl")
    assert first == VerbExample("The box of pens", "singular", "doesn't", "don't", "open.", kind="x")
    assert second == VerbExample("The boys", "plural", "run", "runs", ".")


def test_blimps_two_prefix_sets_compare_subjects(tmp_path):
    pair = {"sentence_good": "The students pass a test.", "sentence_bad": "The student pass a test."}
    said = {**flags(False, True), "UID": "x_2"}
    last = {"sentence_good": "They see the cat.", "sentence_bad": "They see the cats."}
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({**row, **said}) for row in (pair, last)))
    (one,) = read(tmp_path / "a.jsonl")
    # Behind the last word of the other pair there is no verb, so it is left out.
    assert one == VerbExample("The students", "plural", "pass", "", "a test.", 1, kind="x_2", against="The student")
    singular = {"sentence_good": "A cat isn't here.", "sentence_bad": "A cats isn't here.", **said}
    assert next(iter(data.from_rows([singular]))).label == "singular"


DOGS = {"sentence_good": "The dogs bark.", "sentence_bad": "The dog bark."}
AT_TWO = VerbExample("The dogs", "plural", "bark", "", ".", 1, against="The dog")


@pytest.mark.parametrize("said", [("False", "True"), ("false", "TRUE"), ("", "true")])
def test_a_table_of_blimp_has_its_flags_as_text(tmp_path, said):
    row = {**DOGS, **flags(*said)}
    (tmp_path / "a.tsv").write_text("\t".join(row) + "\n" + "\t".join(row.values()) + "\n")
    assert read(tmp_path / "a.tsv") == [AT_TWO]
    assert next(iter(data.from_rows([{**DOGS, **flags("True", "False")}]))).verb == "dogs"
    assert list(data.from_rows([{**DOGS, **flags("False", "False")}])) == []


def test_without_flags_the_name_of_a_set_tells_what_is_compared():
    (two,) = data.from_rows([{**DOGS, "UID": "regular_plural_subject_verb_agreement_2"}])
    assert (two.prefix, two.verb, two.against, two.subject) == ("The dogs", "bark", "The dog", 1)
    pair = {"sentence_good": "Paula hugs Ann.", "sentence_bad": "Paula hug Ann."}
    (one,) = data.from_rows([{**pair, "UID": "regular_plural_subject_verb_agreement_1"}])
    assert (one.prefix, one.verb, one.other, one.label) == ("Paula", "hugs", "hug", "singular")


@pytest.mark.parametrize("missing", [{}, flags("", ""), flags(None, None), {"one_prefix_method": False}, {"UID": "x"}])
def test_a_pair_that_may_be_either_is_refused(missing):
    rows = [{"sentence_good": "The dogs are.", "sentence_bad": "The dogs is."}, {**DOGS, **missing}]
    said = (
        r"Row 1 \(from 0\) of the rows is no verb-number example \('dogs' and 'dog' may be two forms of a verb or two "
        "subjects, .* add the columns one_prefix_method and two_prefix_method"
    )
    with pytest.raises(AttnFlowError, match=said):
        list(data.from_rows(rows))


def test_a_flag_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(AttnFlowError, match="Row 0 .*two_prefix_method is 'no', and true or false is needed"):
        list(data.from_rows([{**DOGS, **flags("False", "no")}]))


def test_other_sets_of_blimp_are_another_question():
    row = {"sentence_good": "a this.", "sentence_bad": "a those.", "linguistics_term": "determiner_noun_agreement"}
    with pytest.raises(AttnFlowError, match="holds pairs of determiner_noun_agreement"):
        list(data.from_rows([row]))


def test_names_go_to_datasets(monkeypatch):
    import datasets

    asked = []

    def fake(name, config, split, trust_remote_code):
        assert trust_remote_code is False
        asked.append((name, config, split))
        return [{"sentence_good": "The boys run.", "sentence_bad": "The boys runs.", **flags(True, False)}]

    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert len(read("nyu-mll/blimp:agreement_1")) == 1
    assert len(read("own")) == 1
    assert asked == [("nyu-mll/blimp", "agreement_1", "train"), ("own", None, "train")]


def test_a_data_set_that_cannot_be_loaded_says_why(monkeypatch):
    import datasets

    def fail(*_, **__):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(AttnFlowError, match="no network Give a file"):
        read("nyu-mll/blimp")


def test_other_files_are_errors(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.tsv").write_text("text\tclass\nx\t1\n")
    for source, message in [
        (tmp_path / "a.txt", "is a .txt file"), (tmp_path, "is a folder"), (tmp_path / "b.csv", "is not there"),
        (tmp_path / "b.tsv", "is not there"), (tmp_path / "a.tsv", "has the columns text, class"),
    ]:  # fmt: skip
        with pytest.raises(AttnFlowError, match=message):
            read(source)


def test_limit_reads_no_more_than_asked(tmp_path):
    (tmp_path / "a.tsv").write_text("prefix\tlabel\n" + "the key\tsingular\n" * 9)
    assert len(read(tmp_path / "a.tsv", 4)) == 4


@pytest.mark.parametrize(
    ("verb", "other", "number"),
    [
        ("is", "are", "singular"),
        ("were", "was", "plural"),
        ("passes", "pass", "singular"),
        ("do", "does", "plural"),
        ("lie", "Lie", ""),
    ],
)
def test_number_of_a_verb(verb, other, number):
    assert number_of(verb, other) == number


def test_both_forms_of_our_test_set_agree(data):
    linzen = read(data / "linzen-test" / "subj_agr_filtered.text")
    table = read(data / "verb-number" / "test.tsv.gz")
    assert len(linzen) == len(table) == 7489
    assert [e.verb for e in linzen if not e.label] == ["wherein", "lie", "edit", "en"]
    # Of the others four rows differ: sentences whose gold position names another verb than the table's.
    assert sum(a.label == b.label and a.verb == b.verb for a, b in zip(linzen, table, strict=True)) == 7481
    assert {e.attractors for e in linzen} == {0, 1, 2, 3, 4}


def test_rows_without_known_columns_name_them():
    with pytest.raises(AttnFlowError, match="the rows has the columns a"):
        list(data.from_rows([{"a": 1}]))


def test_a_new_form_of_file_is_a_function_and_a_line(tmp_path, monkeypatch):
    def read_words(path):
        return [data.VerbExample(line, "plural") for line in path.read_text().splitlines()]

    monkeypatch.setitem(data.READERS, ".words", read_words)
    (tmp_path / "mine.words").write_text("the keys\nthe men\n")
    assert [e.prefix for e in read(tmp_path / "mine.words", 1)] == ["the keys"]
    assert data.endings().endswith(".jsonl or .words")


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.jsonl", b'{"prefix": "a", "label": "plural"}\n{bad\n', "line 2 is not JSON"),
    ("a.tsv", b"prefix\tlabel\tattractors\nthe key\tsingular\tx\n", r"Row 0 .*a.tsv is no verb-number example .*'x'"),
    ("a.tsv", b"prefix\tlabel\nthe key\t\n", "Row 0 .*a.tsv .*the label is '', and singular or plural is needed"),
    ("a.tsv", b"sentence\tverb_pos\tverb_index\nthe key is\tVBZ\t9\n", "Row 0 .*a.tsv is no verb-number example"),
    ("a.tsv", b"prefix\tlabel\n\xff\xfe\tsingular\n", "a.tsv is not UTF-8"),
    ("a.tsv.gz", b"no", "Cannot read .*a.tsv.gz"),
])  # fmt: skip
def test_damaged_files_are_refused_with_the_place(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AttnFlowError, match=said):
        data.read(tmp_path / name)
