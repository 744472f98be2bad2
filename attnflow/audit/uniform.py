"""Is attention needed here at all? The model trained with uniform weights (Wiegreffe & Pinter 2019, section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from attnflow.audit.finding import Finding
from attnflow.audit.outcomes import AttentionRow, Outcome, compared, grades, outcome, row_of, uniform_weights
from attnflow.audit.registry import experiment
from attnflow.audit.splits import Progress, Splits
from attnflow.audit.training import Folder, Recipe, build, fit, inside, trained
from attnflow.capturing import live
from attnflow.models.factories import Factory
from attnflow.significance import LEVEL, mcnemar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_LIMITS = (
    "If uniform weights are as good, the task does not need attention, and what the trained weights say about it is "
    "not evidence. If they are worse, the weights carry something, which does not mean that they explain a single "
    "prediction.",
    "There is one training run of each: the test counts the texts of this test set, not other seeds (see seeds).",
    "The model with uniform weights can make up for them elsewhere: in its recurrent states, its other layers.",
)


@experiment("1", "Does the task need attention at all?", trains=True)
def uniform(
    factory: Factory,
    data: Splits,
    *,
    folder: Folder = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    attention_row: AttentionRow | None = None,
    progress: Progress | None = None,
) -> Finding:
    """The model trained as it is, and the same model trained with its attention frozen to uniform.

    Test 1 of Wiegreffe & Pinter (2019, section 3.1, table 2). In every layer and head each row gives the same weight
    to all tokens that it can see, from the first step of training to the test.

    Args:
        factory: ``factory(seed)`` gives a new classifier.
        data: see :class:`Splits`; ``data.test`` is measured once, at the end.
        folder: checkpoints are kept here; runs that were stopped go on. The base model is shared with the other
            experiments that are given the same folder.
        seed: the seed of both models.
        recipe: how both are trained.
        attention_row: which attention the records compare: of a transformer by default the last layer's row of the
            first token, or of the last token in a causal model.
        progress: called with (steps done, largest number of steps), for each training by itself.

    Returns:
        A :class:`Finding`; a record has the ``instance`` (the number of a test text), its ``label``, the probability
        of the label from both models (``trained``, ``uniform``), whether each is right (``trained_right``,
        ``uniform_right``), ``jsd`` between their attention, and ``tvd`` and ``tvd_scalar`` between their predictions.

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 4, [1, 0] * 4)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> found = uniform(lambda s: LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4)), data, recipe=Recipe(epochs=1))
    >>> list(found.table["attention"])
    ['trained', 'uniform']
    """
    import pandas as pd

    base = trained(factory, data, seed=seed, folder=folder, recipe=recipe, progress=progress)
    attention_row = row_of(attention_row, base.model, data)
    model = build(factory, seed)
    with live(model, uniform_weights):
        flat = fit(
            model, data, recipe, folder=inside(folder, f"uniform-{seed}"), name="uniform", seed=seed, progress=progress
        )
    ours = outcome(base.model, data.test, data.pad, attention_row)
    theirs = outcome(flat.model, data.test, data.pad, attention_row, uniform_weights)
    records = _records(data, ours, theirs)
    rows = [
        {"attention": name, **grades(said.probabilities, data.test), "best epoch": run.epoch, "validation": run.score}
        for name, said, run in (("trained", ours, base), ("uniform", theirs, flat))
    ]
    table = pd.DataFrame(rows)
    settings = {
        "seed": seed, "recipe": recipe or Recipe(), "data": repr(data), "attention": attention_row.describe(),
        "uniform": "every layer and head, over the tokens a row can see",
        "tvd": "½Σ|p − q|; tvd_scalar: ½|p − q| of one probability, as in the code of Wiegreffe & Pinter",
    }  # fmt: skip
    verdict, p = _verdict(table, records)
    claim = "uniform: trained against uniform attention"
    return Finding(
        "uniform", table, records, verdict, _LIMITS, {**settings, "p": p}, lambda ax: _draw(ax, table), tests={claim: p}
    )


def _records(data: Splits, ours: Outcome, theirs: Outcome) -> pd.DataFrame:
    import pandas as pd

    labels = torch.from_numpy(data.test.labels)[:, None]
    columns = {
        "instance": np.arange(len(data.test)),
        "label": data.test.labels,
        "trained": ours.probabilities.gather(1, labels)[:, 0].numpy(),
        "uniform": theirs.probabilities.gather(1, labels)[:, 0].numpy(),
        "trained_right": ours.probabilities.argmax(-1).numpy() == data.test.labels,
        "uniform_right": theirs.probabilities.argmax(-1).numpy() == data.test.labels,
    }
    return pd.DataFrame({**columns, **compared(ours, theirs)})


def _verdict(table: pd.DataFrame, records: pd.DataFrame) -> tuple[str, float]:
    """In words, and the p-value of the exact McNemar test."""
    gained, lost, p = mcnemar(records["trained_right"], records["uniform_right"])
    first, second = table["F1"]
    facts = (
        f"F1 {first:.3f} with trained and {second:.3f} with uniform attention; of {len(records)} test texts {gained} "
        f"are right only with trained and {lost} only with uniform attention (exact McNemar p = {p:.2g})"
    )
    frequent = records["label"].value_counts(normalize=True).max()
    if records["trained_right"].mean() <= frequent:
        return (
            f"The model has not learnt the task: it is right on {records['trained_right'].mean():.3f} of the test "
            f"texts, and always answering the most frequent class would be on {frequent:.3f}. Nothing follows about "
            f"its attention, here or in the other experiments: {facts}."
        ), p
    if p >= LEVEL:
        return f"This task does not show that it needs attention: {facts}.", p
    if gained > lost:
        return f"Trained attention is worth something here: {facts}.", p
    return f"Uniform attention does better here: {facts}.", p


def _draw(ax: Axes, table: pd.DataFrame) -> None:
    ax.bar(table["attention"].tolist(), table["F1"].to_numpy(), color=["C0", "C7"])
    ax.set_ylabel("F1 on the test set")
    ax.set_ylim(0, 1)
