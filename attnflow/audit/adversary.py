"""Could the weights have been quite different? Adversarial attention (Jain & Wallace 2019, §4.2.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow.audit.finding import Finding
from attnflow.audit.instances import Instance, Progress, by_class, check_choice, check_number, in_words, open_texts
from attnflow.audit.intervention import Heads, Intervention, Layers, find_intervention
from attnflow.audit.measures import LN2
from attnflow.audit.registry import experiment, takes
from attnflow.audit.search import STARTS, AdversarialWeights, Search, search
from attnflow.errors import SelectionError
from attnflow.inputs.running import undisturbed
from attnflow.numbers import seed_of, truths

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Weights that moved less than this count as not moved in the verdict; a convention of this library.
_MOVED = 0.05
_LIMITS = (
    "The weights are changed in a trained model, for one text at a time; no model that was trained need have such "
    "weights (the criticism of Wiegreffe & Pinter 2019, §4).",
    "The search follows gradients from a few starts. What it missed may still exist; each figure is a lower bound.",
    "That other weights give the same output does not show that the model's own weights are a wrong account of it.",
    "The residual connection and the other layers see the tokens too: one layer may have little left to decide.",
)


@experiment(
    "2b",
    "Are there quite other weights that give the same output?",
    trains=False,
    options=takes("layers", "epsilon", "steps", "seed"),
)
def adversary(
    model: Any,
    tokenizer: Any,
    texts: Any,
    *,
    labels: Sequence[Any] | None = None,
    epsilon: float = 0.01,
    layers: Layers = -1,
    heads: Heads = None,
    rows: str = "position",
    fix_special: bool = False,
    share_heads: bool = False,
    candidates: int = 5,
    steps: int = 500,
    lr: float = 0.01,
    penalty: float = 500.0,
    spread: float = 1.0,
    start: str = "random",
    examples: int = 3,
    position: int | str | None = None,
    text_column: str | None = None,
    target_column: str | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """For each text, weights as far as possible from the model's own that leave the output within ε.

    Experiment 2b of Jain & Wallace (2019, §4.2.2): several candidates α̃ are optimised through the frozen
    model to maximise their Jensen-Shannon divergence (JSD, nats, at most ln 2) from the weights α, with

        loss = Σₖ [−JSD(α̃ₖ, α) + 500·ReLU(TVD(ŷₖ, ŷ) − ε)] − mean JSD between candidates

    and Adam (AMSGrad). The ε-max JSD of a text is the largest JSD that any candidate
    had at any step with TVD ½Σ|p − q| ≤ ε; the model's own weights are a candidate too, so it is never below 0.

    On a transformer this is done at the chosen layers: each head has a distribution of its own, and the JSD
    is the mean over layers, heads and rows. The verdict and ``settings`` say which.

    Args:
        model, tokenizer: a classifier, a masked or a causal language model, and its tokenizer.
        texts: a list of texts, or anything that :func:`attnflow.inputs.datasets.open_data` takes.
        labels: the class under which each text is counted; by default the class that the model predicts.
        layers: the model's own numbers (negative ones count from the top), or "all"; by default the last.
        heads: only these; None for all.
        rows: "position": the row of the output position alone; "all": every row of the chosen layers.
        fix_special: special tokens keep their weights, and only the rest is moved.
        share_heads: one distribution for all heads of a layer, instead of one for each.
        epsilon: how far the output may go (TVD). The paper: 0.01 for classes, 0.05 for answers.
        candidates, steps, lr, penalty: settings of the search, as in the paper's code.
        spread: the weight of the JSD between candidates, which keeps them apart.
        start: "random": log-uniform + 3·N(0, 1), as in the paper; "own": close to the model's own weights, from where a
            way outwards within ε is found more easily, where many heads are changed or the output is sensitive.
        examples: how many texts are shown with both weights, those that moved furthest first.
        position: the output position: by default the mask, the last of a causal model, [CLS] of a classifier.
        text_column, target_column, limit: which data; the column ``target_column`` has the labels.
        max_length: cut texts to this many tokens.
        batch_size: the largest number of texts, times the candidates, per forward pass.
        seed: for the starts; the same whatever the batch size.
        progress: called with (texts done, total).

    Returns:
        A :class:`Finding`; a record has ``jsd`` (the ε-max JSD), ``bound`` (the furthest that any weights could be
        from the model's own), ``tvd``, ``within`` (how many candidates were within ε at some step), and the tokens
        with both weights of the examined row, mean over heads, in the last of the layers.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> found = adversary(tiny, None, [[1, 5, 6, 2]], steps=20, candidates=2)
    >>> bool(0 < found.records["jsd"][0] <= found.records["bound"][0] < 0.6932)
    True
    """
    import pandas as pd

    _check(epsilon, candidates, steps, batch_size, start)
    seed = seed_of(seed)
    truths(fix_special=fix_special, share_heads=share_heads)
    given = open_texts(
        texts, labels, position=position, text_column=text_column, target_column=target_column, limit=limit,
        max_length=max_length,
    )  # fmt: skip
    found: dict[int, AdversarialWeights] = {}
    with undisturbed(model) as module:
        instances = list(given.instances(module, tokenizer))
        intervention = find_intervention(module, instances[0], layers, heads, rows, fix_special)
        how = Search(intervention, epsilon, candidates, steps, lr, penalty, spread, seed, share_heads, start)
        for batch in batches(instances, batch_size):
            for instance, result in zip(batch, search(module, batch, how), strict=True):
                found[instance.number] = result
            if progress is not None:
                progress(len(found), len(given))
    records = pd.DataFrame([_record(i, found[i.number]) for i in instances])
    settings = {**given.settings(), **how.settings(), "tvd": "½Σ|p − q|", "selection": "best step within ε"}
    return Finding(
        "adversary", _table(records), records, _verdict(records, intervention, epsilon), _LIMITS, settings,
        lambda ax: _draw(ax, records), _examples(records, examples),
    )  # fmt: skip


def _check(epsilon: float, candidates: int, steps: int, batch_size: int, start: str) -> None:
    check_choice("start", start, STARTS)
    if not 0 < epsilon <= 1:
        raise SelectionError(f"epsilon={epsilon}, but a TVD is between 0 and 1: use for instance epsilon=0.01.")
    for name, value in (("candidates", candidates), ("steps", steps), ("batch_size", batch_size)):
        check_number(name, value)


def batches(instances: Sequence[Instance], size: int) -> list[list[Instance]]:
    """Texts of the same length run together, so that none is padded."""
    alike: dict[Any, list[Instance]] = defaultdict(list)
    for instance in instances:
        lean = instance.example.lean(instance.goal)
        shapes = ((name, getattr(value, "shape", value)) for name, value in lean.items())
        alike[tuple(sorted(shapes, key=lambda s: s[0]))].append(instance)
    return [same[i : i + size] for same in alike.values() for i in range(0, len(same), size)]


def _record(instance: Instance, found: AdversarialWeights) -> dict[str, Any]:
    return {
        "number": instance.number,
        "class": instance.label,
        "jsd": found.jsd,
        "bound": found.bound,
        "tvd": found.tvd,
        "within": found.within,
        "text": instance.text,
        "tokens": list(found.tokens),
        "attention": found.own.tolist(),
        "adversarial": found.other.tolist(),
    }


def _table(records: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, part in by_class(records):
        jsd = part["jsd"]
        rows.append({
            "class": name, "n": len(part), "mean JSD": jsd.mean(), "std": jsd.std(ddof=0), "median": jsd.median(),
            "of the furthest possible": _share(part), f"JSD < {_MOVED}": (jsd < _MOVED).mean(),
            "mean TVD": part["tvd"].mean(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _share(records: pd.DataFrame) -> float:
    """How much of what could be moved was moved; texts whose weights cannot move at all say nothing."""
    some = records[records["bound"] > 0]
    return float((some["jsd"] / some["bound"]).mean())


def _verdict(records: pd.DataFrame, intervention: Intervention, epsilon: float) -> str:
    jsd, n = records["jsd"], len(records)
    far, stayed = int((jsd > records["bound"] / 2).sum()), int((jsd < _MOVED).sum())
    lost = int((records["within"] == 0).sum())
    note = (
        f" For {lost} no candidate came within ε at any step, which may be the search's fault: try start='own'."
        if lost
        else ""
    )
    return (
        f"With the output within a TVD of {epsilon:g}, the attention of {intervention.describe()} could be moved by "
        f"a mean JSD of {jsd.mean():.3f} (at most {LN2:.3f}; {_share(records):.0%} of the furthest "
        f"possible from the model's own weights).{in_words(records, 'jsd')} "
        f"For {far} of {n} texts weights more than half as far as possible give nearly the same output; "
        f"for {stayed} none further than {_MOVED} were found.{note}"
    )


def _examples(records: pd.DataFrame, count: int) -> dict[str, pd.DataFrame]:
    import pandas as pd

    out: dict[str, pd.DataFrame] = {}
    for _, row in records.sort_values("jsd", ascending=False, kind="stable").head(count).iterrows():
        title = f"Text {row['number']}: JSD {row['jsd']:.3f}, TVD {row['tvd']:.4f}"
        columns = {"token": row["tokens"], "model's own": row["attention"], "adversarial": row["adversarial"]}
        out[title] = pd.DataFrame(columns)
    return out


def _draw(ax: Axes, records: pd.DataFrame) -> None:
    parts = by_class(records)
    edges = np.linspace(0, LN2, 22)
    for name, part in parts[:-1] or parts:
        ax.hist(part["jsd"], bins=edges.tolist(), alpha=0.5, label=name)
    ax.axvline(LN2, color="0.6", lw=0.8, ls="--")
    ax.set(xlabel="ε-max JSD (nats; dashed: ln 2)", ylabel="texts", xlim=(0, 0.72))
    if len(parts) > 1:
        ax.legend(title="class")
