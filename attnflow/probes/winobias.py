"""Examples for the pronoun probe: a pronoun and the two referents that it may stand for.

They are the sentences of Abnar & Zuidema (2020, Figure 4 and the published notebook), WinoBias (Zhao et al. 2018) from
its files, or any sentence of yours. :mod:`attnflow.probes.pronoun_data` reads other data sets.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from attnflow.errors import InputError
from attnflow.files import as_path

Span = tuple[int, int]
GAP = "[MASK]"

_OCCUPATIONS = {
    "male": "driver supervisor janitor cook mover laborer construction_worker chief developer carpenter manager "
    "lawyer farmer salesperson physician guard analyst mechanic sheriff ceo",
    "female": "attendant cashier teacher nurse assistant secretary auditor cleaner receptionist clerk counselor "
    "designer hairdresser writer housekeeper baker accountant editor librarian tailor",
}
STEREOTYPE = {word.replace("_", " "): g for g, words in _OCCUPATIONS.items() for word in words.split()}
FORMS = [("he", "she"), ("him", "her"), ("his", "her"), ("himself", "herself"), ("his", "hers")]
# After these a "her" is an object (him), before other words a possessive (his).
_AFTER_OBJECT = (  # noqa: SIM905
    "a about after again all an and another as at away because before but by down during for from happy how if in into "
    "it many much not of off on or out over so some that the through to twice up well what when where while with"
).split()


def find_word(text: str, word: str, last: bool = False) -> Span:
    """Where a word stands in a text: (start, end) of its first, or last, occurrence."""
    found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)]
    if not found:
        raise InputError(f"{word!r} is not in the text {text!r}: give a word as it stands there.")
    return found[-1 if last else 0]


@dataclass(frozen=True)
class PronounExample:
    """A sentence with a pronoun (or a gap for one) and two candidate referents.

    Attributes:
        text: the sentence; the pronoun stands at ``text[pronoun[0]:pronoun[1]]``.
        pronoun: where the pronoun, or the gap, is: (start, end) in characters.
        referents: where the two candidates are, in the order of the text.
        forms: ``forms[i]``: the form of the pronoun that stands for ``referents[i]``.
        gold: which referent is right, where that is known.
        group: for instance "type1 pro", to count by.

    >>> e = PronounExample.of("The author talked to Sara about [MASK] book.", ("author", "Sara"), ("his", "her"))
    >>> e.names, e.forms, e.with_pronoun("her")
    (('author', 'Sara'), ('his', 'her'), 'The author talked to Sara about her book.')
    """

    text: str
    pronoun: Span
    referents: tuple[Span, Span]
    forms: tuple[str, str]
    gold: int | None = None
    group: str = ""

    @classmethod
    def of(
        cls,
        text: str,
        referents: tuple[str, str],
        forms: tuple[str, str],
        pronoun: str = GAP,
        gold: int | None = None,
        group: str = "",
    ) -> PronounExample:
        """From words; ``pronoun`` is the word, or the gap ``[MASK]``, that is asked about (its last occurrence)."""
        at = find_word(text, pronoun, last=True)
        spans = (find_word(text, referents[0]), find_word(text, referents[1]))
        return cls(text, at, spans, forms, gold, group)

    @property
    def names(self) -> tuple[str, str]:
        """The two candidates as they stand in the text."""
        (a, b), (c, d) = self.referents
        return self.text[a:b], self.text[c:d]

    @property
    def before(self) -> str:
        """The text before the pronoun."""
        return self.text[: self.pronoun[0]]

    @property
    def after(self) -> str:
        """The text behind the pronoun."""
        return self.text[self.pronoun[1] :]

    def with_pronoun(self, form: str) -> str:
        """The text with another form in the pronoun's place."""
        return self.before + form + self.after


_TOLD = (
    ("The author talked to Sara about [MASK] book.", ("author", "Sara"), ("his", "her"), "paper"),
    ("Mary convinced John of [MASK] love.", ("Mary", "John"), ("her", "his"), "paper"),
    ("She asked the doctor about [MASK] backache", ("She", "doctor"), ("her", "his"), "notebook"),
    (
        "John tried to convince Mary of his love and brought flowers for [MASK]",
        ("John", "Mary"), ("him", "her"), "notebook",
    ),
)  # fmt: skip
PAPER = tuple(PronounExample.of(text, names, forms, group=group) for text, names, forms, group in _TOLD)
"""The sentences of Figure 4, then those of the published notebook (without a full stop, as there)."""


def read_winobias(path: str | os.PathLike[str], limit: int | None = None) -> list[PronounExample]:
    """WinoBias sentences from one of its files or from its folder (all files), in the order of the names.

    Each line is a number and a sentence with the right referent and the pronoun in brackets. The other referent is the
    other occupation of the sentence; ``forms[i]`` is the form that the stereotype of ``referents[i]`` asks for, and
    ``group`` names type and stereotype.
    """
    path = as_path(path)
    files = sorted(path.glob("*stereotyped_type*")) if path.is_dir() else [path]
    if not files or not all(f.is_file() for f in files):
        raise InputError(
            f"{path} holds no WinoBias files (pro_stereotyped_type1.txt.dev and so on): give their folder."
        )
    out = []
    for file in files:
        group = _group(file.name)
        lines, twins = file.read_text(encoding="utf-8").splitlines(), _twins(file)
        for number, line in enumerate(lines):
            if line.strip():
                twin = twins[number] if number < len(twins) else ""
                out.append(_winobias(line, group, f"{file} line {number + 1}", twin))
    return out[:limit]


def _twins(file: Path) -> list[str]:
    """The lines of the file with the other stereotype, where the pronoun has the other gender; [] without it."""
    side, rest = file.name.split("_", 1) if "_" in file.name else ("", file.name)
    twin = file.with_name({"pro": "anti_", "anti": "pro_"}.get(side, "?") + rest)
    return twin.read_text(encoding="utf-8").splitlines() if twin.is_file() else []


def _group(name: str) -> str:
    kind = re.search(r"type(\d)", name)
    side = "anti" if name.startswith("anti") else "pro"
    return f"type{kind.group(1)} {side}" if kind else side


def _winobias(line: str, group: str, where: str, twin: str = "") -> PronounExample:
    line = re.sub(r"^\d+\s+", "", line.strip())
    text, marked = _without_brackets(line)
    pronouns = [s for s in marked if text[slice(*s)].lower() in {f for pair in FORMS for f in pair}]
    named = [s for s in marked if s not in pronouns]
    people = _occupations(text)
    right = [p for p in people if any(a <= p[0] and p[1] <= b for a, b in named)]
    others = [p for p in people if p not in right]
    if not pronouns or not right or not others:
        raise InputError(
            f"{where} has {len(named)} referents and {len(pronouns)} pronouns in brackets and {len(people)} known "
            f"occupations, and one, one and two are needed: {line!r}"
        )
    pair = sorted([right[0], others[0]])
    referents = (pair[0], pair[1])
    his, her = _both_forms(text, pronouns[0], twin)
    kinds = [STEREOTYPE[text[slice(*s)].lower()] for s in referents]
    forms = (his, her) if kinds[0] == "male" else (her, his)
    return PronounExample(text, pronouns[0], referents, forms, referents.index(right[0]), group)


def _without_brackets(line: str) -> tuple[str, list[Span]]:
    text, spans, start = "", [], 0
    for character in line:
        if character == "[":
            start = len(text)
        elif character == "]":
            spans.append((start, len(text)))
        else:
            text += character
    return text, spans


def _occupations(text: str) -> list[Span]:
    """Where the known occupations stand, each once."""
    found: dict[str, Span] = {}
    for match in re.finditer(
        r"\b(" + "|".join(sorted(STEREOTYPE, key=len, reverse=True)) + r")\b", text, re.IGNORECASE
    ):
        found.setdefault(match.group().lower(), match.span())
    return sorted(found.values())


def _both_forms(text: str, span: Span, twin: str) -> tuple[str, str]:
    """(masculine, feminine) of the pronoun at ``span``; "her" is as in the twin, else by what follows it."""
    word = text[slice(*span)].lower()
    if word != "her":
        return next(pair for pair in FORMS if word in pair)
    known = [form for form in ("him", "his") if f"[{form}]" in twin.lower()]
    if len(known) == 1:
        return known[0], "her"
    behind = re.match(r"\s*([\w']+)?", text[span[1] :])
    follower = behind.group(1) if behind else None
    return ("him" if follower is None or follower.lower() in _AFTER_OBJECT else "his"), "her"
