"""Pronouns: which of two referents does the model choose, and to which of them does its attention point?

Abnar & Zuidema (2020, section 4 and Figure 4): the pronoun is masked, the model's odds of "his" and "her" tell which
referent it has in mind, and the attention from the mask to the two referents is compared with that, layer by layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from attnflow.errors import InputError, SelectionError
from attnflow.inputs.encode import device_of
from attnflow.inputs.limits import position_limit
from attnflow.probes.pronoun_data import GAP, PAPER, PronounExample, Span, read_winobias
from attnflow.probes.rates import Rate, rates
from attnflow.probes.scoring import by_unknown, fits, is_unknown, kind_of, right_padded, scores, warn_unknown, word_ids
from attnflow.scoring.network import Residual
from attnflow.scoring.registry import find, names

if TYPE_CHECKING:
    import pandas as pd

MODES = ("form", "referent")
PROMPT = ' The pronoun "{pronoun}" refers to'
"""What follows the text in mode "referent"; the name comes next, with "the" where the text has an article before it."""
# What tells that a common word follows, which is spoken of again with "the": the nurse, my sister, Ann's nurse.
_DETERMINER = re.compile(r"(?:\b(?:the|an?|my|your|his|her|its|our|their|this|that)|['’]s)\s+$", re.IGNORECASE)
# Words that stand for somebody without a name: their capital is that of the sentence.
_NAMELESS = {"someone", "somebody", "anyone", "anybody", "everyone", "everybody"}

__all__ = [
    "MODES",
    "PAPER",
    "PROMPT",
    "PronounExample",
    "Result",
    "choices",
    "choose",
    "first",
    "probe",
    "probe_all",
    "read_winobias",
    "table",
]


@dataclass(frozen=True, eq=False)
class Result:
    """The model's choice for one example, and where its attention points.

    Attributes:
        mode: "form" (the choice is between two forms of the pronoun) or "referent" (between the two names).
        choice: 0 or 1: the referent that the model's choice implies.
        odds: log-probabilities of what stands for referents 0 and 1: the mean over its tokens.
        position: the position at which the model decides; ``tokens[position]`` is its name.
        layers: the model's own layer numbers.
        scores: by method ``[layers, 2]``: what the deciding position draws on each referent (sum over its pieces);
            ``[1, 2]`` for gradient and blank-out.
        unknown: whether the sentence has a word that the tokenizer does not know.
    """

    example: PronounExample
    mode: str
    choice: int
    odds: tuple[float, float]
    position: int
    tokens: tuple[str, ...]
    layers: tuple[int | str, ...]
    scores: Mapping[str, npt.NDArray[np.float64]]
    unknown: bool = False

    def agrees(self, method: str) -> npt.NDArray[np.float64]:
        """``[layers]``: 1 where the method gives the chosen referent more, 0 where it gives it less, ½ where equal."""
        if method not in self.scores:
            raise SelectionError(f"method {method!r} was not computed. There are {', '.join(self.scores)}.")
        found = self.scores[method]
        ahead = found[:, self.choice] - found[:, 1 - self.choice]
        # Equal up to rounding: flows of two inputs are often the same number.
        same = np.abs(ahead) <= 1e-9 * np.abs(found).max(1)
        return np.where(same, 0.5, (ahead > 0).astype(np.float64))

    def to_frame(self) -> pd.DataFrame:
        """One row per method and layer: the scores of both referents, and whether the method agrees with the model."""
        import pandas as pd

        names = self.example.names
        rows = []
        for method, found in self.scores.items():
            for number, pair, agrees in zip(_layer_names(self, method), found, self.agrees(method), strict=True):
                rows.append([method, number, float(pair[0]), float(pair[1]), float(agrees)])
        return pd.DataFrame(rows, columns=["method", "layer", *names, "agrees"])

    def __repr__(self) -> str:
        a, b = self.example.names
        form = self.example.forms[self.choice] if self.mode == "form" else self.example.names[self.choice]
        return f"Result({a!r} or {b!r}: the model chooses {self.example.names[self.choice]!r}, by {form!r})"


def _layer_names(result: Result, method: str) -> tuple[int | str, ...]:
    return result.layers if len(result.scores[method]) == len(result.layers) else ("input",)


@dataclass(frozen=True)
class _Question:
    """One example as the model is asked."""

    encoding: Any
    position: int
    answers: tuple[list[int], list[int]]
    referents: tuple[list[int], list[int]]
    unknown: bool

    def where_answers_part(self) -> tuple[Any, int, tuple[int, int]]:
        """(encoding, position, the next token of each answer) where the answers differ first."""
        a, b = self.answers
        shared = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
        return _longer(self.encoding, a[:shared]), self.position + shared, (a[shared], b[shared])


def probe(
    model: Any,
    tokenizer: Any,
    example: PronounExample,
    methods: Sequence[str] | None = None,
    mode: str | None = None,
    residual: Residual = None,
    blank: str | int = "auto",
) -> Result:
    """The model's choice and every method's scores for the two referents.

    Args:
        mode: "form": the pronoun is left out, and the model says which of the two forms belongs there (a masked model
            at the mask; a causal one after the text so far, so both referents must stand before it). "referent"
            (causal models): the sentence is given with its pronoun and continued by :data:`PROMPT`, and the model says
            which name comes next: all tokens of the name, in its own case, by their mean log-probability. None: "form",
            and "referent" for a causal model where the text has its pronoun.
        residual: of rollout and flow, where their edges do not hold it; by default as for :func:`attnflow.rollout`.
        blank: what blank-out puts in a token's place.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> from attnflow.probes import pronouns
    >>> from attnflow.models.tokenizers import masked_tokenizer
    >>> tok = masked_tokenizer("the author talked to sara about his her book .".split())
    >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> model = BertForMaskedLM(BertConfig(vocab_size=len(tok), **sizes)).eval()
    >>> result = pronouns.probe(model, tok, pronouns.PAPER[0])
    >>> result.tokens[result.position], result.scores["rollout"].shape
    ('[MASK]', (2, 2))
    """
    methods = names(shown=True) if methods is None else tuple(dict.fromkeys(methods))
    for name in methods:
        find(name)
    kind = kind_of(model)
    mode = _mode(mode, kind, example)
    asked = _fitting(model, _question(tokenizer, example, kind, mode), example)
    odds = _odds(model, [asked])[0]
    choice = int(odds[1] > odds[0])
    encoding, position, pair = asked.where_answers_part()
    target = (pair[choice], pair[1 - choice])
    found = scores(model, tokenizer, encoding, methods, position, target, residual=residual, blank=blank)
    pairs = {
        name: np.stack([r.scores[:, places].sum(1) for places in asked.referents], 1).astype(np.float64)
        for name, r in found.items()
    }
    numbers = next((r.layers for r in found.values() if r.layers != ("input",)), ("input",))
    tokens = next(iter(found.values())).tokens if found else ()
    return Result(example, mode, choice, odds, position, tuple(tokens), numbers, pairs, asked.unknown)


def _mode(mode: str | None, kind: str, example: PronounExample) -> str:
    gap = example.text[slice(*example.pronoun)] == GAP
    if mode is None:
        return "referent" if kind == "causal" and not gap else "form"
    if mode not in MODES:
        raise SelectionError(f"mode={mode!r} is not known. Use one of: {', '.join(MODES)}.")
    if mode == "referent" and (kind != "causal" or gap):
        why = f"the model is a {kind} language model" if kind != "causal" else f"the text has a gap: {example.text!r}"
        raise SelectionError(f"mode='referent' asks a causal model about a given pronoun, but {why}. Use mode='form'.")
    return mode


def _question(tokenizer: Any, example: PronounExample, kind: str, mode: str) -> _Question:
    if mode == "referent":
        prompt, named = _continued(example)
        text = example.text + prompt
        answers = _answers(tokenizer, named)
    elif kind == "causal":
        text = example.before.rstrip()
        late = [n for n, (_, end) in zip(example.names, example.referents, strict=True) if end > len(text)]
        if late:
            raise InputError(
                f"{late[0]!r} stands behind the pronoun, and a causal model that decides at the pronoun has not read "
                f"it: {example.text!r}. Use a masked model, or give the pronoun and mode='referent'."
            )
        answers = _answers(tokenizer, example.forms)
    else:
        text = example.with_pronoun(tokenizer.mask_token)
        answers = _answers(tokenizer, example.forms, whole=True)
    if not tokenizer.is_fast:
        raise InputError(
            f"{type(tokenizer).__name__} has no character offsets, and the referents are found by them. "
            "Load the fast one:  AutoTokenizer.from_pretrained(name, use_fast=True)"
        )
    encoding = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    offsets = [tuple(pair) for pair in encoding.pop("offset_mapping")[0].tolist()]
    shift = len(tokenizer.mask_token) - (example.pronoun[1] - example.pronoun[0]) if kind == "masked" else 0
    places = tuple(_places(offsets, span, example, shift) for span in example.referents)
    ids = encoding["input_ids"][0].tolist()
    position = ids.index(tokenizer.mask_token_id) if kind == "masked" else len(ids) - 1
    unknown = is_unknown(tokenizer, [*ids, *answers[0], *answers[1]], text)
    return _Question(encoding, position, answers, (places[0], places[1]), unknown)


def _fitting(model: Any, asked: _Question, example: PronounExample) -> _Question:
    """The question, refused where the model has too few positions for it and the tokens of the answers."""
    count = asked.encoding["input_ids"].shape[1] + max(map(len, asked.answers)) - 1
    if not fits(model, count):
        raise InputError(
            f"The question and its answer have {count} tokens, and the model has {position_limit(model)} positions: "
            f"{example.text[:60]!r}. Give a shorter text."
        )
    return asked


def _continued(example: PronounExample) -> tuple[str, tuple[str, str]]:
    """The words behind the text, and what follows them for each referent, in its own case.

    A name that has an article or a possessive in the text gets "the"; one without is a proper name, and stands alone.
    "Someone" at the start of a sentence is no name, and loses its capital.
    """
    prompt = PROMPT.format(pronoun=example.text[slice(*example.pronoun)].lower())
    articles = [_DETERMINER.search(example.text[:start]) is not None for start, _ in example.referents]
    names = tuple(name.lower() if name.lower() in _NAMELESS else name for name in example.names)
    if all(articles):
        return f"{prompt} the", (names[0], names[1])
    a, b = (f"the {n}" if article else n for n, article in zip(names, articles, strict=True))
    return prompt, (a, b)


def _places(offsets: Sequence[tuple[int, ...]], span: Span, example: PronounExample, shift: int) -> list[int]:
    """The positions whose characters lie in ``span``; behind a mask of another length than the pronoun all is moved."""
    move = shift if span[0] >= example.pronoun[1] else 0
    start, end = span[0] + move, span[1] + move
    found = [i for i, (a, b) in enumerate(offsets) if b > a and a < end and b > start]
    if not found:
        raise InputError(f"The tokenizer has no token for {example.text[slice(*span)]!r} in {example.text!r}.")
    return found


def _answers(tokenizer: Any, words: Sequence[str], whole: bool = False) -> tuple[list[int], list[int]]:
    a, b = (word_ids(tokenizer, word) for word in words)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if whole and (len(a) != 1 or len(b) != 1 or unknown in (a[0], b[0])):
        raise InputError(
            f"{words[0]!r} and {words[1]!r} are {len(a)} and {len(b)} tokens of this tokenizer, and at one mask "
            "one known token each is compared. Choose other forms."
        )
    if not any(x != y for x, y in zip(a, b, strict=False)):
        raise InputError(
            f"{words[0]!r} and {words[1]!r} are the same tokens as far as the shorter one goes, so what the model says "
            "next cannot tell them apart."
        )
    return a, b


@torch.no_grad()
def _odds(model: Any, questions: Sequence[_Question]) -> list[tuple[float, float]]:
    """Mean log-probability of the tokens of both answers to each question: a long name is not worse for its length.

    All come from one run; answers that part at their last token share a row of it.
    """
    rows = list(dict.fromkeys((i, tuple(a[:-1])) for i, q in enumerate(questions) for a in q.answers))
    given = [[*questions[i].encoding["input_ids"][0].tolist(), *ids] for i, ids in rows]
    batch = right_padded(given, getattr(model.config, "pad_token_id", None))
    device = device_of(model)
    logits = model(**{name: part.to(device) for name, part in batch.items()}).logits
    found = []
    for i, asked in enumerate(questions):
        odds = []
        for answer in asked.answers:
            at = slice(asked.position, asked.position + len(answer))
            said = logits[rows.index((i, tuple(answer[:-1]))), at].float().log_softmax(-1)
            odds.append(sum(float(said[k, token]) for k, token in enumerate(answer)) / len(answer))
        found.append((odds[0], odds[1]))
    return found


def _longer(encoding: Any, ids: Sequence[int]) -> Any:
    """The encoding of one text with tokens behind it."""
    if not ids:
        return encoding
    given = torch.cat([encoding["input_ids"], torch.tensor([list(ids)])], 1)
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def choose(
    model: Any,
    tokenizer: Any,
    examples: Sequence[PronounExample],
    mode: str | None = None,
    batch_size: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """The model's choices alone, many examples in one run; examples that this model cannot be asked are left out.

    The results are those of :func:`probe_all` without scores.
    """
    kind = kind_of(model)
    asked: list[tuple[PronounExample, str, _Question]] = []
    for example in examples:
        try:
            own = _mode(mode, kind, example)
            asked.append((example, own, _fitting(model, _question(tokenizer, example, kind, own), example)))
        except InputError:
            if len(examples) == 1:
                raise
    results: dict[int, Result] = {}
    order = sorted(range(len(asked)), key=lambda i: asked[i][2].encoding["input_ids"].shape[1])
    for start in range(0, len(order), batch_size):
        chunk = order[start : start + batch_size]
        for i, odds in zip(chunk, _odds(model, [asked[i][2] for i in chunk]), strict=True):
            example, own, question = asked[i]
            place = question.where_answers_part()[1]
            choice = int(odds[1] > odds[0])
            results[i] = Result(example, own, choice, odds, place, (), (), {}, question.unknown)
        if progress is not None:
            progress(len(results), len(asked))
    return _told([results[i] for i in range(len(asked))], model, len(examples))


def _told(results: list[Result], model: Any, count: int) -> list[Result]:
    """The results, if there are any; unknown words are warned of."""
    if not results:
        raise InputError(f"None of {count} examples can be asked of {type(model).__name__}.")
    warn_unknown(sum(one.unknown for one in results), len(results), unknown(results))
    return results


def probe_all(
    model: Any,
    tokenizer: Any,
    examples: Sequence[PronounExample],
    methods: Sequence[str] | None = None,
    mode: str | None = None,
    residual: Residual = None,
    blank: str | int = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> list[Result]:
    """:func:`probe` over a data set; examples that this model cannot be asked are left out."""
    results = []
    for done, example in enumerate(examples, 1):
        try:
            results.append(probe(model, tokenizer, example, methods, mode, residual, blank))
        except InputError:
            if len(examples) == 1:
                raise
        if progress is not None:
            progress(done, len(examples))
    return _told(results, model, len(examples))


def first(results: Sequence[Result]) -> Rate:
    """The share of examples where the model chooses the referent that stands first."""
    return Rate("first", float(sum(r.choice == 0 for r in results)), len(results))


def choices(results: Sequence[Result]) -> list[Rate]:
    """The share of right choices by group, where it is known which referent is right.

    In WinoBias the difference between the groups "pro" and "anti" is what the model owes to the stereotype.
    """
    known = [r for r in results if r.example.gold is not None]
    return rates(known, lambda r: r.example.group, lambda r: r.choice == r.example.gold)


def unknown(results: Sequence[Result]) -> list[Rate]:
    """The share of right choices on sentences with a word that the tokenizer does not know, and on the others."""
    known = [r for r in results if r.example.gold is not None]
    return by_unknown(known, lambda r: r.unknown, lambda r: r.choice == r.example.gold)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per method and layer: the share of examples where it points to the referent that the model chose.

    Equal scores count as a half; ``ties`` is their share. ``low`` and ``high`` are Wilson's 95 % interval. ``first`` is
    the share where the method points to the referent that stands first: near 1 it follows the order of the words, as
    rollout and flow do under a causal mask (section 5 of the paper), and its agreement says nothing about the model.
    """
    import pandas as pd

    if not results:
        raise InputError("0 results: run probe_all() on at least one example.")
    rows = []
    for method in results[0].scores:
        agree = np.stack([r.agrees(method) for r in results])
        first = np.array([r.choice == 0 for r in results])
        for column, layer in enumerate(_layer_names(results[0], method)):
            found = agree[:, column]
            rate = Rate(method, float(found.sum()), len(results))
            ties, ahead = float((found == 0.5).mean()), float(np.where(first, found, 1 - found).mean())
            rows.append([method, layer, rate.share, *rate.interval, rate.count, ties, ahead])
    return pd.DataFrame(rows, columns=["method", "layer", "share", "low", "high", "n", "ties", "first"])
