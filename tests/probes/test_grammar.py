from __future__ import annotations

import pytest

from attnflow import AttnFlowError
from attnflow.probes import grammar
from attnflow.probes.data import number_of


def test_the_same_seed_gives_the_same_sentences_and_another_gives_others():
    assert grammar.sentences(50, seed=1) == grammar.sentences(50, seed=1)
    assert grammar.sentences(50, seed=1) != grammar.sentences(50, seed=2)


def test_labels_verbs_subjects_and_attractors_are_right():
    number = {form: n for one, many in grammar._NOUNS for form, n in ((one, "singular"), (many, "plural"))}
    for e in grammar.sentences(600):
        words = e.prefix.split()
        assert number[words[e.subject]] == e.label == number_of(e.verb, e.other)
        between = [number[w] for w in words[e.subject + 1 :] if w in number]
        assert e.attractors == sum(n != e.label for n in between)
        assert (e.kind == "plain") == (len(words) == e.subject + 1)


def test_every_kind_and_number_of_attractors_occurs_and_every_word_is_in_the_vocabulary():
    made = grammar.sentences(600, attractors=(0, 1, 2, 3))
    assert {e.kind for e in made} == set(grammar.KINDS)
    assert {e.attractors for e in made} == {0, 1, 2, 3}
    assert {w for e in made for w in e.prefix.split()} <= set(grammar.vocabulary())
    plural = sum(e.label == "plural" for e in made)
    assert 240 < plural < 360
    assert sum(e.label == "plural" for e in grammar.sentences(600, balanced=False)) < plural


def test_no_article_is_wrong():
    assert not any(f" a {v}" in f" {e.prefix}" for e in grammar.sentences(600) for v in "aeiou")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kinds": ["clause"]}, "plain, prepositional"), ({"attractors": []}, "attractors="), ({"kinds": []}, "kinds=")],
)
def test_what_it_cannot_make_is_an_error(options, message):
    with pytest.raises(AttnFlowError, match=message):
        grammar.sentences(5, **options)
