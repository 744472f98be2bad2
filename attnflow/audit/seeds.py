"""How much does attention differ between seeds of the same model? (Wiegreffe & Pinter 2019, section 3.2)"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from attnflow.audit.finding import Finding
from attnflow.audit.measures import LN2, jsd
from attnflow.audit.outcomes import AttentionRow, Outcome, compared, grades, outcome, row_of
from attnflow.audit.registry import experiment, takes
from attnflow.audit.splits import Progress, Splits
from attnflow.audit.training import Folder, Recipe, trained
from attnflow.errors import SelectionError
from attnflow.models.factories import Factory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LIMITS = (
    "Seeds that agree do not make attention an explanation, and seeds that differ do not rule it out: two models may "
    "predict alike for different reasons.",
    "How large a divergence is large has no rule: compare with that of uniform weights (column uniform) and with ln 2.",
    "A long text has smaller weights, and its divergences are smaller for that alone.",
)


@experiment(
    "2",
    "How much does attention differ between runs of the same training?",
    trains=True,
    options=takes("seeds"),
)
def seeds(
    factory: Factory,
    data: Splits,
    *,
    seeds: Sequence[int] = (1, 2, 3, 4),
    seed: int = 0,
    folder: Folder = None,
    recipe: Recipe | None = None,
    attention_row: AttentionRow | None = None,
    progress: Progress | None = None,
) -> Finding:
    """The same model trained from several seeds: the Jensen-Shannon divergence of each one's attention to the base's.

    Test 2 of Wiegreffe & Pinter (2019, section 3.2, figure 3): what other runs of the same training do to attention
    is the yardstick for what an adversary does.

    Args:
        seeds: the seeds that are compared with the base.
        seed: the seed of the base.
        factory, data, folder, recipe, attention_row, progress: as for :func:`uniform`.

    Returns:
        A :class:`Finding`; a record has the ``instance``, the ``seed``, ``jsd`` and ``tvd`` to the base,
        ``max_attention`` (the base's largest weight) and ``uniform`` (the divergence of uniform weights from the base).

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 4, [1, 0] * 4)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> make = lambda s: LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4))
    >>> seeds(make, data, seeds=[0], recipe=Recipe(epochs=1)).records["jsd"].max()
    np.float64(0.0)
    """
    import pandas as pd

    if not seeds:
        raise SelectionError("seeds is empty: give at least one seed other than the base's,  seeds=(1, 2, 3, 4)")
    model = trained(factory, data, seed=seed, folder=folder, recipe=recipe, progress=progress).model
    attention_row = row_of(attention_row, model, data)
    base = outcome(model, data.test, data.pad, attention_row)
    parts, rows = [], [{"seed": f"{seed} (base)", **grades(base.probabilities, data.test), "JSD": 0.0, "TVD": 0.0}]
    for other in seeds:
        model = trained(factory, data, seed=other, folder=folder, recipe=recipe, progress=progress).model
        said = outcome(model, data.test, data.pad, attention_row)
        part = _records(base, said, other)
        parts.append(part)
        means = {"JSD": part["jsd"].mean(), "TVD": part["tvd"].mean()}
        rows.append({"seed": str(other), **grades(said.probabilities, data.test), **means})
    records = pd.concat(parts, ignore_index=True)
    settings = {
        "seed": seed, "seeds": list(seeds), "recipe": recipe or Recipe(), "data": repr(data),
        "attention": attention_row.describe(), "tvd": "½Σ|p − q|", "bins": BINS,
        "by maximum weight": by_bin(records).to_dict("records"),
    }  # fmt: skip
    return Finding(
        "seeds", pd.DataFrame(rows), records, judged(records), _LIMITS, settings, lambda ax: _draw(ax, records)
    )


def _records(base: Outcome, said: Outcome, seed: int) -> pd.DataFrame:
    import pandas as pd

    flat = [(row > 0).float() / (row > 0).sum() for row in base.attention]
    columns = {
        "instance": np.arange(len(base.attention)),
        "seed": seed,
        "max_attention": [float(row.max()) for row in base.attention],
        "uniform": [float(jsd(a, b)) for a, b in zip(base.attention, flat, strict=True)],
    }
    return pd.DataFrame({**columns, **compared(base, said)})


def by_bin(records: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation of the divergence, by the base's largest weight (the paper's figure 3)."""
    import pandas as pd

    rows = []
    for low, high in pairwise(BINS):
        top = records["max_attention"]
        part = records[(top >= low) & ((top < high) | (high == 1.0))]
        if len(part):
            mean, spread = float(part["jsd"].mean()), float(part["jsd"].std(ddof=0))
            rows.append({"max attention": f"{low:.2f}–{high:.2f}", "n": len(part), "JSD": mean, "std": spread})
    return pd.DataFrame(rows)


def judged(records: pd.DataFrame) -> str:
    """The verdict: how many of the other seeds attend more like the base than uniform weights do.

    The unit is the seed, not the text: one mean over all of them would hide that some are further away.
    """
    flat, changed = float(records["uniform"].mean()), float(records["tvd"].mean())
    apart = records.groupby("seed")["jsd"].mean()
    near, count = int((apart < flat).sum()), len(apart)
    facts = (
        f"the attention of {count} other seed{'s' * (count > 1)} is {apart.min():.3f} to {apart.max():.3f} nats (JSD, "
        f"at most {LN2:.3f}; mean {apart.mean():.3f}) from the base's, and uniform weights are {flat:.3f}; the "
        f"predictions differ by {changed:.3f} (TVD)"
    )
    if near == count:
        return f"Other seeds attend more like the base than uniform weights do: {facts}."
    if near == 0:
        return f"Another seed moves attention as far as making it uniform would: {facts}."
    return f"Only {near} of {count} other seeds attend more like the base than uniform weights do: {facts}."


def _draw(ax: Axes, records: pd.DataFrame) -> None:
    tops = records["max_attention"].to_numpy()
    place = np.clip(np.digitize(tops, BINS) - 1, 0, len(BINS) - 2)
    found = [records["jsd"].to_numpy()[place == i] for i in range(len(BINS) - 1)]
    shown = [i for i, part in enumerate(found) if len(part) > 1 and np.ptp(part) > 0]
    if shown:
        ax.violinplot([found[i] for i in shown], positions=shown, showmedians=True)
    ax.set_xticks(range(len(found)), [f"{a:.2f}–{b:.2f}" for a, b in pairwise(BINS)])
    ax.set_xlabel("largest weight of the base")
    ax.set_ylabel("JSD to the base's attention (nats)")
    ax.set_ylim(0, LN2)
