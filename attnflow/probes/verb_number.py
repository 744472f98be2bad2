"""Verb number: does the model know whether the verb is singular or plural, and which words did it draw on?

This is the task of Linzen, Dupoux & Goldberg (2016) on which Abnar & Zuidema (2020, sections 2 and 4) introduced
rollout and flow. A classifier with the labels singular and plural reads the words before the verb. A causal language
model says which form of the verb is likelier next, a masked one which form is likelier at the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from attnflow.correlation import correlate
from attnflow.errors import InputError, SelectionError
from attnflow.inputs.encode import device_of
from attnflow.models.shipped import LABELS
from attnflow.models.shipped import load as load  # where users look for it
from attnflow.probes.data import VerbExample
from attnflow.probes.rates import Mean, Rate, rates
from attnflow.probes.scoring import (
    by_unknown,
    fits,
    is_unknown,
    kind_of,
    natural,
    right_padded,
    scores,
    warn_unknown,
    word_ids,
)
from attnflow.scoring.network import Residual
from attnflow.scoring.registry import find, names

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Query:
    """One example as the model is asked.

    Attributes:
        ids: what the model reads.
        position: where it answers; None for a classifier, which has one answer for the whole text.
        right, wrong: the class, or the first token, of the right and of the wrong form; ``wrong`` is None where two
            prefixes are compared.
        verb: all tokens of the verb, where two prefixes are compared.
        against: the other prefix, asked alike.
        unknown: whether a word of the sentence is unknown to the tokenizer.
    """

    ids: list[int]
    position: int | None
    right: int
    wrong: int | None
    verb: tuple[int, ...] = ()
    against: Query | None = None
    unknown: bool = False

    def target(self, kind: str) -> int | tuple[int, int]:
        """What is explained: a class, the right form against the wrong one, or the one form that there is."""
        return self.right if kind == "classifier" or self.wrong is None else (self.right, self.wrong)

    def given(self) -> list[list[int]]:
        """The rows that the model reads: the pieces of a verb one after another, each behind those before it."""
        own = [*self.ids, *self.verb[:-1]]
        return [own] if self.against is None else [own, *self.against.given()]


def other_label(label: str) -> str:
    """The other number."""
    return LABELS[1 - LABELS.index(label)]


def query(model: Any, tokenizer: Any, example: VerbExample, kind: str) -> Query | None:
    """How the model is asked about one example; None if it cannot be."""
    if not example.label:
        return None
    if example.label not in LABELS:
        raise InputError(f"The label {example.label!r} is neither of {', '.join(LABELS)}: {example.prefix!r}")
    if kind == "classifier":
        asked: Query | None = _class(model, tokenizer, example)
    elif example.against:
        asked = _two_prefixes(tokenizer, example, kind)
    else:
        asked = _two_forms(tokenizer, example, kind)
    return asked if asked is not None and fits(model, max(map(len, asked.given()))) else None


def _class(model: Any, tokenizer: Any, example: VerbExample) -> Query:
    """The class of the words before the verb."""
    ids = {str(label).lower(): i for label, i in model.config.label2id.items()}
    encoded = list(tokenizer(example.prefix)["input_ids"])
    lost = is_unknown(tokenizer, encoded, example.prefix)
    return Query(encoded, None, ids[example.label], ids[other_label(example.label)], unknown=lost)


def _two_forms(tokenizer: Any, example: VerbExample, kind: str) -> Query | None:
    """The right form of the verb or the wrong one, in its place."""
    if not example.verb or not example.other:
        return None
    right, wrong = (word_ids(tokenizer, form) for form in (example.verb, example.other))
    if right[0] == wrong[0] or (kind == "masked" and (len(right) != 1 or len(wrong) != 1)):
        return None
    encoded, position = _encoded(tokenizer, example.prefix, example.rest, kind)
    lost = is_unknown(tokenizer, [*encoded, *right, *wrong], _text(example, kind))
    return Query(encoded, position, right[0], wrong[0], unknown=lost)


def _two_prefixes(tokenizer: Any, example: VerbExample, kind: str) -> Query | None:
    """One form of the verb after the right prefix and after the wrong one (BLiMP's two-prefix method)."""
    verb = word_ids(tokenizer, example.verb) if example.verb else []
    if not verb or (kind == "masked" and len(verb) != 1):
        return None
    asked = [_encoded(tokenizer, text, example.rest, kind) for text in (example.prefix, example.against)]
    lost = is_unknown(tokenizer, [*asked[0][0], *asked[1][0], *verb], _text(example, kind))
    against = Query(*asked[1], verb[0], None, tuple(verb))
    return Query(*asked[0], verb[0], None, tuple(verb), against, lost)


def _encoded(tokenizer: Any, prefix: str, rest: str, kind: str) -> tuple[list[int], int]:
    """(ids, where the answer is read): the prefix, or for a masked model the sentence with a mask for the verb."""
    if kind == "causal":
        ids = list(tokenizer(natural(prefix))["input_ids"])
        return ids, len(ids) - 1
    ids = list(tokenizer(natural(f"{prefix} {tokenizer.mask_token} {rest or '.'}"))["input_ids"])
    return ids, ids.index(tokenizer.mask_token_id)


def _text(example: VerbExample, kind: str) -> str:
    return f"{example.prefix} {example.rest}" if kind == "masked" else example.prefix


@torch.no_grad()
def margins(model: Any, queries: Sequence[Query]) -> list[float]:
    """Log-odds of right against wrong, from one forward pass; shorter rows are padded on the right.

    The padding is the model's own: a causal classifier answers at the last position that is not padding. One that
    names no padding takes a single row at a time.
    """
    device = device_of(model)
    rows = [row for q in queries for row in (q, q.against) if row is not None]
    given = [row for q in queries for row in q.given()]
    pad = getattr(model.config, "pad_token_id", None)
    if pad is None and rows[0].position is None and len(rows) > 1:
        return [margin for q in queries for margin in margins(model, [q])]
    batch = {name: part.to(device) for name, part in right_padded(given, pad).items()}
    logits = model(**batch).logits.float().cpu()
    values = iter([_value(logits[i], row) for i, row in enumerate(rows)])
    return [next(values) - (0.0 if q.against is None else next(values)) for q in queries]


def _value(logits: torch.Tensor, row: Query) -> float:
    """The log-odds of two forms, or the log-probability of the one form that there is."""
    if row.position is None or row.wrong is not None:
        at = logits if row.position is None else logits[row.position]
        return float(at[row.right] - at[row.wrong])
    found = logits[row.position : row.position + len(row.verb)].log_softmax(-1)
    return float(sum(found[i, token] for i, token in enumerate(row.verb)))


@dataclass(frozen=True)
class Choice:
    """What the model chose for one example.

    Attributes:
        label: "singular" or "plural".
        margin: log-odds of the right form against the wrong one; above 0 where the model is right. Of a two-prefix
            example: how much likelier the verb is behind the right prefix.
        unknown: whether the sentence has a word that the tokenizer does not know.
    """

    example: VerbExample
    label: str
    margin: float
    unknown: bool = False

    @property
    def right(self) -> bool:
        """True if the model chose the right number."""
        return self.label == self.example.label


def choose(
    model: Any,
    tokenizer: Any,
    examples: Sequence[VerbExample],
    batch_size: int = 32,
    progress: Progress | None = None,
) -> list[Choice]:
    """The number that the model chooses for each example; examples that cannot be asked are left out.

    The model needs positions for the whole sentence. A language model can be asked where both forms of the verb are
    known and their first tokens differ (a masked one: where both are one token). The choice is between the two forms'
    probabilities in the verb's place; of a two-prefix example, between the verb's probabilities behind the two
    prefixes. A warning gives the share of sentences with words that the tokenizer does not know.

    >>> from attnflow.probes import grammar
    >>> from attnflow.models.verb_number import VerbNumberModel, VerbNumberConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> tok = word_tokenizer(grammar.vocabulary())
    >>> tiny = VerbNumberModel(VerbNumberConfig(n_layer=1, n_embd=8, n_head=2, vocab_size=len(tok))).eval()
    >>> len(choose(tiny, tok, grammar.sentences(4)))
    4
    """
    if not examples:
        raise InputError("0 examples: give at least one, for instance attnflow.probes.grammar.sentences(100).")
    kind = kind_of(model, LABELS)
    found = [(e, query(model, tokenizer, e, kind)) for e in examples]
    asked = [(e, q) for e, q in found if q is not None]
    if not asked:
        raise InputError(
            f"None of {len(examples)} examples can be asked of a {kind} model: both forms of the verb must be given, "
            "and begin with different tokens (a classifier needs the number alone), and the model must have positions "
            "for the whole sentence."
        )
    order = sorted(range(len(asked)), key=lambda i: len(asked[i][1].ids))
    found_margins: dict[int, float] = {}
    for start in range(0, len(order), batch_size):
        chunk = order[start : start + batch_size]
        found_margins |= dict(zip(chunk, margins(model, [asked[i][1] for i in chunk]), strict=True))
        if progress is not None:
            progress(len(found_margins), len(asked))
    choices = [_choice(e, found_margins[i], q.unknown) for i, (e, q) in enumerate(asked)]
    warn_unknown(sum(one.unknown for one in choices), len(choices), unknown(choices))
    return choices


def _choice(example: VerbExample, margin: float, lost: bool) -> Choice:
    return Choice(example, example.label if margin > 0 else other_label(example.label), margin, lost)


def accuracy(choices: Sequence[Choice]) -> list[Rate]:
    """The share of right choices, over all examples and by number of attractors, with 95 % intervals."""
    return rates(choices, lambda c: c.example.attractors, lambda c: c.right)


def unknown(choices: Sequence[Choice]) -> list[Rate]:
    """The share of right choices on sentences with a word that the tokenizer does not know, and on the others."""
    return by_unknown(choices, lambda c: c.unknown, lambda c: c.right)


def majority(choices: Sequence[Choice], label: str | None = None) -> list[Rate]:
    """The same for always saying ``label``, by default the more frequent one of these examples."""
    labels = [c.example.label for c in choices]
    chosen = label or max(LABELS, key=labels.count)
    return rates(choices, lambda c: c.example.attractors, lambda c: c.example.label == chosen)


@dataclass(frozen=True)
class Layers:
    """Rank correlations of attention with gradients and blank-out, layer by layer.

    Attributes:
        values: by (method, reference): ``[examples, layers]``, NaN where a scoring is constant.
        layers: the model's own layer numbers.
        settings: how gradients and blank-out were computed.
    """

    values: dict[tuple[str, str], npt.NDArray[np.float64]]
    layers: tuple[int | str, ...]
    settings: dict[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row per method, reference and layer: mean, std, half width of the mean's 95 % interval, n, missing."""
        import pandas as pd

        rows = []
        for (method, reference), values in self.values.items():
            for column, layer in enumerate(self.layers):
                m = Mean.of(values[:, column])
                rows.append([method, reference, layer, m.mean, m.std, m.half_width, m.count, m.missing])
        names = ["method", "reference", "layer", "mean", "std", "half_width", "n", "missing"]
        return pd.DataFrame(rows, columns=names)


def layers(
    model: Any,
    tokenizer: Any,
    examples: Sequence[VerbExample],
    methods: Sequence[str] | None = None,
    references: Sequence[str] | None = None,
    correlation: str = "spearman",
    special_tokens: bool = True,
    residual: Residual = None,
    blank: str | int = "auto",
    reduce: str = "abs_sum",
    progress: Progress | None = None,
) -> Layers:
    """How well each attention method ranks the inputs as gradients and blank-out do (Tables 1 and 2 of the paper).

    For every example the row of attention at the deciding position (CLS of a classifier, or the last position of a
    causal one; the mask; the last word before the verb) is compared with the importance of the inputs for the right
    form: a classifier's right class, a language model's right form against the wrong one. ``blank="unk"`` and
    ``reduce="paper"`` are the paper's choices.
    """
    methods = tuple(names("attention", shown=True) if methods is None else dict.fromkeys(methods))
    references = tuple(names("model", shown=True) if references is None else dict.fromkeys(references))
    if not methods or not references:
        raise SelectionError("At least one attention method and one reference are needed: methods=, references=.")
    for name in (*methods, *references):
        find(name)
    collected: dict[tuple[str, str], list[npt.NDArray[np.float64]]] = {(m, r): [] for r in references for m in methods}
    numbers: tuple[int | str, ...] = ()
    settings: dict[str, Any] = {}
    total = len(examples)
    for done, found in enumerate(
        _scored(model, tokenizer, examples, [*methods, *references], residual=residual, blank=blank, reduce=reduce),
        1,
    ):
        for (method, reference), rows in collected.items():
            c = correlate(found[method], found[reference], correlation, special_tokens=special_tokens)
            rows.append(c.values)
            numbers = c.layers
        settings = {r: dict(found[r].settings) for r in references}
        if progress is not None:
            progress(done, total)
    if not numbers:
        raise InputError(f"None of {total} examples can be asked of {type(model).__name__}: see attnflow.probes.data.")
    return Layers({key: np.stack(rows) for key, rows in collected.items()}, numbers, settings)


def _scored(
    model: Any, tokenizer: Any, examples: Sequence[VerbExample], methods: Sequence[str], **options: Any
) -> Iterator[dict[str, Any]]:
    """The scores of every method for each example that the model can be asked."""
    kind = kind_of(model, LABELS)
    for example in examples:
        asked = query(model, tokenizer, example, kind)
        if asked is None:
            continue
        ids = torch.tensor([asked.ids])
        encoding = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        yield scores(model, tokenizer, encoding, methods, asked.position, asked.target(kind), **options)
