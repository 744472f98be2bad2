"""Infidelity and max-sensitivity (Yeh et al. 2019), by captum.metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnflow.faithfulness.case import Case

SUBSETS = 32
NOISES = 5


def infidelity(case: Case) -> float:
    """The mean of (Σ of the scores in a set of units − what the model loses without the set)². Lower is better.

    The sets are random, from one unit to half of them, and the same for all methods. Scores of attention have no
    scale of their own, so they are brought to the best one first (Captum's ``normalize``).
    """
    from captum.metrics import infidelity as captum_infidelity

    rng, units = case.rng(2), len(case.scores)
    sizes = rng.integers(1, max(2, units // 2 + 1), SUBSETS)
    sets = np.argsort(rng.random((SUBSETS, units)), axis=1) < sizes[:, None]

    def forward(kept: Tensor) -> Tensor:
        return torch.from_numpy(case.variants.values(case.blank, kept.numpy() > 0.5))

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        gone = torch.from_numpy(sets.astype(np.float64))
        return gone, inputs - gone

    scores = torch.from_numpy(np.nan_to_num(case.scores))[None]
    found = captum_infidelity(
        forward, perturb, torch.ones(1, units, dtype=torch.float64), scores, n_perturb_samples=SUBSETS, normalize=True
    )
    return float(found[0])


def max_sensitivity(case: Case) -> float:
    """The largest relative change of the scores under small noise at the word embeddings. Lower is better.

    A score that never changes has 0, so this measure tells of stability, and not of faithfulness alone.
    """
    from captum.metrics import sensitivity_max

    assert case.shaken is not None
    shaken = case.shaken

    def explain(given: Any) -> Any:
        rows = given[0] if isinstance(given, tuple) else given
        found = np.stack([np.nan_to_num(shaken(row)) for row in rows.numpy()])
        scores = torch.from_numpy(found)
        return (scores,) if isinstance(given, tuple) else scores

    def perturb(inputs: Any) -> Tensor:
        count = (inputs[0] if isinstance(inputs, tuple) else inputs).shape[0]
        return torch.arange(1, 1 + count, dtype=torch.float64)[:, None]

    # What Captum perturbs is the number of a noise; 0 is none. The noise itself is added inside the model.
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return float(sensitivity_max(explain, zero, perturb, n_perturb_samples=NOISES)[0])
