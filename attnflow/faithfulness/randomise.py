"""Weights made random, from the top layer down (Adebayo et al. 2018, the cascading check).

A score that is the same whatever the weights are does not explain the model. The check is made on a copy: the user's
model stays as it is. Each parameter is drawn anew from a normal distribution with its own mean and deviation, so that
norms and scales stay as they were and what was learnt is gone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

STAGES = 6


def groups_of(model: nn.Module) -> dict[str, list[str]]:
    """Names of the parameters by layer, from the bottom to the top: what is before, in and behind numbered modules.

    >>> net = nn.ModuleDict({"embed": nn.Embedding(3, 2), "layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
    ...                      "head": nn.Linear(2, 2)})
    >>> list(groups_of(net))
    ['embeddings', 'layer 0', 'layer 1', 'head']
    """
    found: dict[str, list[str]] = {}
    for name, _ in model.named_parameters():
        number = next((part for part in name.split(".") if part.isdigit()), None)
        if number is None:
            key = "head" if any(k.startswith("layer ") for k in found) else "embeddings"
        else:
            key = f"layer {number}"
        found.setdefault(key, []).append(name)
    return found


class Randomised:
    """A copy of a model whose weights become random, the top first; ``stages`` names how far down, step by step."""

    def __init__(self, model: nn.Module, seed: int = 0, stages: int = STAGES) -> None:
        self.model, self.seed = model, seed
        self.copy = copy.deepcopy(model)
        self.groups = list(reversed(groups_of(model).items()))
        last = len(self.groups) - 1
        shown = {round(i * last / max(1, stages - 1)) for i in range(stages)}
        self.stages = {i: name for i, (name, _) in enumerate(self.groups) if i in shown}

    def __iter__(self) -> Iterator[tuple[str, nn.Module]]:
        """(how far down the weights are random, the copy), from the top down; the last has no weight of the model."""
        weights = dict(self.copy.named_parameters())
        generator = torch.Generator().manual_seed(self.seed)
        with torch.inference_mode(False):
            self._restore(weights)
            for i, (_, names) in enumerate(self.groups):
                for name in names:
                    _draw(weights[name], generator)
                if i in self.stages:
                    yield self.stages[i], self.copy

    @property
    def last(self) -> str:
        """The stage at which every weight is random."""
        return self.groups[-1][0]

    @torch.no_grad()
    def _restore(self, weights: Mapping[str, Tensor]) -> None:
        for name, value in self.model.named_parameters():
            weights[name].copy_(value)


@torch.no_grad()
def _draw(weight: Tensor, generator: torch.Generator) -> None:
    if weight.numel() < 2 or not weight.is_floating_point():
        return
    wide = weight.float()
    noise = torch.randn(weight.shape, generator=generator).to(weight.device)
    weight.copy_((wide.mean() + wide.std() * noise).to(weight.dtype))
