"""Does it matter which tokens the weight is on? Attention weights shuffled (Jain & Wallace 2019, §4.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnflow.audit.finding import Finding
from attnflow.audit.instances import (
    Instance,
    Progress,
    by_class,
    check_number,
    in_words,
    inputs_of,
    open_texts,
    outputs_of,
)
from attnflow.audit.intervention import (
    Heads,
    Intervention,
    Layers,
    find_intervention,
    forward,
    lower_layers_once,
    put,
    replaced,
    take,
)
from attnflow.audit.registry import experiment, takes
from attnflow.capturing.session import Call
from attnflow.inputs.running import undisturbed
from attnflow.numbers import seed_of, truths
from attnflow.significance import LEVEL

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
# A change of the output below this is counted as small; the papers draw no such line.
_SMALL = 0.05
# Below this number of texts a bin or a rank correlation says nothing.
FEWEST = 20
# The name of all classes with fewer texts, taken together.
_REST = "(few)"
_LIMITS = (
    "A small change says that the output does not depend on where these weights are; it does not say what it depends "
    "on: the residual connection and the other layers carry the rest.",
    "Shuffled weights are put into a trained model, which has never seen such weights (Wiegreffe & Pinter 2019).",
    "A long text has smaller weights, and may change less for that alone.",
    "Tokens above the first layer are mixtures of tokens, so that moving weight between them may change little.",
)


@experiment(
    "2a",
    "Does the output change when the attention weights are shuffled?",
    trains=False,
    options=takes("layers", "permutations", "seed"),
)
def permutation(
    model: Any,
    tokenizer: Any,
    texts: Any,
    *,
    labels: Sequence[Any] | None = None,
    layers: Layers = -1,
    heads: Heads = None,
    rows: str = "position",
    fix_special: bool = True,
    share_heads: bool = False,
    permutations: int = 100,
    position: int | str | None = None,
    text_column: str | None = None,
    target_column: str | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """The median change of the output when attention weights are shuffled, against the largest weight.

    Experiment 2a of Jain & Wallace (2019, §4.2.1). For each text the weights of the chosen layers and heads are
    shuffled many times among the tokens that a row can see, and the model's own code computes the output from them:
    ``change`` is the median over the permutations of the total variation distance ½Σ|p − q| to the model's own
    output. If attention tells what matters, a text in which one token has nearly all weight should change most.

    Args:
        model, tokenizer, texts, labels, position, text_column, target_column, limit, max_length, progress: as for
            :func:`correlation`.
        layers: the model's own numbers (negative ones count from the top), or "all". Layers above a shuffled one
            compute their own weights from what they are then given, before these are shuffled.
        heads: only these; None for all.
        rows: "position": the row of the output position alone; "all": every row of the chosen layers.
        fix_special: special tokens keep their weights, as SOS and EOS do in the paper.
        share_heads: one permutation for all heads of a layer, instead of one for each.
        permutations: the number of permutations per text.
        batch_size: the largest number of permutations per forward pass.
        seed: for the permutations; the same whatever the batch size.

    Returns:
        A :class:`Finding`; a record has ``change`` (the median), ``mean`` and ``largest`` over the permutations,
        ``max_attention`` (the largest weight on a token that may move, mean over heads and layers) and
        ``movable`` (the share of the weight that is on such tokens).

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> found = permutation(tiny, None, [[1, 5, 6, 2], [1, 7, 2]], permutations=10)
    >>> list(found.records.columns)[2:]
    ['tokens', 'max_attention', 'movable', 'change', 'mean', 'largest', 'bin', 'text']
    """
    import pandas as pd

    check_number("permutations", permutations)
    check_number("batch_size", batch_size)
    seed = seed_of(seed)
    truths(fix_special=fix_special, share_heads=share_heads)
    given = open_texts(
        texts, labels, position=position, text_column=text_column, target_column=target_column, limit=limit,
        max_length=max_length,
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    intervention: Intervention | None = None
    with undisturbed(model) as module:
        for instance in given.instances(module, tokenizer):
            intervention = intervention or find_intervention(module, instance, layers, heads, rows, fix_special)
            shuffle = _Shuffle(intervention, instance, seed, share_heads)
            found.append(_record(module, shuffle, permutations, batch_size))
            if progress is not None:
                progress(len(found), len(given))
    assert intervention is not None
    records = pd.DataFrame(found)
    settings = {
        **given.settings(), **intervention.settings(), "permutations": permutations, "share_heads": share_heads,
        "seed": seed, "tvd": "½Σ|p − q|", "bins": BINS,
    }  # fmt: skip
    verdict, tests = judged(records, intervention.describe(), permutations)
    return Finding(
        "permutation", _table(records), records, verdict, _limits(records), settings, lambda ax: _draw(ax, records),
        tests=tests,
    )  # fmt: skip


class _Shuffle:
    """Puts permutations number ``first``, ``first`` + 1, … into the batch; at ``first`` None looks on."""

    def __init__(self, intervention: Intervention, instance: Instance, seed: int, share_heads: bool) -> None:
        self.intervention, self.instance, self.seed, self.share_heads = intervention, instance, seed, share_heads
        self.first: int | None = None
        self.largest: dict[int, float] = {}
        self.movable: dict[int, float] = {}

    def __call__(self, call: Call, weights: Tensor) -> Tensor | None:
        if not self.intervention.wants(call):
            return None
        at = self.intervention.rows_of([self.instance], weights)
        old = take(weights, at)
        free = self.intervention.free(old, [self.instance])
        if self.first is None:
            self._measure(self.intervention.layer(call), weights, old, free)
            return None
        noise = [self._noise(self.intervention.layer(call), self.first + i, old) for i in range(len(old))]
        new = shuffled(old, free, torch.from_numpy(np.stack(noise)).to(old.device))
        return put(weights, at, self.intervention.in_heads(old, new))

    def _measure(self, layer: int, weights: Tensor, old: Tensor, free: Tensor) -> None:
        if self.intervention.rows == "all" and weights.shape[2] == len(self.instance.example.queries):
            old, free = (x[:, :, [self.instance.row]] for x in (old, free))
        moving = self.intervention.of_heads(torch.where(free, old, 0.0))
        self.largest[layer] = float(moving.amax(-1).mean())
        self.movable[layer] = float(moving.sum(-1).mean() / self.intervention.of_heads(old).sum(-1).mean())

    def _noise(self, layer: int, number: int, old: Tensor) -> Any:
        """One stream of chance for each text, layer and permutation, so that batches do not matter."""
        stream = np.random.default_rng([self.seed, self.instance.number, layer, number])
        heads, rows, keys = old.shape[1:]
        noise = stream.random((1 if self.share_heads else heads, rows, keys), np.float32)
        return np.broadcast_to(noise, (heads, rows, keys))


def shuffled(weights: Tensor, free: Tensor, noise: Tensor) -> Tensor:
    """The free entries of each row in the order of their noise; the others where they were.

    Args:
        weights: ``[…, keys]``.
        free: ``[…, keys]`` bool, or what can be expanded to it.
        noise: ``[…, keys]``, below 1.

    >>> shuffled(torch.tensor([0.1, 0.2, 0.7]), torch.tensor([True, False, True]), torch.tensor([0.9, 0.1, 0.3]))
    tensor([0.7000, 0.2000, 0.1000])
    """
    free = free.expand_as(weights)
    # Both orders name the free columns first and the others after them, in the same order: these map to themselves.
    by_place = (~free).to(torch.int8).argsort(dim=-1, stable=True)
    by_noise = noise.masked_fill(~free, 2.0).argsort(dim=-1, stable=True)
    return torch.empty_like(weights).scatter(-1, by_place, weights.gather(-1, by_noise))


def _record(model: nn.Module, shuffle: _Shuffle, permutations: int, batch_size: int) -> dict[str, Any]:
    instance = shuffle.instance
    changes = changes_of(model, shuffle, permutations, batch_size)
    largest = float(np.mean(list(shuffle.largest.values())))
    return {
        "number": instance.number,
        "class": instance.label,
        "tokens": len(instance.example.tokens),
        "max_attention": largest,
        "movable": float(np.mean(list(shuffle.movable.values()))),
        "change": float(np.median(changes)),
        "mean": float(changes.mean()),
        "largest": float(changes.max()),
        "bin": _bin(largest),
        "text": instance.text,
    }


def changes_of(model: nn.Module, shuffle: _Shuffle, permutations: int, batch_size: int) -> Any:
    """``[permutations]``: how far each of them takes the output."""
    instance = shuffle.instance
    parts = []

    def run(copies: int) -> Tensor:
        return outputs_of([instance], forward(model, inputs_of([instance], copies), records), copies)

    with (
        torch.inference_mode(False), torch.no_grad(), replaced(model, shuffle) as records,
        lower_layers_once(model, shuffle.intervention, 1, run) as lower,
    ):  # fmt: skip
        lower.copies = 1
        before = run(1)[0]
        for first in range(0, permutations, batch_size):
            shuffle.first = first
            lower.copies = min(batch_size, permutations - first)
            parts.append(instance.change(run(lower.copies)[0], before).cpu().numpy())
    return np.concatenate(parts)


def _bin(value: float) -> str:
    i = min(int(np.searchsorted(BINS, value, "right")) - 1, len(BINS) - 2)
    return f"[{BINS[i]:g}, {BINS[i + 1]:g}{']' if i == len(BINS) - 2 else ')'}"


def _bins() -> list[str]:
    return [_bin(low) for low in BINS[:-1]]


def _table(records: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, part in by_class(records):
        for bin_name in [*_bins(), "all"]:
            mine = part if bin_name == "all" else part[part["bin"] == bin_name]
            rows.append({
                "class": name, "max attention": bin_name, "n": len(mine), "median change": mine["change"].median(),
                "25 %": mine["change"].quantile(0.25), "75 %": mine["change"].quantile(0.75),
                "movable share": mine["movable"].mean(),
            })  # fmt: skip
    return pd.DataFrame(rows)


def judged(records: pd.DataFrame, where: str, permutations: int) -> tuple[str, dict[str, float]]:
    """The verdict in words, and its test: does the output change more where attention is more peaked?

    The answer is the rank correlation of the largest weight with the change among texts of the same class: a class with
    larger weights and larger changes would make one over all texts. Bins are compared only where both have at least
    :data:`FEWEST` texts.
    """
    change = records["change"]
    said = (
        f"Shuffling the attention of {where} changed the output by a median TVD of "
        f"{change.median():.3f} ({permutations} permutations of each of {len(records)} texts); for "
        f"{(change < _SMALL).mean():.0%} of the texts the change was below {_SMALL}."
    )
    said += in_words(records, "change", "median")
    if len(records) < FEWEST:
        return f"{said} Whether peaked attention matters more cannot be told from fewer than {FEWEST} texts.", {}
    rho, p, groups = trend(records)
    if np.isnan(rho):
        return f"{said} The largest weight or the change is the same for all texts, so they cannot be related.", {}
    within = f" within {groups} classes" if groups > 1 else ""
    how = f"Spearman {rho:.2f} of the largest weight with the change{within}, n = {len(records)}, p = {p:.2g}"
    if p >= LEVEL:
        what = f"That peaked attention matters more could not be shown ({how})."
    elif rho > 0:
        what = f"The more peaked attention is, the more the output depends on which tokens have the weight ({how})."
    else:
        what = f"The more peaked attention is, the less the output depends on which tokens have the weight ({how})."
    return f"{said} {what}{_by_bin(records)}", {"permutation: largest weight and change": p}


def trend(records: pd.DataFrame) -> tuple[float, float, int]:
    """(Spearman's ρ of the largest weight with the change within classes, its p-value, how many classes there are).

    Ranks are taken within each class and counted from its middle, so that what the classes differ by is gone; classes
    with fewer than :data:`FEWEST` texts are taken together. NaN where one of the two is constant in every class.
    """
    from scipy.stats import t

    sizes = records["class"].value_counts()
    group = records["class"].astype(str).where(records["class"].map(sizes) >= FEWEST, _REST)
    x, y = (_ranks(records[column], group) for column in ("max_attention", "change"))
    if not x.any() or not y.any():
        return float("nan"), float("nan"), group.nunique()
    rho = float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))
    # As many degrees of freedom as scipy's spearmanr takes, less one for each further class.
    free = len(records) - 1 - group.nunique()
    distance = abs(rho) * np.sqrt(free / max(1 - rho**2, 1e-300))
    return rho, float(2 * t.sf(distance, free)), group.nunique()


def _ranks(values: pd.Series, group: pd.Series) -> npt.NDArray[np.float64]:
    """Ranks within each group, from −½ to ½."""
    from scipy.stats import rankdata

    def centred(part: pd.Series) -> npt.NDArray[np.float64]:
        return (np.asarray(rankdata(part), np.float64) - (len(part) + 1) / 2) / len(part)

    return values.groupby(group).transform(centred).to_numpy(np.float64)


def _by_bin(records: pd.DataFrame) -> str:
    """The lowest and the highest bin that have enough texts."""
    full = [(b, part) for b in _bins() if len(part := records[records["bin"] == b]) >= FEWEST]
    if len(full) < 2:
        return ""
    low, high = (f"{b} (n = {len(part)}) {part['change'].median():.3f}" for b, part in (full[0], full[-1]))
    return f" Median change by largest weight: in {low}, in {high}."


def _limits(records: pd.DataFrame) -> tuple[str, ...]:
    share = records["movable"].mean()
    if share >= 0.5:
        return _LIMITS
    return (
        *_LIMITS,
        f"Only {share:.0%} of the weight is on tokens that were shuffled; the rest is on special tokens, which stayed. "
        "With fix_special=False they are shuffled too.",
    )


def _draw(ax: Axes, records: pd.DataFrame) -> None:
    parts = by_class(records)
    for name, part in parts[:-1] or parts:
        ax.plot(part["change"], part["max_attention"], "o", ms=4, alpha=0.5, label=name)
    for edge in BINS[1:-1]:
        ax.axhline(edge, color="0.8", lw=0.8, zorder=0)
    ax.set(xlabel="median change of the output (TVD)", ylabel="maximum attention", ylim=(0, 1), xlim=(0, None))
    if len(parts) > 1:
        ax.legend(title="class")
