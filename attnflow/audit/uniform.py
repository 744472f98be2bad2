"""Is attention needed here at all? The model trained with uniform weights (Wiegreffe & Pinter 2019, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from attnflow.audit.finding import Finding
from attnflow.audit.outcomes import (
    AttentionRow,
    Outcome,
    compared,
    grades,
    outcome,
    over_seeds,
    row_of,
    uniform_weights,
)
from attnflow.audit.registry import experiment, takes
from attnflow.audit.splits import Progress, Splits
from attnflow.audit.training import Folder, Recipe, Trained, build, fit, inside, trained
from attnflow.capturing import live
from attnflow.models.factories import Factory
from attnflow.significance import LEVEL, of_seeds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LIMITS = (
    "If uniform weights are as good, the task does not need attention, and what the trained weights say about it is "
    "not evidence. If they are worse, the weights carry something, which does not mean that they explain a single "
    "prediction.",
    "The test is of the texts of this test set under these runs; other seeds, or other training texts, may decide "
    "otherwise.",
    "The model with uniform weights can make up for them elsewhere: in its recurrent states, its other layers.",
)


@experiment("1", "Does the task need attention at all?", trains=True, options=takes("seeds"))
def uniform(
    factory: Factory,
    data: Splits,
    *,
    folder: Folder = None,
    seed: int = 0,
    seeds: Sequence[int] = (1, 2, 3, 4),
    recipe: Recipe | None = None,
    attention_row: AttentionRow | None = None,
    progress: Progress | None = None,
) -> Finding:
    """The model trained as it is, and the same model trained with its attention frozen to uniform, from several seeds.

    Test 1 of Wiegreffe & Pinter (2019, section 3.1, table 2). In every layer and head each row gives the same weight
    to all tokens that it can see, from the first step of training to the test. The paper has one run of each; two runs
    differ for the seed alone, so both are trained from each seed here.

    Args:
        factory: ``factory(seed)`` gives a new classifier.
        data: see :class:`Splits`; ``data.test`` is measured once, at the end.
        folder: checkpoints are kept here; runs that were stopped go on. The base model is shared with the other
            experiments that are given the same folder.
        seed: the seed of the base.
        seeds: more seeds, from each of which both models are trained; none for one run of each.
        recipe: how they are trained.
        attention_row: which attention the records compare: of a transformer by default the last layer's row of the
            first token, or of the last token in a causal model.
        progress: called with (steps done, largest number of steps), for each training by itself.

    Returns:
        A :class:`Finding`; a record has the ``seed``, the ``instance`` (the number of a test text), its ``label``, the
        probability of the label from both models (``trained``, ``uniform``), whether each is right (``trained_right``,
        ``uniform_right``), ``jsd`` between their attention, and ``tvd`` and ``tvd_scalar`` between their predictions.

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 4, [1, 0] * 4)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> make = lambda s: LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4))
    >>> found = uniform(make, data, seeds=[1], recipe=Recipe(epochs=1))
    >>> list(found.table["attention"])
    ['trained', 'uniform']
    """
    import pandas as pd

    # A seed that is named twice is no second run.
    every = list(dict.fromkeys([seed, *seeds]))
    runs: dict[str, list[dict[str, float]]] = {"trained": [], "uniform": []}
    parts = []
    for one in every:
        base = trained(factory, data, seed=one, folder=folder, recipe=recipe, progress=progress)
        attention_row = row_of(attention_row, base.model, data)
        flat = _frozen(factory, data, one, folder, recipe, progress)
        ours = outcome(base.model, data.test, data.pad, attention_row)
        theirs = outcome(flat.model, data.test, data.pad, attention_row, uniform_weights)
        parts.append(_records(one, data, ours, theirs))
        for name, said, run in (("trained", ours, base), ("uniform", theirs, flat)):
            graded = grades(said.probabilities, data.test)
            runs[name].append({**graded, "best epoch": run.epoch, "validation": run.score})
    records = pd.concat(parts, ignore_index=True)
    table = pd.DataFrame([{"attention": name, **over_seeds(of)} for name, of in runs.items()])
    assert attention_row is not None
    settings = {
        "seed": seed, "seeds": every, "F1 of the base": runs["trained"][0]["F1"], "recipe": recipe or Recipe(),
        "data": repr(data), "attention": attention_row.describe(),
        "uniform": "every layer and head, over the tokens a row can see",
        "tvd": "½Σ|p − q|; tvd_scalar: ½|p − q| of one probability, as in the code of Wiegreffe & Pinter",
    }  # fmt: skip
    verdict, p = judged(table, records)
    return Finding(
        "uniform", table, records, verdict, _LIMITS, {**settings, "p": p}, lambda ax: _draw(ax, table),
        tests={"uniform: trained against uniform attention": p},
    )  # fmt: skip


def _frozen(
    factory: Factory, data: Splits, seed: int, folder: Folder, recipe: Recipe | None, progress: Progress | None
) -> Trained:
    """The model trained with uniform attention."""
    model, place = build(factory, seed), inside(folder, f"uniform-{seed}")
    with live(model, uniform_weights):
        return fit(model, data, recipe, folder=place, name="uniform", seed=seed, progress=progress)


def _records(seed: int, data: Splits, ours: Outcome, theirs: Outcome) -> pd.DataFrame:
    import pandas as pd

    labels = torch.from_numpy(data.test.labels)[:, None]
    columns = {
        "seed": seed,
        "instance": np.arange(len(data.test)),
        "label": data.test.labels,
        "trained": ours.probabilities.gather(1, labels)[:, 0].numpy(),
        "uniform": theirs.probabilities.gather(1, labels)[:, 0].numpy(),
        "trained_right": ours.probabilities.argmax(-1).numpy() == data.test.labels,
        "uniform_right": theirs.probabilities.argmax(-1).numpy() == data.test.labels,
    }
    return pd.DataFrame({**columns, **compared(ours, theirs)})


def judged(table: pd.DataFrame, records: pd.DataFrame) -> tuple[str, float]:
    """In words, and the p-value that trained and uniform attention answer the texts alike.

    Over the texts it is the exact test of sign flips (with one seed McNemar's), but the seeds must show the difference
    too: see :func:`attnflow.significance.of_seeds`.
    """
    gained = records["trained_right"].astype(int) - records["uniform_right"].astype(int)
    p = of_seeds(records.assign(gained=gained).pivot(index="seed", columns="instance", values="gained").to_numpy())
    by_seed = records.groupby("seed")[["trained_right", "uniform_right"]].mean()
    apart = by_seed["trained_right"] - by_seed["uniform_right"]
    count = len(apart)
    runs = "one run of each" if count == 1 else f"means of {count} seeds, trained better in {int((apart > 0).sum())}"
    (first, second), right, flat = table["F1"], *by_seed.mean()
    how = "over texts, by sign flips" if count == 1 else "over texts and seeds"
    facts = (
        f"F1 {first:.3f} with trained and {second:.3f} with uniform attention ({runs}); right on {right:.3f} and "
        f"{flat:.3f} of {records['instance'].nunique()} test texts (p = {p:.2g} {how})"
    )
    labels = records.drop_duplicates("instance")["label"]
    frequent = labels.value_counts(normalize=True).max()
    if right <= frequent:
        return (
            f"The model has not learnt the task: it is right on {right:.3f} of the test texts, and always answering "
            f"the most frequent class would be on {frequent:.3f}. Nothing follows about its attention, here or in the "
            f"other experiments: {facts}."
        ), p
    alone = " Whether other seeds would agree is not known: give more of them,  seeds=(1, 2, 3, 4)." * (count == 1)
    if p >= LEVEL:
        return f"This task does not show that it needs attention: {facts}.{alone}", p
    where = "in these two runs" if count == 1 else "here"
    if apart.mean() > 0:
        return f"Trained attention is worth something {where}: {facts}.{alone}", p
    return f"Uniform attention does better {where}: {facts}.{alone}", p


def _draw(ax: Axes, table: pd.DataFrame) -> None:
    errors = table["F1 std"].to_numpy()
    ax.bar(table["attention"].tolist(), table["F1"].to_numpy(), yerr=errors, capsize=3, color=["C0", "C7"])
    ax.set_ylabel("F1 on the test set (± std over seeds)")
    ax.set_ylim(0, 1)
