"""Agreement sentences that the package makes itself, so that anyone can train and probe without our data.

They follow Linzen, Dupoux & Goldberg (2016): between the subject and the verb stands a prepositional phrase or a
relative clause whose noun may be of the other number (an attractor), so that the noun next to the verb misleads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnflow.errors import SelectionError
from attnflow.numbers import seed_of, whole
from attnflow.probes.data import VerbExample

KINDS = ("plain", "prepositional", "relative")

_NOUNS = [
    *(("author", "authors"), ("book", "books"), ("report", "reports"), ("house", "houses"), ("team", "teams")),
    *(("river", "rivers"), ("school", "schools"), ("student", "students"), ("song", "songs"), ("village", "villages")),
    *(("key", "keys"), ("company", "companies"), ("church", "churches"), ("building", "buildings"), ("road", "roads")),
    *(("player", "players"), ("teacher", "teachers"), ("king", "kings"), ("film", "films"), ("member", "members")),
    *(("letter", "letters"), ("bridge", "bridges"), ("island", "islands"), ("soldier", "soldiers"), ("law", "laws")),
    *(("mountain", "mountains"), ("station", "stations"), ("artist", "artists"), ("system", "systems")),
    *(("woman", "women"), ("man", "men"), ("child", "children"), ("family", "families"), ("city", "cities")),
]
_VERBS = [
    *(("is", "are"), ("has", "have"), ("remains", "remain"), ("seems", "seem"), ("shows", "show"), ("needs", "need")),
    *(("belongs", "belong"), ("continues", "continue"), ("stands", "stand"), ("appears", "appear")),
]
_TRANSITIVE = [("follows", "follow"), ("knows", "know"), ("likes", "like"), ("sees", "see"), ("finds", "find")]
_PREPOSITIONS = ["of", "in", "near", "behind", "with", "from", "for", "to", "on", "about"]
_DETERMINERS = (["the", "this", "a", "every", "each"], ["the", "these", "some", "many", "two"])
_ADJECTIVES = ["old", "new", "large", "small", "famous", "local", "early", "great", "other", "young"]
_OPENINGS = ["", "", "", "", "today", "in fact", "by then", "it is clear that", "some say that"]


def vocabulary() -> list[str]:
    """Every word that the grammar uses, sorted."""
    pairs = [*_NOUNS, *_VERBS, *_TRANSITIVE]
    words = {form for pair in pairs for form in pair} | set(_PREPOSITIONS) | set(_ADJECTIVES) | {"that", "who"}
    words |= {d for forms in _DETERMINERS for d in forms} | {w for o in _OPENINGS for w in o.split()}
    return sorted(words)


def sentences(
    count: int,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    attractors: Sequence[int] = (0, 1, 2),
    balanced: bool = True,
) -> list[VerbExample]:
    """``count`` examples, the same for the same seed.

    Args:
        kinds: which of "plain", "prepositional" and "relative"; each as often as the others.
        attractors: how many nouns of the other number may stand between subject and verb. A plain sentence has none,
            a relative clause at most one of its own, and each more is a prepositional phrase behind it.
        balanced: half of the verbs are plural; otherwise one third is, as in Wikipedia.

    >>> for e in sentences(2, seed=3, kinds=["prepositional"], attractors=[1]):
    ...     print(e.prefix, "|", e.verb, "|", e.label)
    two songs from the book | belong | plural
    today some great soldiers behind a man | belong | plural
    """
    unknown = [k for k in kinds if k not in KINDS]
    if unknown or not kinds:
        raise SelectionError(f"kinds={list(kinds)!r}, but the grammar makes {', '.join(KINDS)}.")
    if whole(count, "count") < 1 or not attractors or min(attractors) < 0:
        raise SelectionError(f"count={count}, attractors={list(attractors)}: use a count from 1 and numbers from 0.")
    rng = np.random.default_rng(seed_of(seed))
    return [_sentence(rng, kinds[i % len(kinds)], attractors, 0.5 if balanced else 1 / 3) for i in range(count)]


def _sentence(rng: np.random.Generator, kind: str, attractors: Sequence[int], plural_share: float) -> VerbExample:
    plural = bool(rng.random() < plural_share)
    opening = str(rng.choice(_OPENINGS)).split()
    phrase = _noun_phrase(rng, plural)
    wanted = 0 if kind == "plain" else int(rng.choice(attractors))
    words = [*opening, *phrase]
    subject = len(words) - 1
    if kind == "relative":
        words += _relative(rng, plural, wanted > 0)
        wanted = max(0, wanted - 1)
    elif kind == "prepositional":
        # Without an attractor the phrase has a noun of the subject's own number, which misleads nobody.
        words += _prepositional(rng, plural if wanted == 0 else not plural)
        wanted = max(0, wanted - 1)
    for _ in range(wanted):
        words += _prepositional(rng, not plural)
    verb = _VERBS[int(rng.integers(len(_VERBS)))]
    between = sum(_is_plural(w) is (not plural) for w in words[subject + 1 :])
    return VerbExample(
        " ".join(words), "plural" if plural else "singular", verb[plural], verb[not plural],
        subject=subject, attractors=between, kind=kind,
    )  # fmt: skip


def _noun_phrase(rng: np.random.Generator, plural: bool) -> list[str]:
    noun = _NOUNS[int(rng.integers(len(_NOUNS)))][plural]
    adjective = [str(rng.choice(_ADJECTIVES))] if rng.random() < 0.25 else []
    words = [str(rng.choice(_DETERMINERS[plural])), *adjective, noun]
    if words[0] == "a" and words[1][0] in "aeiou":
        words[0] = "the"
    return words


def _prepositional(rng: np.random.Generator, plural: bool) -> list[str]:
    return [str(rng.choice(_PREPOSITIONS)), *_noun_phrase(rng, plural)]


def _relative(rng: np.random.Generator, subject_plural: bool, attract: bool) -> list[str]:
    """Half of them about the subject ("that likes the books"), half about another ("that the books like")."""
    other = subject_plural is not attract
    phrase = _noun_phrase(rng, other)
    verb = _TRANSITIVE[int(rng.integers(len(_TRANSITIVE)))]
    if rng.random() < 0.5:
        return ["that", verb[subject_plural], *phrase]
    return ["that", *phrase, verb[other]]


_NUMBER = {form: bool(i) for pair in _NOUNS for i, form in enumerate(pair)}


def _is_plural(word: str) -> bool | None:
    """The number of a noun; None for other words."""
    return _NUMBER.get(word)
