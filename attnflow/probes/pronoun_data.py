"""Examples for the pronoun probe, and where they come from: a pronoun and the two referents that it may stand for.

==============================================  =======================================================
``PAPER``                                       the sentences of Abnar & Zuidema (2020, Figure 4 and their notebook)
``PronounExample.of``                           any sentence of yours
a folder or file of WinoBias                    Zhao et al. (2018): ``pro_stereotyped_type1.txt.dev`` and its like
a table with ``sentid`` and ``sentence``        Winogender schemas (Rudinger et al. 2018): ``all_sentences.tsv``
a table with ``Text``, ``Pronoun``, ``A``, …    GAP (Webster et al. 2018): ``gap-test.tsv`` and its like
==============================================  =======================================================
"""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from attnflow.errors import AttnFlowWarning, InputError
from attnflow.files import as_path
from attnflow.inputs.tables import refusals

Row = Mapping[str, str]
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


_SENTENCES = (
    ("The author talked to Sara about [MASK] book.", ("author", "Sara"), ("his", "her"), "paper"),
    ("Mary convinced John of [MASK] love.", ("Mary", "John"), ("her", "his"), "paper"),
    ("She asked the doctor about [MASK] backache", ("She", "doctor"), ("her", "his"), "notebook"),
    (
        "John tried to convince Mary of his love and brought flowers for [MASK]",
        ("John", "Mary"), ("him", "her"), "notebook",
    ),
)  # fmt: skip
PAPER = tuple(PronounExample.of(text, names, forms, group=group) for text, names, forms, group in _SENTENCES)
"""The sentences of Figure 4, then those of the published notebook (without a full stop, as there)."""


def read(data: str | os.PathLike[str], limit: int | None = None) -> list[PronounExample]:
    """Examples from a file or folder of any form in the table above; the first ``limit``.

    A row of GAP in which not one of the candidates is right is left out, because the probe asks which of two it is. A
    warning says how many there were.
    """
    path = as_path(data, "data")
    with refusals(path):
        if not (path.is_file() and path.suffix == ".tsv"):
            return read_winobias(path, limit)
        found, rows = _first(_from_table(path), limit)
    if len(found) < rows:
        warnings.warn(
            f"{rows - len(found)} of {rows} rows that were read from {path} are left out: neither name is the referent "
            "(or both are), and the probe asks which of two it is.",
            AttnFlowWarning,
            stacklevel=2,
        )
    return found


def _first(rows: Iterator[PronounExample | None], limit: int | None) -> tuple[list[PronounExample], int]:
    """The first ``limit`` examples, and how many rows were read for them; None is a row that is left out."""
    number = count()
    found = list(islice((row for row, _ in zip(rows, number, strict=False) if row is not None), limit))
    return found, next(number)


def read_winobias(path: str | os.PathLike[str], limit: int | None = None) -> list[PronounExample]:
    """WinoBias sentences from one of its files or from its folder (all files), in the order of the names.

    Each line is a number and a sentence with the right referent and the pronoun in brackets. The other referent is the
    other occupation of the sentence; ``forms[i]`` is the form that the stereotype of ``referents[i]`` asks for, and
    ``group`` names type and stereotype by the name of the file: "type1 pro", or "type1 unknown" where that begins with
    neither pro nor anti.
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
        if not any(map(str.strip, lines)):
            raise InputError(f"{file} has 0 sentences: give at least one, or leave the file out of its folder.")
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
    found = re.match(r"(pro|anti)(?![a-z])", name)
    side = found.group(1) if found else "unknown"
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


def _from_table(path: Path) -> Iterator[PronounExample | None]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns = [name for name in rows.fieldnames or () if name is not None]
        convert = next((convert for wanted, convert in TABLES.items() if wanted <= set(columns)), None)
        if convert is None:
            raise InputError(
                f"{path} has the columns {', '.join(columns)}; pronoun examples have sentid and sentence (Winogender), "
                "or Text, Pronoun, Pronoun-offset, A, A-offset, A-coref, B, B-offset and B-coref (GAP)."
            )
        number = 1
        for number, row in enumerate(rows, 2):
            yield convert(row, f"{path} line {number}")
        if number == 1:
            raise InputError(f"{path} has 0 rows: give at least one.")


def from_winogender(row: Row, where: str = "the row") -> PronounExample:
    """``sentid`` is occupation.participant.answer.gender.txt; answer 0 is the occupation, 1 the participant.

    >>> row = {"sentid": "technician.customer.1.female.txt",
    ...        "sentence": "The technician told the customer that she could pay with cash."}
    >>> e = from_winogender(row)
    >>> e.names, e.gold, e.text[slice(*e.pronoun)], e.forms, e.group
    (('technician', 'customer'), 1, 'she', ('she', 'she'), 'female')
    """
    parts = row["sentid"].removesuffix(".txt").split(".")
    if len(parts) != 4 or parts[2] not in ("0", "1"):
        raise InputError(
            f"{where} has the sentid {row['sentid']!r}, and Winogender's are occupation.participant.answer.gender.txt, "
            "for instance technician.customer.1.female.txt"
        )
    occupation, participant, answer, gender = parts
    text = row["sentence"]
    spans = [_as_it_stands(text, name, where) for name in (occupation, participant)]
    pronoun = _pronoun(text, where)
    first, second = sorted(spans)
    word = text[slice(*pronoun)]
    return PronounExample(
        text, pronoun, (first, second), (word, word), (first, second).index(spans[int(answer)]), gender
    )


def _as_it_stands(text: str, name: str, where: str) -> Span:
    """Where a name of a sentid stands: there in lower case, and in the text also with a capital ("Someone met …")."""
    for word in (name, name.capitalize()):
        try:
            return find_word(text, word)
        except InputError:
            continue
    raise InputError(f"{where} has {name!r} in its sentid, and the sentence has no such word: {text!r}")


def _pronoun(text: str, where: str) -> Span:
    """The last pronoun of the sentence."""
    words = {form for pair in FORMS for form in pair} | {"they", "them", "their"}
    for word in reversed(text.rstrip(".?!").split()):
        plain = word.strip(",;:")
        if plain.lower() in words:
            return find_word(text, plain, last=True)
    raise InputError(f"{where} has no pronoun that is known: {text!r}")


def from_gap(row: Row, where: str = "the row") -> PronounExample | None:
    """One row of GAP; None where neither name is right, or both are.

    >>> row = {"ID": "t-1", "Text": "Ann met Eve after she won.", "Pronoun": "she", "Pronoun-offset": "18", "A": "Ann",
    ...        "A-offset": "0", "A-coref": "FALSE", "B": "Eve", "B-offset": "8", "B-coref": "TRUE"}
    >>> e = from_gap(row)
    >>> e.names, e.gold, e.group
    (('Ann', 'Eve'), 1, 'female')
    """
    text = row["Text"]
    spans = [_span(text, row[name], row[f"{name}-offset"], where) for name in ("Pronoun", "A", "B")]
    right = [i for i, name in enumerate("AB") if _true(row, f"{name}-coref", where)]
    if len(right) != 1:
        return None
    first, second = sorted(spans[1:])
    gold = (first, second).index(spans[1 + right[0]])
    word = row["Pronoun"]
    group = "female" if word.lower() in {her for _, her in FORMS} else "male"
    return PronounExample(text, spans[0], (first, second), (word, word), gold, group)


def _true(row: Row, column: str, where: str) -> bool:
    """TRUE or FALSE, in capitals or not."""
    said = row[column]
    if str(said).upper() not in ("TRUE", "FALSE"):
        raise InputError(f"{where} has {said!r} in the column {column}, and TRUE or FALSE is needed.")
    return said.upper() == "TRUE"


def _span(text: str, word: str, offset: str, where: str) -> Span:
    start = int(offset) if offset.isdigit() else -1
    if start < 0 or text[start : start + len(word)] != word:
        there = text[max(start, 0) :][: len(word)]
        raise InputError(f"{where} says that {word!r} stands at {offset}, and the text has {there!r} there.")
    return start, start + len(word)


TABLES: dict[frozenset[str], Callable[[Row, str], PronounExample | None]] = {
    frozenset({"sentid", "sentence"}): from_winogender,
    frozenset({"Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref"}): from_gap,
}
"""What makes an example of a row, by the columns that it has; None leaves the row out."""
