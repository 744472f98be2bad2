"""What a league computes, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnflow.comparing.plan import Plan, check_choices
from attnflow.comparing.records import Layout
from attnflow.errors import AttnFlowError, InputError, SelectionError
from attnflow.faithfulness.registry import DEFAULT, WITH_TRUTH, Measure, find_measures
from attnflow.faithfulness.tasks import true_positions
from attnflow.faithfulness.variants import group, one_unit
from attnflow.inputs.datasets import Data, Row, Rows
from attnflow.inputs.example import Example, one_example
from attnflow.inputs.target import check_target
from attnflow.numbers import at_least, check_max_length, is_whole, wholes
from attnflow.scoring.blankout import settle_blank
from attnflow.scoring.registry import MethodCall, Spec, calls, names

if TYPE_CHECKING:
    from attnflow.comparing.runs import Worker

RANDOM, LENGTH, RAW = "random", "length", "raw"
BASELINES = (RANDOM, LENGTH, RAW)
# The methods of a league without others: those that are shown by default, and the other gradients.
METHODS = (*names(shown=True), "input_x_gradient", "integrated_gradients")
BLANKS = ("auto", "delete")
COLUMNS = {
    "example": "int64",
    "digest": "string",
    "target": "string",
    "method": "string",
    "layer": "int32",
    "measure": "string",
    "kind": "string",
    "value": "double",
    "drawn": "double",
    "n": "int32",
    "ties": "double",
    "rounding": "double",
    "passes": "int32",
    "variants": "int32",
    "error": "string",
}
LAYOUT = Layout("attnflow rank", COLUMNS, later=("rounding",))


@dataclass(frozen=True, kw_only=True)
class LeaguePlan(Plan):
    """Everything that decides what the records are; see :func:`attnflow.rank`."""

    methods: tuple[MethodCall, ...]
    measures: tuple[Measure, ...]
    blanks: tuple[str | int, ...]
    draws: int
    steps: int
    seed: int = 0
    randomised: int
    layout = LAYOUT
    doing = "ranking"

    def worker(self, model: Any, tokenizer: Any) -> Worker:
        """What turns rows into records."""
        from attnflow.faithfulness.worker import RankWorker

        return RankWorker(model, tokenizer, self)

    def settings(self) -> dict[str, Any]:
        """Plain JSON: two runs with the same settings have the same records."""
        return {
            **super().settings(),
            "methods": {call.name: call.settings() for call in self.methods},
            "measures": [m.name for m in self.measures],
            "blank": list(self.blanks),
            "draws": self.draws,
            "steps": self.steps,
            "seed": self.seed,
            "randomised": self.randomised,
        }

    @property
    def pointed(self) -> bool:
        """Whether some measure needs the truth."""
        return any(m.needs == "truth" for m in self.measures)

    def check(self, model: Any, tokenizer: Any, data: Data | Rows) -> None:
        """Refuse what cannot be ranked, before the model runs; data of unknown length are checked as they come."""
        for row in data:
            if self.pointed and not row.truth:
                name = next(m.name for m in self.measures if m.needs == "truth")
                raise InputError(
                    f"The measure {name!r} asks whether a score points to the input that must matter, and the data do "
                    f"not say which that is. Name it by truth_column=, use task='verb-number', or measures={DEFAULT!r}"
                )
            if row.number == 0 or data.count is not None:
                self._check_row(model, tokenizer, row)
            if data.count is None:
                return

    def _check_row(self, model: Any, tokenizer: Any, row: Row) -> None:
        try:
            example = one_example(model, tokenizer, row.text, self.max_length)
            check_target(model, example.tokenizer, row.target)
            if row.number == 0:
                self.settled(example)
            groups = group(example, self.unit)
            plain = [i for i, special in enumerate(groups.tokens.special) if not special]
            if len(plain) < 2:
                raise InputError(one_unit(groups.tokens, plain))
            if self.pointed:
                true_positions(example.tokenizer, row, len(example.tokens), self.max_length)
        except AttnFlowError as error:
            if self.on_error == "skip" and row.number > 0:
                return
            raise type(error)(
                f"Example {row.number}: {error}\nLeave such examples out by on_error='skip' (--skip-errors)."
            ) from error

    def settled(self, example: Example) -> dict[str, str | int]:
        """The blanks of this model, by the name that tables give them."""
        found: dict[str, str | int] = {}
        for blank in self.blanks:
            value = settle_blank(example, blank)
            name = _name(example, blank, value)
            if value in found.values():
                raise SelectionError(
                    f"blank={list(self.blanks)!r}, but two of them are the same for {example.name}: {name}. Every "
                    "table shows at least two kinds, because rankings differ by them:  blank=('auto', 'delete')"
                )
            found[name] = value
        return found


def _name(example: Example, blank: str | int, value: str | int) -> str:
    if isinstance(value, str) or blank != "auto":
        return str(value if blank == "auto" else blank)
    return next((n for n in ("mask", "unk") if example.token_id(n) == value), str(value))


def several(blank: Any) -> tuple[str | int, ...]:
    """Kinds of blanks, also where one alone is given.

    >>> several("delete"), several(["mask", 0])
    (('delete',), ('mask', 0))
    """
    return (blank,) if isinstance(blank, str) or is_whole(blank) else tuple(blank)


def make_plan(
    methods: Spec | None,
    measures: str | Sequence[str] | None,
    blank: str | int | Sequence[str | int],
    layers: int | Sequence[int] | None,
    truth: bool,
    **rest: Any,
) -> LeaguePlan:
    """Check the names and options, and find the functions."""
    asked = calls("methods", METHODS if methods is None else methods)
    taken = next((c.name for c in asked if c.name in (RANDOM, LENGTH)), None)
    if taken is not None:
        raise SelectionError(f"methods: {taken!r} is the name of a baseline, which is always there: choose another.")
    if RAW not in {c.name for c in asked}:
        asked = (*asked, *calls("methods", RAW))
    chosen = find_measures((WITH_TRUTH if truth else DEFAULT) if measures is None else measures)
    blanks = several(blank)
    if len(set(blanks)) < 2:
        raise SelectionError(
            f"blank={blank!r} is one kind, and every table shows at least two, because rankings differ by them:  "
            f"blank=({blanks[0]!r}, {'delete' if blanks[0] != 'delete' else 'auto'!r})"
            if blanks
            else "blank is empty: give at least two kinds:  blank=('auto', 'delete')"
        )
    check_choices(rest["unit"], rest["on_error"])
    for name, least in (("draws", 10), ("steps", 1), ("batch_size", 1), ("randomised", 0)):
        at_least(rest[name], least, name)
    rest["max_length"] = check_max_length(rest["max_length"])
    read = None if layers is None else wholes(layers, "layers")
    return LeaguePlan(methods=asked, measures=chosen, blanks=blanks, layers=read, **rest)
