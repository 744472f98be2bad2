"""Where the examples of the pronoun probe come from.

==============================================  =======================================================
a folder or file of WinoBias                    Zhao et al. (2018): ``pro_stereotyped_type1.txt.dev`` and its like
a table with ``sentid`` and ``sentence``        Winogender schemas (Rudinger et al. 2018): ``all_sentences.tsv``
a table with ``Text``, ``Pronoun``, ``A``, …    GAP (Webster et al. 2018): ``gap-test.tsv`` and its like
==============================================  =======================================================
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

from attnflow.errors import InputError
from attnflow.probes.winobias import FORMS, PronounExample, Span, find_word, read_winobias

Row = Mapping[str, str]


def read(data: str | os.PathLike[str], limit: int | None = None) -> list[PronounExample]:
    """Examples from a file or folder of any form in the table above; the first ``limit``.

    A row of GAP in which neither candidate is right is left out: the probe asks which of two it is.
    """
    path = Path(data)
    if path.is_file() and path.suffix == ".tsv":
        return list(islice(_from_table(path), limit))
    return read_winobias(path, limit)


def _from_table(path: Path) -> Iterable[PronounExample]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        columns = [name for name in rows.fieldnames or () if name is not None]
        convert = next((convert for wanted, convert in TABLES.items() if wanted <= set(columns)), None)
        if convert is None:
            raise InputError(
                f"{path} has the columns {', '.join(columns)}; pronoun examples have sentid and sentence (Winogender), "
                "or Text, Pronoun, Pronoun-offset, A, A-offset, A-coref, B, B-offset and B-coref (GAP)."
            )
        for number, row in enumerate(rows, 2):
            found = convert(row, f"{path} line {number}")
            if found is not None:
                yield found


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
    spans = [find_word(text, name) for name in (occupation, participant)]
    pronoun = _pronoun(text, where)
    first, second = sorted(spans)
    word = text[slice(*pronoun)]
    return PronounExample(
        text, pronoun, (first, second), (word, word), (first, second).index(spans[int(answer)]), gender
    )


def _pronoun(text: str, where: str) -> Span:
    """The last pronoun of the sentence."""
    words = {form for pair in FORMS for form in pair} | {"they", "them", "their"}
    for word in reversed(text.rstrip(".?!").split()):
        plain = word.strip(",;:")
        if plain.lower() in words:
            return find_word(text, plain, last=True)
    raise InputError(f"{where} has no pronoun that is known: {text!r}")


def from_gap(row: Row, where: str = "the row") -> PronounExample | None:
    """One row of GAP; None where neither name is right.

    >>> row = {"ID": "t-1", "Text": "Ann met Eve after she won.", "Pronoun": "she", "Pronoun-offset": "18", "A": "Ann",
    ...        "A-offset": "0", "A-coref": "FALSE", "B": "Eve", "B-offset": "8", "B-coref": "TRUE"}
    >>> e = from_gap(row)
    >>> e.names, e.gold, e.group
    (('Ann', 'Eve'), 1, 'female')
    """
    text = row["Text"]
    spans = [_span(text, row[name], row[f"{name}-offset"], where) for name in ("Pronoun", "A", "B")]
    right = [i for i, name in enumerate("AB") if row[f"{name}-coref"].upper() == "TRUE"]
    if len(right) != 1:
        return None
    first, second = sorted(spans[1:])
    gold = (first, second).index(spans[1 + right[0]])
    word = row["Pronoun"]
    group = "female" if word.lower() in {her for _, her in FORMS} else "male"
    return PronounExample(text, spans[0], (first, second), (word, word), gold, group)


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
