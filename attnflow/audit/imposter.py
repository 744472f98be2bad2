"""Can a model predict like the base and attend elsewhere? A trained adversary (Wiegreffe & Pinter 2019, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnflow.audit.finding import Finding
from attnflow.audit.measures import LN2, kl, tvd
from attnflow.audit.outcomes import AttentionRow, Outcome, compared, grades, outcome, row_of, watched
from attnflow.audit.registry import experiment, takes
from attnflow.audit.splits import Batch, Progress, Split, Splits
from attnflow.audit.training import Folder, Recipe, Trained, build, fit, inside, trained
from attnflow.errors import SelectionError
from attnflow.inputs.encode import device_of
from attnflow.models.factories import Factory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CONVENTIONS = {"exact": 1.0, "scalar": 0.5}
FAR = 0.4
SEEDS = "other seeds"
# The column of the table with the distance of the furthest of the other seeds.
FURTHEST = "TVD, furthest"
# The Kullback-Leibler divergence is infinite where the base gives nothing; below this its weights count as this.
LEAST = 1e-12
_LIMITS = (
    "λ belongs to this batch size: the loss is a sum over the batch, as in the paper.",
    "A curve has one training run per λ; where a run fails to predict like the base it may be the training that "
    "failed, and not the attention that was needed.",
    "An imposter that predicts like the base shows that other weights can do in another model, not that the base's own "
    "weights tell nothing about the base.",
)


@dataclass(frozen=True, eq=False)
class BaseOutcomes:
    """What the imposter is held against: what the base says and attends to on each part."""

    train: Outcome
    valid: Outcome

    @classmethod
    def of(cls, model: Any, data: Splits, attention_row: AttentionRow) -> BaseOutcomes:
        """Run the base once over the parts that training looks at."""
        return cls(*(outcome(model, part, data.pad, attention_row) for part in (data.train, data.valid)))


def _options(run: Mapping[str, Any], findings: Mapping[str, Finding]) -> dict[str, Any]:
    """The λ, and the findings that the curve is shown with, where they were made before."""
    before = {"adversaries": findings.get("adversary"), "seeds": findings.get("seeds")}
    return {**takes("penalties")(run, findings), **before}


@experiment(
    "4",
    "Can a model be trained to predict the same while attending elsewhere?",
    trains=True,
    options=_options,
)
def imposter(
    factory: Factory,
    data: Splits,
    *,
    penalties: Sequence[float] = (0.0, 1e-4, 5e-4, 1e-3),
    folder: Folder = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    training: Recipe | None = None,
    attention_row: AttentionRow | None = None,
    convention: str = "exact",
    adversaries: Finding | None = None,
    seeds: Finding | None = None,
    progress: Progress | None = None,
) -> Finding:
    """Models trained to predict like the base while attending elsewhere, one for each λ.

    Test 4 of Wiegreffe & Pinter (2019, section 4, equation 1 and figure 5). The loss of a batch is

        Σ [ TVD(ŷ_a, ŷ_b) − λ·KL(α_a ‖ α_b) ]

    with the imposter *a* and the base *b*; no label is looked at. Each imposter begins with the base's first weights.

    Args:
        penalties: the λ. As the loss is a sum over the batch, they depend on the batch size.
        recipe: how the base is trained.
        training: how the imposters are trained; by default like the base. The epoch with the lowest loss on the
            validation set is kept.
        attention_row: which attention is held away from the base's.
        convention: "exact" uses TVD = ½Σ|p − q|; "scalar" uses half of it, as the paper's code does for two classes,
            so that its λ can be compared.
        adversaries: the finding of :func:`adversary` on the same base: its records' ``jsd`` and ``tvd`` join the plot.
        seeds: the finding of :func:`seeds`, likewise.
        factory, data, folder, seed, progress: as for :func:`uniform`.

    Returns:
        A :class:`Finding`; its table is the curve, a record has the ``penalty``, the ``instance``, ``jsd``, ``tvd`` and
        ``tvd_scalar`` (½|p − q| of the last class: half of ``tvd`` for two classes).

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 4, [1, 0] * 4)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> make = lambda s: LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4))
    >>> imposter(make, data, penalties=[0.0], recipe=Recipe(epochs=1)).table.columns.tolist()
    ['model', 'λ', 'F1', 'accuracy', 'TVD', 'TVD scalar', 'JSD']
    """
    import pandas as pd

    _check(penalties, convention)
    base = trained(factory, data, seed=seed, folder=folder, recipe=recipe, progress=progress)
    attention_row = row_of(attention_row, base.model, data)
    ours = outcome(base.model, data.test, data.pad, attention_row)
    outcomes = BaseOutcomes.of(base.model, data, attention_row)
    rows: list[dict[str, Any]] = [_row("base", float("nan"), grades(ours.probabilities, data.test), None)]
    parts = []
    for penalty in penalties:
        other = train_imposter(
            factory, data, base, outcomes, penalty, seed=seed, folder=folder, recipe=training or recipe,
            attention_row=attention_row, convention=convention, progress=progress,
        )  # fmt: skip
        said = outcome(other.model, data.test, data.pad, attention_row)
        part = pd.DataFrame({"penalty": penalty, "instance": np.arange(len(data.test)), **compared(ours, said)})
        parts.append(part)
        rows.append(_row("imposter", penalty, grades(said.probabilities, data.test), part))
    rows += [_row(name, float("nan"), {}, found.records) for name, found in _shown_with(adversaries, seeds)]
    if seeds is not None and "seed" in seeds.records:
        rows[-1][FURTHEST] = float(seeds.records.groupby("seed")["tvd"].mean().max())
    table = pd.DataFrame(rows)
    settings = {
        "seed": seed, "penalties": list(penalties), "recipe": recipe or Recipe(),
        "training": training or recipe or Recipe(), "data": repr(data),
        "attention": attention_row.describe(), "tvd in the loss": convention, "least weight in KL": LEAST,
        "first weights": "the base's",
    }  # fmt: skip
    return Finding(
        "imposter", table, pd.concat(parts, ignore_index=True), judged(table), _LIMITS, settings,
        lambda ax: _draw(ax, table),
    )  # fmt: skip


def train_imposter(
    factory: Factory,
    data: Splits,
    base: Trained,
    outcomes: BaseOutcomes,
    penalty: float,
    *,
    seed: int,
    folder: Folder,
    recipe: Recipe | None,
    attention_row: AttentionRow,
    convention: str,
    progress: Progress | None = None,
) -> Trained:
    """One imposter: trained to say what ``base`` says and to attend elsewhere."""
    model = build(factory, seed)
    share = CONVENTIONS[convention]
    with watched(model, attention_row) as watch:

        def held(model: Any, batch: Batch, against: Outcome) -> Tensor:
            said = model(input_ids=batch.ids, attention_mask=batch.mask).logits.softmax(-1)
            other = against.probabilities[torch.from_numpy(batch.index)].to(said.device)
            theirs = against.padded(batch.index, batch.ids.shape[1]).to(said.device)
            apart = kl(watch.rows(batch.mask), theirs.clamp(min=LEAST))
            total: Tensor = (share * tvd(said, other) - penalty * apart).sum()
            return total

        def loss(model: Any, batch: Batch) -> Tensor:
            return held(model, batch, outcomes.train)

        def score(model: Any, split: Split) -> float:
            parts = [held(model, b.to(device_of(model)), outcomes.valid) for b in split.batches(64, data.pad)]
            return -float(torch.stack(parts).sum()) / len(split)

        # What the base said is part of what the imposter is, so its identity belongs to the name.
        name = f"imposter λ={penalty:g} {convention} {attention_row} of {base.identity[:16]} epoch {base.epoch}"
        place = inside(folder, f"imposter-{seed}", f"{penalty:g}-{convention}")
        return fit(model, data, recipe, loss=loss, score=score, folder=place, name=name, seed=seed, progress=progress)


def _check(penalties: Sequence[float], convention: str) -> None:
    if not penalties:
        raise SelectionError("penalties is empty: give at least one λ,  penalties=(0.0, 0.0005)")
    if min(penalties) < 0:
        raise SelectionError(
            f"λ = {min(penalties)}, and λ below 0 would reward attending like the base: use 0 or more."
        )
    if convention not in CONVENTIONS:
        raise SelectionError(f"convention={convention!r} is not known. Use {' or '.join(map(repr, CONVENTIONS))}.")


def _row(model: str, penalty: float, graded: dict[str, float], part: pd.DataFrame | None) -> dict[str, Any]:
    nan = float("nan")
    means = {
        title: nan if part is None or column not in part else float(part[column].mean())
        for title, column in (("TVD", "tvd"), ("TVD scalar", "tvd_scalar"), ("JSD", "jsd"))
    }
    return {"model": model, "λ": f"{penalty:g}", "F1": nan, "accuracy": nan, **graded, **means}


def _shown_with(adversaries: Finding | None, seeds: Finding | None) -> list[tuple[str, Finding]]:
    """The findings that the curve is held against."""
    given = (("adversary", "per-instance adversaries", adversaries), ("seeds", SEEDS, seeds))
    for wanted, _, found in given:
        if found is not None and not {"jsd", "tvd"} <= set(found.records.columns):
            raise SelectionError(
                f"The records of {found.experiment!r} have no columns jsd and tvd: give the finding of {wanted},  "
                f"attnflow.audit.{wanted}(…)"
            )
    return [(name, found) for _, name, found in given if found is not None]


def judged(table: pd.DataFrame) -> str:
    """The verdict. A distance between predictions is a cost only beyond that of models with no reason to be far.

    Other seeds are the yardstick, and of them the furthest: they differ from the base for the seed alone. The imposter
    at λ = 0, which is trained to predict alike and may attend as it likes, stands beside them, and is the yardstick
    where no seeds are given.
    """
    rows: list[dict[Any, Any]] = table.to_dict("records")
    base = rows[0]["F1"]
    curve = [row for row in rows if row["model"] == "imposter"]
    far = [row for row in curve if row["JSD"] > FAR]
    if not far:
        top = max(curve, key=lambda row: float(row["JSD"]))
        return (
            f"No imposter got further than {top['JSD']:.3f} nats (JSD, at most {LN2:.3f}; at λ = {top['λ']}) from the "
            f"base's attention, at a TVD of {top['TVD']:.3f}: larger λ would be needed to say more."
        )
    best = min(far, key=lambda row: float(row["TVD"]))
    facts = (
        f"at λ = {best['λ']} the attention is {best['JSD']:.3f} nats (JSD) away from the base's, the predictions "
        f"{best['TVD']:.3f} (TVD), with F1 {best['F1']:.3f} versus {base:.3f}"
    )
    known = controls(rows, best)
    if not known:
        return (
            f"There is a model that attends elsewhere: {facts}. Whether that distance is a cost cannot be said without "
            "a control: add λ = 0, or the finding of the experiment with other seeds."
        )
    (name, limit), *beside = known.items()
    also = "".join(f"; {other} {value:.3f}" for other, value in beside)
    if best["TVD"] > limit:
        return f"To attend elsewhere costs agreement with the base, beyond that of {name} ({limit:.3f}{also}): {facts}."
    more = [other for other, value in beside if best["TVD"] > value and other != SEEDS]
    though = f", though less so than {more[0]}" if more else ""
    return (
        f"A model that attends elsewhere can predict as much like the base as {name} ({limit:.3f}{also}){though}: "
        f"{facts}."
    )


def controls(rows: Sequence[Mapping[Any, Any]], best: Mapping[Any, Any]) -> dict[str, float]:
    """The distance to the base of models that were not made to attend elsewhere, the yardstick first."""
    known: dict[str, float] = {}
    free: dict[str, float] = {}
    for row in rows:
        if row["model"] == SEEDS:
            known[f"the furthest of {SEEDS}"], known[SEEDS] = float(row.get(FURTHEST, np.nan)), float(row["TVD"])
        elif row["model"] == "imposter" and row["λ"] == "0" and row is not best:
            free["λ = 0"] = float(row["TVD"])
    known |= free
    return {name: value for name, value in known.items() if not np.isnan(value)}


def _draw(ax: Axes, table: pd.DataFrame) -> None:
    curve = table[table["model"] == "imposter"].sort_values("JSD")
    ax.plot(curve["JSD"].to_numpy(), curve["TVD"].to_numpy(), "o-", label="imposters, one for each λ")
    for x, y, name in zip(curve["JSD"], curve["TVD"], curve["λ"], strict=True):
        ax.annotate(f"λ={name}", (x, y), textcoords="offset points", xytext=(3, 3), fontsize=7)
    for name, mark in (("per-instance adversaries", "r+"), (SEEDS, "g^")):
        part = table[table["model"] == name]
        if len(part):
            ax.plot(part["JSD"].to_numpy(), part["TVD"].to_numpy(), mark, label=name)
    ax.set_xlim(0, LN2)
    ax.set_xlabel("JSD between the attention of both (nats)")
    ax.set_ylabel("TVD between the predictions of both")
    ax.legend()
