"""Blank-out: take one input away and see how the output changes."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnflow.divergence import DISTANCES
from attnflow.errors import AttnFlowWarning, SelectionError, WeightsError
from attnflow.informative import flat
from attnflow.inputs.embedding import IDS, find, repeated, run
from attnflow.inputs.example import Example, examples
from attnflow.inputs.running import arguments, undisturbed
from attnflow.inputs.target import SCORES, Goal, Target
from attnflow.inputs.untrained import accepting, check_trained
from attnflow.numbers import at_least, is_whole, truths, word
from attnflow.relevance import Relevance
from attnflow.tokens import Grouping, group_words

TOKENS = ("mask", "unk", "pad", "eos")
BLANKS = (*TOKENS, "delete", "mean-embedding")
PIXELS = ("mean", "zero")
UNITS = ("token", "word")


@overload
def blankout(model: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def blankout(model: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def blankout(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    blank: str | int = "auto",
    target: Target = None,
    score: str | None = None,
    position: int | str | None = None,
    unit: str = "token",
    signed: bool = False,
    batch_size: int = 32,
    untrained: bool = False,
    **options: Any,
) -> Relevance | list[Relevance]:
    """How much the output changes when one input is blanked out (leave-one-out).

    ``scores[0, j]``: |F(x) − F(x without input *j*)| (rows: the one "input" layer, columns: input positions).
    Abnar & Zuidema (2020, §3) replace the token by UNK and take the probability of the right class:
    ``blank="unk"``, ``score="prob"``. Jain & Wallace (2019, Algorithm 1) delete it and take the total
    variation distance of the outputs: ``blank="delete"``, ``score="tvd"``. The choice changes the ranking,
    so ``settings`` name it. Replacement is Captum's feature ablation, many variants in a forward pass.

    Args:
        model, tokenizer, text: as everywhere; ``text`` may be a list, a ``BatchEncoding`` or ids.
        blank: "mask", "unk", "pad" or "eos" (the tokenizer's), the id of a token, "delete", or "mean-embedding" (the
            mean of all word embeddings). "auto": the first of mask, unk and mean-embedding that there is; an unk token
            that is also the begin or end token does not count. For images: "mean" (the mean colour; "auto") or "zero".
        target: what is explained; None = what the model predicted. See :mod:`attnflow.inputs.target`.
        score: "prob", "logit" or "logprob" of the target; or the distance between the whole outputs: "tvd", "kl",
            "jsd", "cosine", "euclidean". None: "prob", or "cosine" for a model without a head.
        position: the output position that is explained, where the output has several. Deleting that position itself
            leaves nothing to compare: its score is NaN.
        unit: "token", or "word": all pieces of a word at once.
        signed: True keeps the sign: positive where the input spoke for the target.
        batch_size: the largest number of variants per forward pass.
        untrained: True explains a model also where its head was drawn at random when it was loaded.
        options: passed to the encoding of the text.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> r = blankout(tiny, text=[1, 5, 6, 2], blank=0)
    >>> r.scores.shape, r.settings["blank"]
    ((1, 4), 0)
    """
    _check(score, unit, batch_size, signed)
    chosen: dict[str, Any] = {"blank": blank, "score": score, "unit": unit, "signed": signed}
    results = []
    model, tokenizer, text = arguments(model, tokenizer, text, "blankout")
    with undisturbed(model) as module, accepting(untrained):
        found, single = examples(module, tokenizer, text, **options)
        for example in found:
            settle_blank(example, blank)
        for example in found:
            goal, _ = example.goal(target, position, score if score in SCORES else None)
            results.append(blankout_of(example, goal, batch_size=batch_size, **chosen))
    return results[0] if single else results


def blankout_of(
    example: Example,
    goal: Goal,
    *,
    blank: str | int = "auto",
    score: str | None = None,
    unit: str = "token",
    signed: bool = False,
    batch_size: int = 32,
) -> Relevance:
    """:func:`blankout` for an example whose goal is known."""
    _check(score, unit, batch_size, signed)
    check_trained(example.model, "blankout")
    outputs = example.outputs
    blank = settle_blank(example, blank)
    if score in SCORES and goal.kind in ("classification", "token"):
        goal = replace(goal, score=score)
    chosen = score or ("cosine" if goal.kind == "vector" and goal.index is None else goal.score)
    groups = _groups(example, unit)
    effect = _effect(goal, outputs, chosen)
    with torch.inference_mode(False), torch.no_grad():
        if example.patches is not None:
            scores = _pixels(example, goal, effect, blank, batch_size)
        elif blank == "delete" or (example.mirrored and blank != "mean-embedding"):
            scores = _one_by_one(example, goal, effect, groups, None if blank == "delete" else int(blank), batch_size)
        elif blank == "mean-embedding":
            scores = _mean_embedding(example, goal, effect, groups, batch_size)
        else:
            scores = _replaced(example, goal, effect, groups, int(blank), batch_size)
    settings = {
        "blank": blank,
        "blank_token": example.token_name(blank),
        "unit": unit,
        "signed": signed,
        **goal.settings(),
        "score": chosen,
        "value": float(goal.values(outputs)[0]),
    }
    scores = scores if signed else np.abs(scores)
    known: dict[str, Any] = {"position": goal.position, "target": goal.label, "unit": unit}
    known["notes"] = example.notes + _flat(scores, blank, example.token_name(blank))
    return Relevance(scores[None], groups.tokens, ("input",), "blankout", settings, example.name, **known)


def _flat(scores: npt.NDArray[np.float64], blank: str | int, name: str) -> tuple[str, ...]:
    """A note, and a warning, where the scores of all inputs are nearly the same."""
    if not flat(scores):
        return ()
    found = scores[np.isfinite(scores)]
    other = "delete" if blank != "delete" else "mean-embedding"
    note = (
        f"blankout: {name} in the place of any input gives nearly the same score ({found.min():.3g} … "
        f"{found.max():.3g}), which ranks nothing. Use another blank:  blank={other!r}"
    )
    warnings.warn(note, AttnFlowWarning, stacklevel=2)
    return (note,)


def settle_blank(example: Example, blank: str | int) -> str | int:
    """The id, or the name of the way, that ``blank`` means for this example; what is not there is an error."""
    if example.patches is not None:
        chosen = "mean" if blank == "auto" else blank
        if chosen not in PIXELS:
            raise SelectionError(f"blank={blank!r}, but the input is an image. Use one of: {', '.join(PIXELS)}.")
        return chosen
    if is_whole(blank):
        blank = int(blank)
        size = example.vocabulary
        if not 0 <= blank < size:
            raise SelectionError(f"blank={blank}, but the model knows {size} ids: use 0 to {size - 1}.")
        return blank
    if blank == "auto":
        token = example.token_id("mask")
        token = example.unknown_id() if token is None else token
        return "mean-embedding" if token is None else token
    if blank in ("delete", "mean-embedding"):
        return blank
    return example.special_id(str(blank), BLANKS, "blank")


def _check(score: str | None, unit: str, batch_size: int, signed: bool) -> None:
    truths(signed=signed)
    if score is not None and word(score, "score") not in SCORES and score not in DISTANCES:
        raise SelectionError(f"score={score!r} is not known. Use one of: {', '.join([*SCORES, *DISTANCES])}.")
    if word(unit, "unit") not in UNITS:
        raise SelectionError(f"unit={unit!r} is not known. Use one of: {', '.join(UNITS)}.")
    at_least(batch_size, 1, "batch_size")


def _groups(example: Example, unit: str) -> Grouping:
    if unit == "word":
        return group_words(example.tokens)
    return Grouping(tuple((i,) for i in range(len(example.tokens))), example.tokens)


Effect = Callable[[Any, Goal], Tensor]


def _effect(goal: Goal, outputs: Any, score: str) -> Effect:
    """(outputs of variants, the goal there) → ``[batch]``: how far they are from the original."""
    if score not in DISTANCES:
        before = _wide(goal.values(outputs).detach())
        return lambda new, at: _finite(before - _wide(at.values(new)))
    if goal.function is not None:
        raise SelectionError(f"score={score!r} compares whole outputs, but target is a function. Leave score out.")
    row = _wide(goal.row(outputs).detach())
    return lambda new, at: _finite(DISTANCES[score](row, _wide(at.row(new))))


def _finite(effect: Tensor) -> Tensor:
    """A missing score means that there is nothing to blank out; a model that gives NaN is another matter."""
    if not bool(torch.isfinite(effect).all()):
        raise WeightsError(
            f"With an input blanked out the output changes by {float(effect[~torch.isfinite(effect)][0])}: the model "
            "overflowed (try it in float32), or the score has no value there (try score='prob')."
        )
    return effect


def _wide(row: Tensor) -> Tensor:
    """Small distances between large outputs need more digits than the model's own; Apple's GPUs have no more."""
    return row.float() if row.device.type == "mps" else row.double()


def _ablate(
    forward: Callable[..., Tensor],
    points: tuple[Tensor, ...],
    blanks: tuple[Any, ...],
    features: tuple[Tensor, ...],
    batch_size: int,
) -> tuple[Tensor, ...]:
    """Captum's feature ablation; ``features`` number the groups, which are blanked one at a time."""
    from captum.attr import FeatureAblation

    count = 1 + max(int(f.max()) for f in features)
    parts = FeatureAblation(forward).attribute(
        points, baselines=blanks, feature_mask=features, perturbations_per_eval=min(batch_size, count)
    )
    return tuple(p.double().cpu() for p in parts)


def _replaced(
    example: Example, goal: Goal, effect: Effect, groups: Grouping, blank: int, batch_size: int
) -> npt.NDArray[np.float64]:
    names, lean = [n for n in IDS if n in example.inputs], example.lean(goal)
    points = tuple(example.inputs[n] for n in names)

    def forward(*ids: Tensor) -> Tensor:
        if _same(ids, points):
            return torch.zeros_like(_wide(goal.values(example.outputs)))
        given = {**repeated(lean, ids[0].shape[0]), **dict(zip(names, ids, strict=True))}
        return -effect(run(example.model, given), goal)

    features = _features(groups, points)
    parts = _ablate(forward, points, (blank,) * len(points), features, batch_size)
    return _first_of_each(groups, [p[0] for p in parts])


def _mean_embedding(
    example: Example, goal: Goal, effect: Effect, groups: Grouping, batch_size: int
) -> npt.NDArray[np.float64]:
    embedder = find(example.model, example.inputs)
    points = embedder.embeddings(example.model, example.inputs)
    blanks = tuple(embedder.mean(i).expand_as(p) for i, p in enumerate(points))
    features = tuple(f[..., None].expand_as(p) for f, p in zip(_features(groups, points), points, strict=True))

    def forward(*parts: Tensor) -> Tensor:
        if _same(parts, points):
            return torch.zeros_like(_wide(goal.values(example.outputs)))
        return -effect(embedder.run(example.model, example.lean(goal), parts), goal)

    parts = _ablate(forward, points, blanks, features, batch_size)
    return _first_of_each(groups, [p[0, :, 0] for p in parts])


def _pixels(example: Example, goal: Goal, effect: Effect, blank: str | int, batch_size: int) -> npt.NDArray[np.float64]:
    (pixels,) = example.pixels
    assert example.patches is not None
    colour = pixels.mean((-2, -1), keepdim=True) if blank == "mean" else torch.zeros_like(pixels[..., :1, :1])
    columns, numbers = torch.unique(example.patches, return_inverse=True)

    def forward(changed: Tensor) -> Tensor:
        if _same((changed,), (pixels,)):
            return torch.zeros_like(_wide(goal.values(example.outputs)))
        inputs = {**repeated(example.inputs, changed.shape[0]), "pixel_values": changed}
        return -effect(run(example.model, inputs), goal)

    features = numbers.to(pixels.device).expand_as(pixels)
    (part,) = _ablate(forward, (pixels,), (colour.expand_as(pixels),), (features,), batch_size)
    scores = np.full(len(example.tokens), np.nan)
    scores[columns.numpy()] = [float(part[0, 0][numbers == i][0]) for i in range(len(columns))]
    return scores


def _same(given: Sequence[Tensor], points: Sequence[Tensor]) -> bool:
    """True for the inputs as they are, which Captum runs first and whose outputs are known."""
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(given, points, strict=True))


def _features(groups: Grouping, points: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``[1, positions]`` for each tensor of positions: the number of the group of each position."""
    number = torch.empty(sum(len(m) for m in groups.members), dtype=torch.long)
    for g, members in enumerate(groups.members):
        number[list(members)] = g
    parts = torch.split(number, [p.shape[1] for p in points])
    return tuple(part[None].to(p.device) for part, p in zip(parts, points, strict=True))


def _first_of_each(groups: Grouping, parts: Sequence[Tensor]) -> npt.NDArray[np.float64]:
    flat = torch.cat(list(parts)).numpy()
    return np.asarray([flat[members[0]] for members in groups.members], np.float64)


def _one_by_one(
    example: Example, goal: Goal, effect: Effect, groups: Grouping, blank: int | None, batch_size: int
) -> npt.NDArray[np.float64]:
    """Each group deleted (or, in a mirrored example, blanked); those of the same length together, none padded."""
    scores = np.full(len(groups.members), np.nan)
    buckets: dict[Any, list[tuple[int, dict[str, Any], Goal]]] = defaultdict(list)
    for g, members in enumerate(groups.members):
        variant = example.mirror(members, blank) if example.mirrored else without(example.lean(goal), members)
        at = goal_without(example, goal, members)
        if variant is None or at is None:
            continue
        shape = tuple(variant[n].shape[1] for n in IDS if n in variant)
        buckets[(shape, at.position)].append((g, variant, at))
    for bucket in buckets.values():
        for start in range(0, len(bucket), batch_size):
            chunk = bucket[start : start + batch_size]
            outputs = run(example.model, stacked([variant for _, variant, _ in chunk]))
            scores[[g for g, _, _ in chunk]] = effect(outputs, chunk[0][2]).double().cpu().numpy()
    return scores


def goal_without(example: Example, goal: Goal, members: Sequence[int]) -> Goal | None:
    """The goal after ``members`` were deleted; None if it went with them.

    The goal's position counts in the decoder where there is one; the members count from the encoder on.
    """
    shift = example.inputs["input_ids"].shape[1] if "decoder_input_ids" in example.inputs else 0
    deleted = tuple(m - shift for m in members if m >= shift)
    last = goal.position is not None and goal.position == len(example.queries) - 1
    if example.reads_last and last:
        # The next token is predicted from whatever is last, also when the last token is gone.
        return replace(goal, position=-1)
    return goal.without(deleted)


def without(inputs: Mapping[str, Any], members: Sequence[int]) -> dict[str, Any] | None:
    """The inputs without some positions; None if nothing would be left."""
    length = inputs["input_ids"].shape[1]
    out = dict(inputs)
    for decoder in (False, True):
        ids = "decoder_input_ids" if decoder else "input_ids"
        if ids not in inputs:
            continue
        n = inputs[ids].shape[1]
        gone = {m - length for m in members if m >= length} if decoder else {m for m in members if m < n}
        keep = [i for i in range(n) if i not in gone]
        if not keep:
            return None
        for name, value in inputs.items():
            if name.startswith("decoder") == decoder and isinstance(value, Tensor) and value.shape[1:2] == (n,):
                out[name] = value[:, : len(keep)] if name.endswith("position_ids") else value[:, keep]
    return out


def stacked(variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs of the same length as one batch."""
    first = variants[0]
    return {
        name: torch.cat([v[name] for v in variants]) if isinstance(value, Tensor) and value.shape[:1] == (1,) else value
        for name, value in first.items()
    }
