from __future__ import annotations

from collections import Counter

import pytest

from attnflow.errors import AttnFlowWarning, InputError
from attnflow.probes.pronoun_data import PAPER, PronounExample, read, read_winobias

WINOGENDER = (
    "sentid\tsentence\n"
    "technician.customer.1.female.txt\tThe technician told the customer that she could pay with cash.\n"
    "technician.someone.0.male.txt\tThe technician told someone that he had repaired it.\n"
    "nurse.patient.1.neutral.txt\tA patient asked the nurse whether their results were in.\n"
)
GAP = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    'test-1\tAnn "Bo" Lee met Eve Ray after she won.\tshe\t31\tAnn "Bo" Lee\t0\tFALSE\tEve Ray\t17\tTRUE\tu\n'
    "test-2\tBob met Jim, his son, and Al.\this\t13\tJim\t8\tTRUE\tBob\t0\tFALSE\tu\n"
    "test-3\tBob met Jim and he left.\the\t16\tBob\t0\tFALSE\tJim\t8\tFALSE\tu\n"
)


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_winogender(tmp_path):
    found = read(written(tmp_path / "all_sentences.tsv", WINOGENDER))
    assert [e.names for e in found] == [("technician", "customer"), ("technician", "someone"), ("patient", "nurse")]
    assert [e.gold for e in found] == [1, 0, 0], "the participant may stand first"
    assert [e.text[slice(*e.pronoun)] for e in found] == ["she", "he", "their"]
    assert [e.group for e in found] == ["female", "male", "neutral"]
    assert len(read(tmp_path / "all_sentences.tsv", 2)) == 2


def test_winogenders_someone_also_begins_a_sentence(tmp_path):
    row = "accountant.someone.1.male.txt\tSomeone met with the accountant to get help filing his taxes.\n"
    (found,) = read(written(tmp_path / "all_sentences.tsv", f"sentid\tsentence\n{row}"))
    assert found.names == ("Someone", "accountant") and found.gold == 0 and found.text[slice(*found.pronoun)] == "his"


def test_gap_keeps_whole_names_and_leaves_out_what_is_neither(tmp_path):
    with pytest.warns(AttnFlowWarning, match=r"1 of 3 rows that were read from .*gap-test.tsv are left out: neither"):
        found = read(written(tmp_path / "gap-test.tsv", GAP))
    assert [e.names for e in found] == [('Ann "Bo" Lee', "Eve Ray"), ("Bob", "Jim")]
    assert [e.gold for e in found] == [1, 1] and [e.group for e in found] == ["female", "male"]


def test_gap_is_read_alike_in_small_letters(tmp_path):
    answered = GAP.replace("0\tFALSE\tJim", "0\tTRUE\tJim")
    capitals = read(written(tmp_path / "a.tsv", answered))
    assert len(capitals) == 3
    for way in (str.lower, str.title):
        text = answered.replace("TRUE", way("TRUE")).replace("FALSE", way("FALSE"))
        assert read(written(tmp_path / "b.tsv", text)) == capitals


@pytest.mark.parametrize(("limit", "kept", "said"), [
    (1, 1, "2 of 3"), (2, 2, "3 of 5"), (None, 2, "4 of 6"),
])  # fmt: skip
def test_the_rows_that_were_read_until_the_limit_are_counted(tmp_path, limit, kept, said):
    head, one, two, neither = GAP.splitlines(keepends=True)
    both = one.replace("FALSE", "TRUE")
    file = written(tmp_path / "gap.tsv", "".join([head, neither, both, one, neither, two, both]))
    with pytest.warns(AttnFlowWarning, match=f"{said} rows") as told:
        assert len(read(file, limit)) == kept
    assert told[0].filename == __file__


def test_where_no_row_is_left_out_nothing_is_said(tmp_path, recwarn):
    assert len(read(written(tmp_path / "gap.tsv", GAP), 2)) == 2
    assert len(read(written(tmp_path / "all_sentences.tsv", WINOGENDER))) == 3
    assert not recwarn.list


@pytest.mark.parametrize(("text", "said"), [
    (GAP.splitlines()[0], "x.tsv has 0 rows: give at least one"),
    ("a\tb\n1\t2\n", "has the columns a, b; pronoun examples have sentid and sentence"),
    ("sentid\tsentence\nx.1\tHe left.\n", "line 2 has the sentid 'x.1'"),
    ("sentid\tsentence\na.b.0.male.txt\tThe a saw the b.\n", "line 2 has no pronoun that is known"),
    ("sentid\tsentence\na.b.0.male.txt\tThe c saw the b and he left.\n", "line 2 has 'a' in its sentid, and"),
    (GAP.replace("\tFALSE\tu", "\tno\tu"), "line 3 has 'no' in the column B-coref, and TRUE or FALSE is needed"),
    (GAP.replace("0\tFALSE\t", "0\tyes\t", 1), "line 2 has 'yes' in the column A-coref"),
    (GAP.replace("0\tFALSE\t", "0\t\t", 1), "line 2 has '' in the column A-coref"),
    (GAP.replace("\t31\t", "\t30\t"), "line 2 says that 'she' stands at 30, and the text has ' sh' there"),
])  # fmt: skip
def test_what_does_not_fit_is_said_with_its_line(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read(written(tmp_path / "x.tsv", text))


def test_winobias_goes_its_own_way(tmp_path):
    with pytest.raises(InputError, match="holds no WinoBias files"):
        read(tmp_path)


def lines(path, name, *sentences):
    (path / name).write_text("".join(f"{i} {s}\n" for i, s in enumerate(sentences, 1)))


def test_a_line_gives_both_referents_the_pronoun_and_the_forms(tmp_path):
    lines(tmp_path, "anti_stereotyped_type1.txt.dev", "[The developer] argued with the designer because [she] left.")
    (e,) = read_winobias(tmp_path)
    assert e.names == ("developer", "designer")
    assert e.text == "The developer argued with the designer because she left."
    assert (e.text[slice(*e.pronoun)], e.forms, e.gold, e.group) == ("she", ("he", "she"), 0, "type1 anti")


def test_her_is_him_or_his_as_in_the_file_with_the_other_stereotype(tmp_path):
    lines(tmp_path, "pro_stereotyped_type2.txt.dev", "The guard saved [the editor] and drove [her] home.")
    assert read_winobias(tmp_path)[0].forms == ("his", "her")  # a guess by the word behind it
    lines(tmp_path, "anti_stereotyped_type2.txt.dev", "The guard saved [the editor] and drove [him] home.")
    assert {e.forms for e in read_winobias(tmp_path)} == {("him", "her")}
    lines(tmp_path, "other.txt", "The guard saved [the editor] and asked [her] to go.")
    assert read_winobias(tmp_path / "other.txt")[0].forms == ("him", "her")


@pytest.mark.parametrize(("name", "group"), [
    ("pro_stereotyped_type1.txt.dev", "type1 pro"),
    ("anti_stereotyped_type2.txt.test", "type2 anti"),
    ("anti.txt", "anti"),
    ("copy_of_anti_stereotyped_type1.txt", "type1 unknown"),
    ("pronouns_type1.txt", "type1 unknown"),
    ("mine.txt", "unknown"),
])  # fmt: skip
def test_a_group_is_what_the_name_of_the_file_says(tmp_path, name, group):
    lines(tmp_path, name, "[The developer] argued with the designer because [she] left.")
    assert [e.group for e in read(tmp_path / name)] == [group]


def test_a_winobias_file_without_a_sentence_is_refused(tmp_path):
    lines(tmp_path, "anti_stereotyped_type1.txt.dev", "[The developer] argued with the designer because [she] left.")
    for text in ("", "\n \n"):
        written(tmp_path / "pro_stereotyped_type1.txt.dev", text)
        for path in (tmp_path, tmp_path / "pro_stereotyped_type1.txt.dev"):
            with pytest.raises(InputError, match="pro_stereotyped_type1.txt.dev has 0 sentences: give at least one"):
                read(path)


def test_what_is_not_winobias_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no WinoBias files"):
        read_winobias(tmp_path)
    lines(tmp_path, "a.txt", "The guard saved the editor.")
    with pytest.raises(InputError, match="0 referents and 0 pronouns in brackets and 2 known"):
        read_winobias(tmp_path / "a.txt")


def test_the_papers_sentences():
    assert [e.names for e in PAPER[:2]] == [("author", "Sara"), ("Mary", "John")]
    assert PAPER[0].with_pronoun("his") == "The author talked to Sara about his book."
    assert all(e.text[slice(*e.pronoun)] == "[MASK]" for e in PAPER)


def test_a_word_that_is_not_in_the_text_is_an_error():
    with pytest.raises(InputError, match="'Tom' is not in the text"):
        PronounExample.of("Mary left because [MASK] could.", ("Mary", "Tom"), ("her", "his"))
    with pytest.raises(InputError, match="not in the text"):
        PronounExample.of("Mary left Tom.", ("Mary", "Tom"), ("her", "his"))


def test_our_files_are_read_whole_and_pro_and_anti_are_pairs(data):
    found = read_winobias(data / "winobias")
    assert Counter(e.group for e in found) == dict.fromkeys(("type1 pro", "type1 anti", "type2 pro", "type2 anti"), 792)
    stereotyped = [e.forms[e.gold] == e.text[slice(*e.pronoun)].lower() for e in found]
    # The pronoun of a "pro" sentence is what its referent's stereotype asks for, and that of an "anti" sentence is not.
    assert all(right == e.group.endswith("pro") for right, e in zip(stereotyped, found, strict=True))
