"""Gradients of the output with respect to the inputs, by Captum."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from attnflow.errors import AttnFlowWarning, SelectionError
from attnflow.inputs.embedding import IDS, Embedder, find, run
from attnflow.inputs.example import Example, examples
from attnflow.inputs.running import arguments, differentiable, fixed_seed, undisturbed
from attnflow.inputs.target import Goal, Target, runner_up
from attnflow.inputs.untrained import accepting, check_trained
from attnflow.numbers import at_least, is_whole, word
from attnflow.relevance import Relevance

# What Captum is asked for: (its class, whether it walks from a baseline).
METHODS = {
    "saliency": ("Saliency", False),
    "input_x_gradient": ("InputXGradient", False),
    "integrated_gradients": ("IntegratedGradients", True),
    "gradient_shap": ("GradientShap", True),
}
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs_sum": lambda g: g.abs().sum(-1),
    "l2": lambda g: g.norm(dim=-1),
    "sum": lambda g: g.sum(-1),
    "mean": lambda g: g.mean(-1),
    "max": lambda g: g.abs().amax(-1),
    "abs_of_sum": lambda g: g.sum(-1).abs(),
    "paper": lambda g: g.sum(-1).abs(),
}
# Reductions in which the dimensions of one position cancel.
CANCELLING = ("sum", "mean", "abs_of_sum", "paper")
# Below this share of Σ|g|, Σg is what rounding left of a zero: float32 gives 1e-8, float64 2e-17.
NOISE = 1e-6
# Below this share of Σ|g·x|, Σ g·x is a zero: the small number that a norm adds to the variance leaves 1e-5 of it, and
# dimensions that cancel by chance leave about one over the root of their number, seldom below 1e-2.
SCALELESS = 1e-3
# The share of F(x) − F(baseline) that scores along a path may miss without a word.
FAR = 0.05
BASELINES = ("zero", "pad", "mask", "unk")


@overload
def gradient(model: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def gradient(model: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def gradient(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    method: str = "saliency",
    target: Target = None,
    reduce: str = "abs_sum",
    score: str | None = None,
    position: int | str | None = None,
    baseline: str | int = "zero",
    steps: int = 32,
    batch_size: int = 32,
    route: str = "auto",
    seed: int = 0,
    untrained: bool = False,
    **options: Any,
) -> Relevance | list[Relevance]:
    """How strongly the output reacts to each input, by its gradient at the word embeddings (or the pixels).

    ``scores[0, j]``: what input position *j* gives to the one number that is explained (rows: the one "input" layer,
    columns: input positions). Positions, segments and norms behind the word embeddings are left to the model;
    :mod:`attnflow.inputs.embedding` tells how the embedding is found. For an encoder-decoder
    model the columns are the encoder's positions followed by the decoder's. Nothing of the model is changed: no
    flag, no hook, no ``.grad``.

    Args:
        model, tokenizer, text: as everywhere; ``text`` may be a list, a ``BatchEncoding`` or ids.
        method: "saliency" (the gradient, Simonyan et al. 2014), "input_x_gradient" (gradient × embedding, as Jain &
            Wallace 2019 do), "integrated_gradients" (Sundararajan et al. 2017; ``settings`` then hold the
            ``convergence_delta``: how far the scores are from summing to F(x) − F(baseline)), "gradient_shap".
        target: what is explained; None = what the model predicted. See :mod:`attnflow.inputs.target`.
        reduce: from one number per dimension to one per position: "abs_sum" Σ|g|, "l2", "sum", "mean", "max"
            of |g|, "abs_of_sum" |Σg|, or "paper": |Σg| of the gradient of p₀ − p₁ (Abnar & Zuidema 2020;
            with more than two classes the target minus the next best). A norm that follows the embeddings ignores
            what is added to all dimensions, so there Σg is zero up to rounding error: "sum", "mean", "abs_of_sum" and
            "paper" warn, and ``notes`` hold the measured |Σg| / Σ|g|. Use "abs_sum" or "l2".
        score: "prob", "logit" or "logprob" of the target; None: "logit", as Captum's examples do.
        position: the output position that is explained, where the output has several.
        baseline: where integrated gradients start: "zero" vectors, or the embedding of "pad", "mask", "unk" or
            an id, at every position.
        steps: steps of integrated gradients, or samples of gradient_shap.
        batch_size: the largest number of these steps per forward pass.
        route: "auto", or one of "hook", "get_input_embeddings", "inputs_embeds".
        seed: for gradient_shap, the one method with chance in it.
        untrained: True explains a model also where its head was drawn at random when it was loaded.
        options: passed to the encoding of the text.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> r = gradient(tiny, text=[1, 5, 6, 2])
    >>> r.scores.shape, r.settings["attribution"], r.settings["score"]
    ((1, 4), 'saliency', 'logit')
    """
    _check(method, reduce, steps, batch_size)
    chosen: dict[str, Any] = {"method": method, "reduce": reduce, "baseline": baseline, "steps": steps}
    wanted = "prob" if reduce == "paper" and score is None else score
    results = []
    model, tokenizer, text = arguments(model, tokenizer, text, "gradient")
    with undisturbed(model) as module, accepting(untrained):
        found, single = examples(module, tokenizer, text, **options)
        for example in found:
            goal, _ = example.goal(target, position, wanted or "logit")
            how: dict[str, Any] = {"score": wanted, "batch_size": batch_size, "route": route, "seed": seed}
            results.append(gradient_of(example, goal, **how, **chosen))
    return results[0] if single else results


def gradient_of(
    example: Example,
    goal: Goal,
    *,
    method: str = "saliency",
    reduce: str = "abs_sum",
    score: str | None = None,
    baseline: str | int = "zero",
    steps: int = 32,
    batch_size: int = 32,
    route: str = "auto",
    seed: int = 0,
) -> Relevance:
    """:func:`gradient` for an example whose goal is known."""
    how: dict[str, Any] = {"baseline": baseline, "steps": steps, "batch_size": batch_size, "route": route, "seed": seed}
    return reductions_of(example, goal, (reduce,), method=method, score=score, **how)[reduce]


def reductions_of(
    example: Example,
    goal: Goal,
    reduces: Sequence[str],
    *,
    method: str = "saliency",
    score: str | None = None,
    baseline: str | int = "zero",
    steps: int = 32,
    batch_size: int = 32,
    route: str = "auto",
    seed: int = 0,
) -> dict[str, Relevance]:
    """:func:`gradient_of` by the names of several reductions, from one gradient; "paper" differentiates another score.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> with undisturbed(tiny) as module:
    ...     example = examples(module, None, [1, 5, 6, 2])[0][0]
    ...     found = reductions_of(example, example.goal(None, None, "logit")[0], ("abs_sum", "l2"))
    >>> bool((found["abs_sum"].scores >= found["l2"].scores).all())
    True
    """
    for reduce in reduces:
        _check(method, reduce, steps, batch_size)
    if "paper" in reduces and len(set(reduces)) > 1:
        raise SelectionError("reduce='paper' is of p₀ − p₁ and cannot share a gradient with other reductions.")
    check_trained(example.model, "gradient")
    outputs = example.outputs
    goal = _scored(goal, score, reduces[0])
    goal = runner_up(goal, outputs) if "paper" in reduces else goal
    with differentiable():
        embedder = None if example.patches is not None else find(example.model, example.inputs, route)
        start = example.pixels if embedder is None else embedder.embeddings(example.model, example.inputs)
        points = tuple(x.detach().clone().requires_grad_() for x in start)
        forward = _forward(example, goal, embedder)
        ends = _baselines(example, embedder, baseline, points) if METHODS[method][1] else ()
        with fixed_seed(seed):
            parts, delta = _captum(method, forward, points, ends, steps, batch_size)
    settings = {
        "attribution": method,
        **goal.settings(),
        "value": float(goal.values(outputs)[0]),
        "route": "pixels" if embedder is None else embedder.route,
        "module": "" if embedder is None else embedder.name,
    }
    notes = example.notes
    if ends:
        settings |= {"baseline": baseline, "steps": steps, "convergence_delta": delta}
        with torch.no_grad():
            notes += _far(method, steps, float(delta or 0.0), float((forward(*points) - forward(*ends)).sum()))
    known: dict[str, Any] = {"position": goal.position, "target": goal.label}
    left = {reduce: _left(parts) if reduce in CANCELLING else None for reduce in reduces}
    return {
        reduce: Relevance(
            _scores(example, parts, REDUCTIONS[reduce])[None], example.tokens, ("input",), "gradient",
            {"attribution": method, "reduce": reduce, **settings}, example.name,
            notes=notes + _cancelled(left[reduce], reduce), rounding=left[reduce], **known,
        )
        for reduce in reduces
    }  # fmt: skip


def scale_share(example: Example, goal: Goal) -> float:
    """|Σ g·x| / Σ|g·x| for what the model makes of its embeddings: x is words, positions and types together.

    Zero up to rounding where a norm behind the embeddings ignores the scale of x: what the product of gradient and
    embedding gives to a word, it then takes from the word's position and type. NaN where x was not seen.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> with undisturbed(tiny) as module:
    ...     example = examples(module, None, [1, 5, 6, 2])[0][0]
    ...     scale_share(example, example.goal(None, None, "logit")[0]) < SCALELESS
    True
    """
    if example.patches is not None:
        return float("nan")
    with differentiable():
        embedder = find(example.model, example.inputs)
        start = embedder.embeddings(example.model, example.inputs)
        points = tuple(x.detach().clone().requires_grad_() for x in start)
        slopes = torch.autograd.grad(_forward(example, goal, embedder)(*points).sum(), points)
        sums = embedder.sums(example.model, example.inputs)
    products = [(g * x).double() for g, x in zip(slopes, sums, strict=True) if x is not None]
    total = sum(float(p.abs().sum()) for p in products)
    return sum(float(p.sum(-1).abs().sum()) for p in products) / total if total else float("nan")


def _left(parts: Sequence[Tensor]) -> float | None:
    """|Σg| / Σ|g| where the dimensions of a position cancel and their sum is rounding error."""
    total = sum(float(p.detach().abs().double().sum()) for p in parts)
    left = sum(float(p.detach().double().sum(-1).abs().sum()) for p in parts)
    return left / total if left < NOISE * total else None


def _cancelled(left: float | None, reduce: str) -> tuple[str, ...]:
    """A note, and a warning, where what is ``left`` of a sum is rounding error."""
    if left is None:
        return ()
    note = (
        f"reduce={reduce!r} adds up dimensions that cancel: |Σg| / Σ|g| is {left:.0e}, which is rounding "
        "error. A norm behind the embeddings ignores what is added to all dimensions, so this sum is zero in exact "
        "arithmetic and its ranking means nothing. Use the size of the gradient:  reduce='abs_sum'  or  reduce='l2'"
    )
    warnings.warn(note, AttnFlowWarning, stacklevel=2)
    return (note,)


def _far(method: str, steps: int, delta: float, change: float) -> tuple[str, ...]:
    """A note, and a warning, where the scores are far from summing to F(x) − F(baseline)."""
    if abs(delta) <= FAR * abs(change):
        return ()
    note = (
        f"{method}: the scores miss F(x) − F(baseline) = {change:.3g} by {delta:.3g}, more than {FAR:.0%} of it, after "
        f"{steps} steps. Take more steps, or another baseline:  steps={4 * steps}"
    )
    warnings.warn(note, AttnFlowWarning, stacklevel=2)
    return (note,)


def _scored(goal: Goal, score: str | None, reduce: str) -> Goal:
    """Gradients are of logits unless asked otherwise; a single output has no other score."""
    if goal.kind not in ("classification", "token") or goal.score == "logit":
        return goal
    return replace(goal, score=score or ("prob" if reduce == "paper" else "logit"))


def _check(method: str, reduce: str, steps: int, batch_size: int) -> None:
    for name, value, known in (("method", method, METHODS), ("reduce", reduce, REDUCTIONS)):
        if word(value, name) not in known:
            raise SelectionError(f"{name}={value!r} is not known. Use one of: {', '.join(known)}.")
    for name, number in (("steps", steps), ("batch_size", batch_size)):
        at_least(number, 1, name)


def _forward(example: Example, goal: Goal, embedder: Embedder | None) -> Callable[..., Tensor]:
    """What Captum differentiates: embeddings (or pixels) → the numbers that are explained ``[batch]``."""
    if embedder is None:
        return lambda pixels: goal.values(run(example.model, {**example.inputs, "pixel_values": pixels}))
    lean = example.lean(goal)
    return lambda *parts: goal.values(embedder.run(example.model, lean, parts))


def _captum(
    method: str,
    forward: Callable[..., Tensor],
    points: tuple[Tensor, ...],
    ends: tuple[Tensor, ...],
    steps: int,
    batch_size: int,
) -> tuple[tuple[Tensor, ...], float | None]:
    import captum.attr

    explainer = getattr(captum.attr, METHODS[method][0])(forward)
    if method == "saliency":
        return explainer.attribute(points, abs=False), None
    if method == "input_x_gradient":
        return explainer.attribute(points), None
    if method == "integrated_gradients":
        more: dict[str, Any] = {"n_steps": steps, "internal_batch_size": batch_size}
        parts, delta = explainer.attribute(points, baselines=ends, return_convergence_delta=True, **more)
        return parts, float(delta.abs().max())
    # GradientShap runs all its samples at once, so a limit on the batch means several runs and their mean.
    sums, total, done = [torch.zeros_like(p) for p in points], 0.0, 0
    while done < steps:
        count = min(batch_size, steps - done)
        parts, delta = explainer.attribute(points, baselines=ends, n_samples=count, return_convergence_delta=True)
        sums = [s + count * p for s, p in zip(sums, parts, strict=True)]
        total, done = total + float(delta.sum()), done + count
    return tuple(s / steps for s in sums), abs(total / steps)


def _baselines(
    example: Example, embedder: Embedder | None, baseline: str | int, points: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Where the walk starts: the same vector at every position."""
    if baseline == "zero":
        return tuple(torch.zeros_like(p) for p in points)
    if embedder is None:
        raise SelectionError(f"baseline={baseline!r}, but an image has no tokens. Use baseline='zero'.")
    token = int(baseline) if is_whole(baseline) else example.special_id(str(baseline), BASELINES, "baseline")
    return tuple(embedder.vectors(i, token).expand_as(p) for i, p in enumerate(points))


def _scores(example: Example, parts: Sequence[Tensor], reduce: Callable[[Tensor], Tensor]) -> Any:
    """``[positions]``: one number for each input position, NaN where a position has no input of its own."""
    if example.patches is not None:
        return example.by_patch(parts[0], reduce)
    # A model that pads its ids has embeddings behind the last token, which are nobody's.
    lengths = [example.inputs[name].shape[1] for name in IDS if name in example.inputs]
    flat = [reduce(p.detach()[0, :n].double()) for p, n in zip(parts, lengths, strict=True)]
    return np.asarray(torch.cat(flat).cpu().numpy(), np.float64)
