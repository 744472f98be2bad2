"""Tasks whose truth is known: rows of data that say which words must matter."""

from __future__ import annotations

from typing import Any

import torch

from attnflow.errors import InputError, SelectionError
from attnflow.inputs.datasets import Row, Rows
from attnflow.inputs.running import undisturbed
from attnflow.models.shipped import LABELS
from attnflow.probes.data import VerbExample, read
from attnflow.probes.grammar import sentences
from attnflow.probes.scoring import kind_of, natural
from attnflow.probes.verb_number import choose, query

TASKS = ("verb-number",)
COUNT = 200


def task_rows(task: str, model: Any, tokenizer: Any, data: Any, limit: int | None, seed: int) -> tuple[Rows, str]:
    """(rows of the task that the model gets right, a sentence about those that were left out).

    Args:
        data: a file or list of :class:`VerbExample`; None for sentences of the package's own grammar.
    """
    if task not in TASKS:
        raise SelectionError(f"task={task!r} is not known. Use one of: {', '.join(TASKS)}.")
    if data is None:
        examples = sentences(COUNT if limit is None else limit, seed)
    elif isinstance(data, list | tuple):
        examples = list(data)[:limit]
    else:
        examples = read(data, limit)
    _check(examples, data)
    return _verb_number(model, tokenizer, examples)


def _check(examples: list[VerbExample], data: Any) -> None:
    wrong = next((e for e in examples if not isinstance(e, VerbExample)), None)
    if wrong is not None or not examples:
        held = "0 examples" if wrong is None else f"a {type(wrong).__name__}"
        raise InputError(
            f"task='verb-number' reads examples with prefix and label, and the data hold {held}. "
            "Leave data out for the package's own grammar, or use attnflow.probes.data.read(file)."
        )
    if all(e.subject is None for e in examples):
        raise InputError(
            f"{data if isinstance(data, str) else 'The data'} has {len(examples)} examples and says of none which word "
            "is the subject, so nothing can be pointed to (Linzen's .gold files give the verb's place, both forms and "
            "the attractors). Leave the data out for the package's own grammar, or give a .tsv file with the columns "
            "prefix, label, verb, other_form and subject_index."
        )


def _verb_number(model: Any, tokenizer: Any, examples: list[VerbExample]) -> tuple[Rows, str]:
    known = [e for e in examples if e.subject is not None]
    kind = kind_of(model, LABELS)
    with undisturbed(model) as module, torch.inference_mode(False):
        choices = choose(module, tokenizer, known)
    right = [c.example for c in choices if c.right]
    found = [_row(model, tokenizer, e, kind) for e in right]
    placed = [row for row in found if row is not None]
    if not placed:
        raise InputError(
            f"{type(model).__name__} gets the number of 0 of {len(examples)} verbs right, and only those are ranked: "
            "where the model is wrong, nobody knows what it should have read."
        )
    rows = tuple(Row(i, row.text, row.target, row.truth) for i, row in enumerate(placed))
    note = (
        f"{len(rows)} of {len(examples)} examples are used: {len(examples) - len(known)} name no subject, "
        f"{len(known) - len(choices)} cannot be asked of this model, {len(choices) - len(right)} it gets wrong, "
        f"{len(right) - len(rows)} have a subject that is not found in the text or too few words."
    )
    return Rows(rows), note


def _row(model: Any, tokenizer: Any, example: VerbExample, kind: str) -> Row | None:
    """The text as the model is asked, its target, and the characters of the subject."""
    asked = query(model, tokenizer, example, kind)
    assert asked is not None and example.subject is not None
    words = example.prefix.split()
    shown = (lambda text: text) if kind == "classifier" else natural
    before = shown(" ".join(words[: example.subject]))
    start = len(before) + (1 if before else 0)
    end = len(shown(" ".join(words[: example.subject + 1])))
    if kind == "masked":
        text = natural(f"{example.prefix} {tokenizer.mask_token} {example.rest or '.'}")
    else:
        text = shown(example.prefix)
    if text[start:end].lower() != words[example.subject].lower() or len(words) < 3:
        return None
    return Row(0, text, asked.target(kind), ((start, end),))


def true_positions(tokenizer: Any, row: Row, count: int, max_length: int | None) -> tuple[int, ...]:
    """The positions of the tokens that make up what must matter, of ``count`` that the text has."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not tell where its tokens stand in the text, so that the word which must "
            "matter cannot be found. Use a fast tokenizer:  AutoTokenizer.from_pretrained(name, use_fast=True)"
        )
    cut: dict[str, Any] = {} if max_length is None else {"truncation": True, "max_length": max_length}
    offsets = tokenizer(row.text, return_offsets_mapping=True, **cut)["offset_mapping"]
    if len(offsets) != count:
        raise InputError(f"The tokenizer gives {len(offsets)} tokens, and the model was given {count}.")
    inside = [i for i, (a, b) in enumerate(offsets) if a < b and any(a < end and start < b for start, end in row.truth)]
    if not inside:
        raise InputError(
            f"What must matter (characters {row.truth}) is in none of the {count} tokens of {row.text[:60]!r}: the "
            "text was cut. Leave max_length out."
        )
    return tuple(inside)
