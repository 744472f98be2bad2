"""Examples for the verb-number probe, and where they come from.

=======================  ==============================================================================
``*.text`` + ``*.gold``  Linzen et al. (2016) as filtered by Gulordava et al. (2018), and their own sentences
``*.tab``                Gulordava et al.'s tables: ``generated.tab``, ``best_model.tab`` and their like
``*.tsv``, ``*.tsv.gz``  a table with ``prefix`` and ``label``, or Linzen et al.'s own ``agr_*.tsv``
``*.jsonl``              minimal pairs of BLiMP (Warstadt et al. 2020), its agreement sets
a name                   the same through ``datasets``: ``nyu-mll/blimp:regular_plural_subject_verb_agreement_1``
=======================  ==============================================================================

Examples of the pronoun probe are in :mod:`attnflow.probes.pronoun_data`.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from attnflow.errors import InputError
from attnflow.inputs.tables import open_table, refusals

NUMBERS = {"sing": "singular", "plur": "plural"}
TAGS = {"VBZ": "singular", "VBP": "plural"}
AGREEMENT = "subject_verb_agreement"
METHODS = ("one_prefix_method", "two_prefix_method")
SETS = {
    "distractor_agreement_relational_noun": False,
    "distractor_agreement_relative_clause": False,
    "irregular_plural_subject_verb_agreement_1": False,
    "irregular_plural_subject_verb_agreement_2": True,
    "regular_plural_subject_verb_agreement_1": False,
    "regular_plural_subject_verb_agreement_2": True,
}
"""BLiMP's sets of subject-verb agreement, by their ``UID``: whether they have two prefixes."""
AUXILIARIES = frozenset({"is", "are", "was", "were", "has", "have", "does", "do"})


@dataclass(frozen=True)
class VerbExample:
    """The words before a verb, and the verb in both numbers.

    Attributes:
        prefix: the words before the verb.
        label: "singular" or "plural"; empty where the data give one form twice, and no model can be asked.
        verb: the right form; empty where the data do not give it.
        other: the wrong form.
        rest: the words behind the verb, which a masked language model sees too.
        subject: which word of the prefix the subject is, where that is known.
        attractors: how many nouns of the other number stand between subject and verb, where that is known.
        kind: the construction, where that is known.
        against: the same prefix with the subject in the other number, where the data compare two prefixes before one
            form of the verb (BLiMP's two-prefix sets); ``other`` is then empty.
    """

    prefix: str
    label: str
    verb: str = ""
    other: str = ""
    rest: str = ""
    subject: int | None = None
    attractors: int | None = None
    kind: str = ""
    against: str = ""


def read(data: str | os.PathLike[str], limit: int | None = None) -> list[VerbExample]:
    """Examples from a file of any form in the table above, or from ``datasets`` by name; the first ``limit``."""
    path = Path(data)
    reader = next((read_file for ending, read_file in READERS.items() if path.name.endswith(ending)), None)
    if reader is None and path.exists():
        what = "a folder" if path.is_dir() else f"a {path.suffix or 'nameless'} file"
        raise InputError(f"{path} is {what}, and verb-number examples are in {endings()} files. Give one of them.")
    if reader is None and (path.suffix or str(data).startswith((".", "/"))):
        raise InputError(f"{path} is not there, and examples were asked from it: check the path.")
    if reader is None:
        return list(islice(read_dataset(str(data)), limit))
    with refusals(path):
        return list(islice(reader(path), limit))


def endings() -> str:
    """The endings of the files that can be read, for messages and help.

    >>> endings()
    '.text, .gold, .tab, .tsv, .tsv.gz or .jsonl'
    """
    *most, last = READERS
    return f"{', '.join(most)} or {last}"


def read_linzen(path: str | os.PathLike[str]) -> list[VerbExample]:
    """``*.text`` (one tokenised sentence per line) and ``*.gold``, which says where the verb is and what it may be.

    A line of gold is (position, right form, wrong form, attractors), or the twelve columns of Gulordava et al.'s own
    ``generated.gold``, whose sentences have another verb in that place. Where both forms are the same word (4 lines of
    the published file, such as *wherein*), an example has no label and cannot be asked.
    """
    text, gold = (Path(path).with_suffix(s) for s in (".text", ".gold"))
    for file in (text, gold):
        if not file.is_file():
            raise InputError(f"{file} is not there: Linzen's format is a .text and a .gold file of the same name.")
    sentences = text.read_text(encoding="utf-8").splitlines()
    marks = [line.split() for line in gold.read_text(encoding="utf-8").splitlines()]
    if len(sentences) != len(marks):
        raise InputError(
            f"{text.name} has {len(sentences)} lines and {gold.name} {len(marks)}: they do not belong together."
        )
    rows = enumerate(zip(sentences, marks, strict=True), 1)
    return [(_generated if len(m) >= 12 else _linzen)(s.split(), m, gold, i) for i, (s, m) in rows]


def _generated(words: list[str], mark: list[str], path: Path, line: int) -> VerbExample:
    """Pattern, construction, sentence (0 is the original), position, tag, features, right form, wrong form, …"""
    number = re.search(r"Number=(Sing|Plur)", mark[5])
    if number is None or not mark[3].isdigit() or int(mark[3]) >= len(words):
        raise InputError(
            f"{path} line {line} has the position {mark[3]!r} and the features {mark[5]!r}, and a place in the "
            f"sentence and Number=Sing or Number=Plur are needed: {' '.join(words[:12])!r}."
        )
    at = int(mark[3])
    kind = "original" if mark[2] == "0" else "generated"
    label = NUMBERS[number.group(1).lower()]
    return VerbExample(" ".join(words[:at]), label, mark[6], mark[7], _behind(words, at), kind=kind)


def _behind(words: list[str], verb: int) -> str:
    return " ".join(w for w in words[verb + 1 :] if w != "<eos>")


def _linzen(words: list[str], mark: list[str], path: Path, line: int) -> VerbExample:
    whole = len(mark) >= 4 and mark[0].isdigit() and mark[3].isdigit()
    if not whole or int(mark[0]) >= len(words) or not _same(words[int(mark[0])], mark[1]):
        raise InputError(
            f"{path} line {line} says {' '.join(mark)!r} (position, right form, wrong form, attractors), which does "
            f"not fit the sentence {' '.join(words[:12])!r}."
        )
    at = int(mark[0])
    verb, other = words[at], mark[2].lower() if words[at].islower() else mark[2]
    label, rest = number_of(verb, other), _behind(words, at)
    return VerbExample(" ".join(words[:at]), label, verb, other, rest, None, int(mark[3]))


def _same(word: str, form: str) -> bool:
    return word.lower() == form.lower()


def read_tab(path: str | os.PathLike[str]) -> Iterable[VerbExample]:
    """Gulordava et al.'s tables: two rows per sentence, one with the right form and one with the wrong one."""
    needed = {"pattern", "constr_id", "sent_id", "correct_number", "form", "class", "prefix", "n_attr", "sent"}
    waiting: dict[tuple[str, ...], Mapping[str, str]] = {}
    with _open(Path(path)) as file:
        rows = csv.DictReader(file, delimiter="\t")
        if missing := needed - set(rows.fieldnames or ()):
            raise InputError(
                f"{path} lacks the columns {', '.join(sorted(missing))}, which Gulordava et al.'s .tab files have. "
                "Rename a table with prefix and label to .tsv."
            )
        for number, row in enumerate(rows, 2):
            key = (row["pattern"], row["constr_id"], row["sent_id"])
            first = waiting.pop(key, None)
            if first is None:
                waiting[key] = row
            else:
                yield _from_forms(first, row, f"{path} line {number}")
    if waiting:
        alone = " ".join(next(iter(waiting)))
        raise InputError(
            f"{path} has one form alone for {len(waiting)} sentences, and two are compared. The first is {alone!r} "
            "(pattern, constr_id, sent_id)."
        )


def _from_forms(first: Mapping[str, str], second: Mapping[str, str], where: str) -> VerbExample:
    forms = {row["class"]: row["form"] for row in (first, second)}
    known = first["correct_number"] in NUMBERS and first["n_attr"].isdigit()
    if set(forms) != {"correct", "wrong"} or not known:
        raise InputError(
            f"{where}: the class of the two forms is {first['class']!r} and {second['class']!r}, the number "
            f"{first['correct_number']!r} and n_attr {first['n_attr']!r}; one correct, one wrong, sing or plur, and a "
            "whole number are needed."
        )
    prefix = first["prefix"].split()
    return VerbExample(
        " ".join(prefix), NUMBERS[first["correct_number"]], forms["correct"], forms["wrong"],
        _behind(first["sent"].split(), len(prefix)), attractors=int(first["n_attr"]), kind=first.get("type") or "",
    )  # fmt: skip


def read_table(path: str | os.PathLike[str]) -> Iterable[VerbExample]:
    """A tab-separated table, also gzipped, with ``prefix`` and ``label``, or with Linzen et al.'s own columns."""
    with _open(Path(path)) as file:
        yield from from_rows(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE), str(path))


def _there(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path} is not there, and examples were asked from it: check the path.")
    return path


def _open(path: Path) -> TextIO:
    _there(path)
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def read_blimp(path: str | os.PathLike[str]) -> Iterable[VerbExample]:
    """Minimal pairs of BLiMP's sets of subject-verb agreement, one JSON object per line.

    The two sentences differ in the verb, or (two-prefix sets) in the subject alone; other pairs are left out. The
    columns ``one_prefix_method`` and ``two_prefix_method`` say which it is, or the ``UID`` of a set of BLiMP. A pair
    with neither is read where it differs in a form of be, have or do, and refused elsewhere.
    """
    yield from from_rows(open_table(_there(Path(path))), str(path))


def read_dataset(name: str) -> Iterable[VerbExample]:
    """Rows of a data set, by its name in ``datasets``: ``name``, ``name:config`` or ``name:config:split``."""
    import datasets

    name, config, split = [*name.split(":"), "", ""][:3]
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", trust_remote_code=False)
    except (OSError, ValueError, ConnectionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{name!r} is neither a file here nor a data set that could be loaded: {reason} Give a file, or a name "
            "such as nyu-mll/blimp:regular_plural_subject_verb_agreement_1"
        ) from error
    yield from from_rows(rows, name)


def from_rows(rows: Iterable[Mapping[str, Any]], origin: str = "the rows") -> Iterable[VerbExample]:
    """Examples from rows of any of the known tables.

    >>> rows = [{"sentence_good": "The keys to the cabinet are here.", "sentence_bad": "The keys to the cabinet is here."}]
    >>> next(iter(from_rows(rows)))
    VerbExample(prefix='The keys to the cabinet', label='plural', verb='are', other='is', rest='here.', subject=None, attractors=None, kind='', against='')
    """  # noqa: E501
    for number, row in enumerate(rows):
        convert = next((convert for columns, convert in TABLES.items() if columns <= set(row)), None)
        if convert is None:
            raise InputError(
                f"{origin} has the columns {', '.join(map(str, row))}; verb-number examples have prefix and label, "
                "sentence_good and sentence_bad (BLiMP), or sentence, verb_pos and verb_index (Linzen et al.)."
            )
        if row.get("linguistics_term", AGREEMENT) != AGREEMENT:
            raise InputError(
                f"{origin} holds pairs of {row['linguistics_term']} ({row.get('UID', 'BLiMP')}), and the verb-number "
                f"probe asks about {AGREEMENT}: use for instance regular_plural_subject_verb_agreement_1."
            )
        try:
            found = convert(row)
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"Row {number} (from 0) of {origin} is no verb-number example ({error}): {dict(row)!r}"
            ) from None
        if found is not None:
            yield found


def _from_prefix(row: Mapping[str, Any]) -> VerbExample:
    def whole(name: str) -> int | None:
        value = row.get(name)
        return None if value in (None, "") else int(str(value))

    if row["label"] not in NUMBERS.values():
        raise ValueError(f"the label is {row['label']!r}, and singular or plural is needed")
    kind = {"1": "relative", "0": ""}.get(str(row.get("relative_clause", "")), "")
    return VerbExample(
        row["prefix"], row["label"], row.get("verb") or "", row.get("other_form") or "", row.get("rest") or "",
        whole("subject_index"), whole("attractors"), row.get("kind") or kind,
    )  # fmt: skip


def _from_linzen_table(row: Mapping[str, Any]) -> VerbExample:
    """Linzen et al. count words from 1 and mark the verb as VBZ (singular) or VBP (plural)."""
    words = str(row["sentence"]).split()
    if row["verb_pos"] not in TAGS:
        raise ValueError(f"verb_pos is {row['verb_pos']!r}, and VBZ (singular) or VBP (plural) is needed")
    verb = _place(row, "verb_index", len(words))
    attractors = row.get("n_diff_intervening")
    return VerbExample(
        " ".join(words[:verb]),
        TAGS[row["verb_pos"]],
        words[verb],
        rest=" ".join(words[verb + 1 :]),
        subject=_place(row, "subj_index", len(words)) if row.get("subj_index") not in (None, "") else None,
        attractors=int(attractors) if attractors not in (None, "") else None,
    )


def _place(row: Mapping[str, Any], name: str, count: int) -> int:
    """Where a word stands, counted from 0; the table counts from 1."""
    place = int(row[name])
    if not 1 <= place <= count:
        raise ValueError(f"{name} is {place}, and the sentence has the words 1 to {count}")
    return place - 1


def _from_pair(row: Mapping[str, Any]) -> VerbExample | None:
    """A minimal pair that differs in the verb or the subject alone; None for any other, which is another question."""
    good, bad = str(row["sentence_good"]).split(), str(row["sentence_bad"]).split()
    apart = [i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b]
    if len(good) != len(bad) or len(apart) != 1:
        return None
    two = _two_prefixes(row, _bare(good[apart[0]]), _bare(bad[apart[0]]))
    # Of a two-prefix set the verb is the word behind the subject (so in all 2,000 pairs of BLiMP).
    at = apart[0] + bool(two)
    if two is None or at == 0 or at >= len(good):
        return None
    tail = good[at][len(_bare(good[at])) :]
    verb, other = _bare(good[at]), _bare(bad[at])
    rest = " ".join([*([tail] if tail else []), *good[at + 1 :]])
    prefix, kind = " ".join(good[:at]), str(row.get("UID", ""))
    if two:
        label = "singular" if _alone_singular(verb) else "plural"
        return VerbExample(prefix, label, verb, "", rest, apart[0], kind=kind, against=" ".join(bad[:at]))
    return VerbExample(prefix, number_of(verb, other), verb, other, rest, kind=kind)


def _bare(word: str) -> str:
    return word.rstrip(".,;!?")


def _two_prefixes(row: Mapping[str, Any], *forms: str) -> bool | None:
    """Whether two subjects before one verb are compared, and not two forms behind one prefix; None: neither of both.

    The columns say it, else the name of the set in BLiMP, else the two words where both are forms of be, have or do.
    """
    one, two = (_flag(row, name) for name in METHODS)
    if two is None and not one:
        two = SETS.get(str(row.get("UID", "")))
    if one is None and two is None and {form.lower().removesuffix("n't") for form in forms} <= AUXILIARIES:
        two = False
    if two is None and not one:
        raise ValueError(
            f"{forms[0]!r} and {forms[1]!r} may be two forms of a verb or two subjects, and nothing says which: add "
            f"the columns {' and '.join(METHODS)}, each true or false"
        )
    return None if one is False and not two else bool(two)


def _flag(row: Mapping[str, Any], name: str) -> bool | None:
    """True or false, also as the text that a table has for it; None where the column is not there, or is empty."""
    value = row.get(name)
    if value is None or value == "":
        return None
    if (text := str(value).lower()) not in ("true", "false"):
        raise ValueError(f"{name} is {value!r}, and true or false is needed")
    return text == "true"


def _alone_singular(verb: str) -> bool:
    """Whether a present form is the singular, where the other form is not known: *hugs*, *isn't*; not *pass*."""
    form = verb.lower().removesuffix("n't")
    return form.endswith("s") and not form.endswith("ss")


def number_of(verb: str, other: str) -> str:
    """The number of ``verb``, given its other form: of two English present forms the singular has the extra s.

    >>> number_of("is", "are"), number_of("pass", "passes"), number_of("don't", "doesn't"), number_of("edit", "edit")
    ('singular', 'plural', 'plural', '')
    """
    a, b = (form.lower().removesuffix("n't") for form in (verb, other))
    if a == b:
        return ""
    if a.endswith("s") != b.endswith("s"):
        return "singular" if a.endswith("s") else "plural"
    return "singular" if len(a) > len(b) else "plural"


READERS: dict[str, Callable[[Path], Iterable[VerbExample]]] = {
    ".text": read_linzen,
    ".gold": read_linzen,
    ".tab": read_tab,
    ".tsv": read_table,
    ".tsv.gz": read_table,
    ".jsonl": read_blimp,
}
"""What reads a file, by its ending: a new form of file is a function and a line here."""
TABLES: dict[frozenset[str], Callable[[Mapping[str, Any]], VerbExample | None]] = {
    frozenset({"prefix", "label"}): _from_prefix,
    frozenset({"sentence", "verb_pos", "verb_index"}): _from_linzen_table,
    frozenset({"sentence_good", "sentence_bad"}): _from_pair,
}
"""What makes an example of a row, by the columns that it has; None leaves the row out."""
