"""The search for adversarial attention: candidates for several texts at once, through the frozen model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnflow.audit.instances import Instance, inputs_of, outputs_of
from attnflow.audit.intervention import Intervention, forward, keys_of, lower_layers_once, put, replaced, take
from attnflow.audit.measures import furthest, jsd
from attnflow.capturing.session import Call
from attnflow.inputs.running import differentiable
from attnflow.tokens import Tokens

Vector = npt.NDArray[np.float64]
STARTS = ("random", "own")
# How far a start is from the model's own weights, in logits: near enough to be within ε, and not all in one place.
_NEAR = 0.1
# Finite, because a row in which nothing may move would otherwise have no softmax.
_NEVER = -1e30


@dataclass(frozen=True)
class Search:
    """How the candidates are searched for; see :func:`attnflow.audit.adversary`."""

    intervention: Intervention
    epsilon: float
    candidates: int
    steps: int
    lr: float
    penalty: float
    spread: float
    seed: int
    share_heads: bool
    start: str = "random"

    def settings(self) -> dict[str, Any]:
        """What a result says about it."""
        own = {k: v for k, v in vars(self).items() if k not in ("intervention", "share_heads")}
        heads = "one distribution for all heads" if self.share_heads else "one distribution for each head"
        return {**self.intervention.settings(), **own, "distributions": heads, "optimiser": "Adam, AMSGrad"}


@dataclass(frozen=True, eq=False)
class AdversarialWeights:
    """What was found for one text: the ε-max JSD, its TVD, and both weights of the examined row (mean over heads)."""

    jsd: float
    bound: float
    tvd: float
    within: int
    tokens: Tokens
    own: Vector
    other: Vector


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The model's own weights in one layer: ``old`` [texts, 1, heads, rows, keys], and which of them may change."""

    old: Tensor
    free: Tensor
    rows: Tensor

    def weights(self, logits: Tensor, intervention: Intervention) -> Tensor:
        """``[texts, candidates, heads, rows, keys]``: what may change goes by ``logits``, the rest stays."""
        old = self.old
        mass = torch.where(self.free, old, 0.0).sum(-1, keepdim=True)
        moved = mass * logits.masked_fill(~self.free, _NEVER).softmax(-1)
        return intervention.in_heads(old, torch.where(self.free, moved, old))


def search(model: nn.Module, instances: Sequence[Instance], how: Search) -> list[AdversarialWeights]:
    """The furthest weights for texts of the same length; each text is searched as if it were alone."""
    with differentiable():
        original, before = _own_weights(model, instances, how.intervention)
        start = {layer: _start(instances, here, how, layer) for layer, here in original.items()}
        return _climb(model, instances, how, original, before, start)


def _own_weights(
    model: nn.Module, instances: Sequence[Instance], intervention: Intervention
) -> tuple[dict[int, LayerWeights], Tensor]:
    """The model's own weights and outputs ``[texts, classes]``."""
    original: dict[int, LayerWeights] = {}

    def note(call: Call, weights: Tensor) -> None:
        if intervention.wants(call):
            at = intervention.rows_of(instances, weights)
            old = take(weights, at)
            free = intervention.free(old, instances).expand_as(old)
            original[intervention.layer(call)] = LayerWeights(old[:, None], free[:, None], at)

    with torch.no_grad(), replaced(model, note) as records:
        outputs = forward(model, inputs_of(instances), records)
    return dict(sorted(original.items())), outputs_of(instances, outputs)[:, 0]


def _start(instances: Sequence[Instance], here: LayerWeights, how: Search, layer: int) -> Tensor:
    """``[texts, candidates, heads, rows, keys]``: the logits at first, from one stream of chance for each text."""
    _, _, heads, rows, keys = here.old.shape
    shape = (how.candidates, 1 if how.share_heads else heads, rows, keys)
    drawn = [np.random.default_rng([how.seed, i.number, layer]).standard_normal(shape) for i in instances]
    noise = torch.from_numpy(np.stack(drawn)).to(here.old.device, here.old.dtype)
    if how.start == "random":
        return (3 * noise - float(np.log(keys))).requires_grad_()
    own = here.old.mean(2, keepdim=True) if how.share_heads else here.old
    return (own.clamp(min=1e-12).log() + _NEAR * noise).requires_grad_()


class _Best:
    """The furthest candidates within ε so far; at first the model's own weights."""

    def __init__(self, original: Mapping[int, LayerWeights], texts: int, candidates: int, like: Tensor) -> None:
        self.jsd = torch.zeros(texts, candidates, dtype=like.dtype, device=like.device)
        self.tvd = torch.zeros_like(self.jsd)
        self.within = torch.zeros_like(self.jsd, dtype=torch.bool)
        self.weights = {n: s.old.expand(texts, candidates, *s.old.shape[2:]).clone() for n, s in original.items()}

    def see(self, far: Tensor, change: Tensor, weights: Mapping[int, Tensor], epsilon: float) -> None:
        far, change = far.detach(), change.detach()
        near = change <= epsilon
        better = near & (far > self.jsd)
        self.within |= near
        self.jsd, self.tvd = torch.where(better, far, self.jsd), torch.where(better, change, self.tvd)
        for n, new in weights.items():
            self.weights[n] = torch.where(better[:, :, None, None, None], new.detach(), self.weights[n])


def _climb(
    model: nn.Module, instances: Sequence[Instance], how: Search, original: Mapping[int, LayerWeights], before: Tensor,
    logits: Mapping[int, Tensor],
) -> list[AdversarialWeights]:  # fmt: skip
    now: dict[int, Tensor] = {}

    def swap(call: Call, weights: Tensor) -> Tensor | None:
        if not now or not how.intervention.wants(call):
            return None
        layer = how.intervention.layer(call)
        at = original[layer].rows.repeat_interleave(how.candidates, 0)
        return put(weights, at, now[layer].flatten(0, 1))

    inputs = cache(partial(inputs_of, instances))

    def run(copies: int) -> Tensor:
        return outputs_of(instances, forward(model, inputs(copies), records), copies)

    parameters = list(logits.values())
    optimiser = torch.optim.Adam(parameters, lr=how.lr, amsgrad=True)
    best = _Best(original, len(instances), how.candidates, before)
    with (
        replaced(model, swap) as records,
        torch.no_grad(),
        lower_layers_once(model, how.intervention, len(instances), run) as lower,
    ):
        lower.copies = how.candidates
        for step in range(how.steps + 1):
            with torch.enable_grad():
                now.update({n: original[n].weights(z, how.intervention) for n, z in logits.items()})
                after = run(how.candidates)
                change = _changes(instances, after, before)
                far = _apart(now, {n: s.old for n, s in original.items()}, how.intervention)
                loss = (how.penalty * torch.relu(change - how.epsilon) - far).sum() - how.spread * _spread(
                    now, how.intervention
                )
            best.see(far, change, now, how.epsilon)
            if step < how.steps:
                # Asked for by name: nothing of the model's own gets a gradient.
                for z, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    z.grad = slope
                optimiser.step()
    return [_found(i, one, original, best, how.intervention) for i, one in enumerate(instances)]


def _changes(instances: Sequence[Instance], after: Tensor, before: Tensor) -> Tensor:
    """``[texts, candidates]``: TVD of the outputs."""
    return torch.stack([i.change(a, b) for i, a, b in zip(instances, after, before[:, None], strict=True)])


def _apart(a: Mapping[int, Tensor], b: Mapping[int, Tensor], intervention: Intervention) -> Tensor:
    """``[texts, candidates]``: JSD of the rows, mean over layers, heads and rows."""
    distances = []
    for n in a:
        distances.append(jsd(_normed(a[n], intervention), _normed(b[n], intervention)).mean((-2, -1)))
    return torch.stack(distances).mean(0)


def _normed(weights: Tensor, intervention: Intervention) -> Tensor:
    """Without what a learned sink took, which no candidate changes."""
    mine = intervention.of_heads(weights if weights.device.type == "mps" else weights.double())
    return mine / mine.sum(-1, keepdim=True)


def _spread(now: Mapping[int, Tensor], intervention: Intervention) -> Tensor:
    """Σ over texts of the mean JSD between two candidates."""
    count = next(iter(now.values())).shape[1]
    if count == 1:
        return next(iter(now.values())).new_zeros(())
    one, two = torch.triu_indices(count, count, 1)
    return (
        _apart({n: w[:, one] for n, w in now.items()}, {n: w[:, two] for n, w in now.items()}, intervention)
        .mean(1)
        .sum()
    )


def _found(
    i: int, instance: Instance, original: Mapping[int, LayerWeights], best: _Best, intervention: Intervention
) -> AdversarialWeights:
    k = int(best.jsd[i].argmax())
    bounds = [
        furthest(_normed(s.old[i : i + 1], intervention), intervention.of_heads(s.free[i : i + 1])).mean()
        for s in original.values()
    ]
    last = max(original)
    row = instance.row if original[last].old.shape[3] > 1 else 0
    own, other = (
        intervention.of_heads(w)[0, 0, :, row].mean(0).double().cpu().numpy()
        for w in (original[last].old[i : i + 1], best.weights[last][i : i + 1, k : k + 1])
    )
    return AdversarialWeights(
        float(best.jsd[i, k]), float(torch.stack(bounds).mean()), float(best.tvd[i, k]), int(best.within[i].sum()),
        keys_of(instance, intervention.kind, len(own)), own, other,
    )  # fmt: skip
