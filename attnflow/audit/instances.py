"""The instances of an experiment: one text each, the output that is watched, and the class it is counted under."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnflow.audit.measures import tvd
from attnflow.audit.outcomes import is_causal
from attnflow.errors import AttnFlowError, InputError, SelectionError
from attnflow.inputs.example import Example, one_example
from attnflow.inputs.target import Goal, full_output
from attnflow.numbers import check_max_length, real, word
from attnflow.reprs import one_line
from attnflow.scoring.blankout import stacked
from attnflow.select import pick_position

if TYPE_CHECKING:
    import pandas as pd

    from attnflow.inputs.datasets import Row

Progress = Callable[[int, int], None]

ALL = "all"
"""The name under which instances of all classes are counted together."""
# More classes than this (the tokens that a language model predicts) are counted together only.
_CLASSES = 20
_SPOKEN = 5


@dataclass(frozen=True, eq=False)
class Instance:
    """One text of an experiment.

    Attributes:
        number: its number in the data.
        example: what the model is given.
        goal: which output is watched.
        row: the output position whose attention is examined; in a causal model the last, where none is named.
        label: the class it is counted under: the label given, else the class predicted; "" for a predicted token.
    """

    number: int
    example: Example
    goal: Goal
    row: int
    label: str

    def output(self, outputs: Any) -> Tensor:
        """``[batch, classes]``: the probabilities that are watched, in as many digits as the device has."""
        row = self.goal.row(outputs)
        wide = row.float() if row.device.type == "mps" else row.double()
        return self.goal.scored(wide)

    def change(self, p: Tensor, q: Tensor) -> Tensor:
        """``[…, classes]`` twice → ``[…]``: the total variation distance of two outputs.

        Classes that do not exclude one another are a distribution each, and the mean of their distances is taken.
        """
        return (p - q).abs().mean(-1) if self.goal.independent else tvd(p, q)

    @property
    def text(self) -> str:
        """The tokens after one another, to recognise it by."""
        shown = " ".join(self.example.tokens)
        return shown if len(shown) <= 80 else shown[:79] + "…"


@one_line
@dataclass(frozen=True)
class Texts:
    """The texts of an experiment, and the labels under which they are counted."""

    rows: tuple[Row, ...]
    labels: tuple[Any, ...] | None
    position: int | str | None
    max_length: int | None

    def __len__(self) -> int:
        return len(self.rows)

    def instances(self, model: nn.Module, tokenizer: Any, head: bool = True) -> Iterator[Instance]:
        """One instance after the other; ``head``: refuse a model whose output is no distribution."""
        causal = False
        for i, row in enumerate(self.rows):
            try:
                example = one_example(model, tokenizer, row.text, self.max_length)
                if i == 0 and self.position is None and "cls" in example.queries.marks:
                    causal = is_causal(model, example.inputs)
                label = None if self.labels is None else self.labels[i]
                yield self._instance(example, row.number, label, head, causal)
            except AttnFlowError as error:
                raise type(error)(f"Text {row.number}: {error}") from error

    def _instance(self, example: Example, number: int, label: Any, head: bool, causal: bool) -> Instance:
        goal, outputs = example.predicted(self.position), example.outputs
        if head:
            _check_head(example, goal, outputs)
        if goal.kind in ("classification", "token") and goal.score != "logit":
            goal = replace(goal, score="prob")
        row = pick_position(example.place(goal, self.position, causal), example.queries)
        if label is None:
            name = goal.label if goal.kind == "classification" else ""
        else:
            name = _named(example.model, label)
        # The logits of every position of every text would be more than all else.
        example.cache.clear()
        return Instance(number, example, goal, row, name)

    def settings(self) -> dict[str, Any]:
        """What a result says about them."""
        by = "predicted class (predicted tokens are counted together)" if self.labels is None else "label given"
        return {"texts": len(self), "position": self.position, "max_length": self.max_length, "class": by}


def open_texts(
    texts: Any,
    labels: Sequence[Any] | None = None,
    *,
    position: int | str | None = None,
    text_column: str | None = None,
    target_column: str | None = None,
    limit: int | None = None,
    max_length: int | None = None,
) -> Texts:
    """Anything that holds texts; see :func:`attnflow.inputs.datasets.open_data`.

    >>> len(open_texts(["the key", "the cabinets"], labels=[0, 1]))
    2
    """
    from attnflow.inputs.datasets import open_data

    if isinstance(texts, str) and " " in texts and not Path(texts).exists():
        raise InputError(f"texts is one str, and a list, a dataset or a file is expected:  texts=[{texts[:30]!r}]")
    if labels is not None and target_column is not None:
        raise InputError(f"labels= was given and target_column={target_column!r} too: leave one of them out.")
    data = open_data(texts, text_column=text_column, target_column=target_column, limit=limit)
    rows = tuple(data)
    if not rows:
        raise InputError("There are 0 texts: give at least one.")
    if target_column is not None:
        labels = [row.target for row in rows]
    if labels is not None and len(labels) != len(rows):
        raise InputError(f"{len(labels)} labels for {len(rows)} texts: give one for each text, or leave labels out.")
    return Texts(rows, None if labels is None else tuple(labels), position, check_max_length(max_length))


def inputs_of(instances: Sequence[Instance], copies: int = 1) -> dict[str, Any]:
    """One batch of texts of the same length, each ``copies`` times after one another."""
    return stacked([i.example.lean(i.goal) for i in instances for _ in range(copies)])


def outputs_of(instances: Sequence[Instance], outputs: Any, copies: int = 1) -> Tensor:
    """``[texts, copies, classes]``: of each text at its own position."""
    full = full_output(outputs)
    return torch.stack([one.output(full[i * copies : (i + 1) * copies]) for i, one in enumerate(instances)])


def _check_head(example: Example, goal: Goal, outputs: Any) -> None:
    name = type(example.model).__name__
    if goal.kind not in ("classification", "token"):
        raise SelectionError(
            f"{name} has no head, and the experiment compares distributions over classes or tokens. Load it with one:  "
            "AutoModelForSequenceClassification.from_pretrained(name)"
        )
    if goal.row(outputs).shape[-1] == 1 and not goal.independent:
        raise SelectionError(
            f"{name} has one output, which is no probability, and the experiment compares probabilities. If it is the "
            'logit of a yes:  model.config.problem_type = "multi_label_classification"'
        )


def _named(model: Any, label: Any) -> str:
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    return str(names.get(label, label)) if isinstance(label, int) else str(label)


def by_class(records: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The records of each class, and those of all: as the rows of a table.

    >>> import pandas as pd
    >>> [(name, len(part)) for name, part in by_class(pd.DataFrame({"class": ["a", "b", "a"]}))]
    [('a', 2), ('b', 1), ('all', 3)]
    """
    names = sorted(set(records["class"]) - {""})
    parts = [(name, records[records["class"] == name]) for name in names] if 1 < len(names) <= _CLASSES else []
    return [*parts, (ALL, records)]


def in_words(records: pd.DataFrame, column: str, middle: str = "mean") -> str:
    """ " By class: a 0.12, b 0.34." for a verdict; nothing where there is one class, or more than can be read.

    >>> import pandas as pd
    >>> in_words(pd.DataFrame({"class": ["a", "b", "a"], "x": [0.1, 0.5, 0.2]}), "x")
    ' By class: a 0.150, b 0.500.'
    """
    parts = by_class(records)[:-1]
    if not 1 < len(parts) <= _SPOKEN:
        return ""
    return f" By class: {', '.join(f'{name} {part[column].agg(middle):.3f}' for name, part in parts)}."


def check_number(name: str, value: float, least: float = 1) -> None:
    """An error for a number that is too small."""
    if not real(value, name) >= least:
        raise SelectionError(f"{name}={value}, but at least {least} is needed.")


def check_choice(name: str, value: Any, known: Sequence[Any]) -> None:
    """An error for a word that is not one of the choices."""
    if word(value, name) not in known:
        raise SelectionError(f"{name}={value!r} is not known. Use one of: {', '.join(map(repr, known))}.")
