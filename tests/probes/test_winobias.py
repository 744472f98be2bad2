from __future__ import annotations

from collections import Counter

import pytest

from attnflow import AttnFlowError
from attnflow.probes.winobias import PAPER, PronounExample, read_winobias


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


def test_what_is_not_winobias_is_an_error(tmp_path):
    with pytest.raises(AttnFlowError, match="holds no WinoBias files"):
        read_winobias(tmp_path)
    lines(tmp_path, "a.txt", "The guard saved the editor.")
    with pytest.raises(AttnFlowError, match="0 referents and 0 pronouns in brackets and 2 known"):
        read_winobias(tmp_path / "a.txt")


def test_the_papers_sentences():
    assert [e.names for e in PAPER[:2]] == [("author", "Sara"), ("Mary", "John")]
    assert PAPER[0].with_pronoun("his") == "The author talked to Sara about his book."
    assert all(e.text[slice(*e.pronoun)] == "[MASK]" for e in PAPER)


def test_a_word_that_is_not_in_the_text_is_an_error():
    with pytest.raises(AttnFlowError, match="'Tom' is not in the text"):
        PronounExample.of("Mary left because [MASK] could.", ("Mary", "Tom"), ("her", "his"))
    with pytest.raises(AttnFlowError, match="not in the text"):
        PronounExample.of("Mary left Tom.", ("Mary", "Tom"), ("her", "his"))


def test_our_files_are_read_whole_and_pro_and_anti_are_pairs(data):
    found = read_winobias(data / "winobias")
    assert Counter(e.group for e in found) == dict.fromkeys(("type1 pro", "type1 anti", "type2 pro", "type2 anti"), 792)
    stereotyped = [e.forms[e.gold] == e.text[slice(*e.pronoun)].lower() for e in found]
    # The pronoun of a "pro" sentence is what its referent's stereotype asks for, and that of an "anti" sentence is not.
    assert all(right == e.group.endswith("pro") for right, e in zip(stereotyped, found, strict=True))
