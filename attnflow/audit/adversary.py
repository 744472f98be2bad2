"""Could the weights have been quite different? Adversarial attention (Jain & Wallace 2019, §4.2.2).

The search optimises candidates for several texts at once, through the frozen model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
    check_choice,
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
    keys_of,
    lower_layers_once,
    put,
    replaced,
    take,
)
from attnflow.audit.measures import LN2, furthest, jsd
from attnflow.audit.registry import experiment, takes
from attnflow.capturing.session import Call
from attnflow.errors import SelectionError
from attnflow.inputs.running import differentiable, undisturbed
from attnflow.numbers import seed_of, truths
from attnflow.tokens import Tokens

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Vector = npt.NDArray[np.float64]
STARTS = ("random", "own")
# How far a start is from the model's own weights, in logits: near enough to be within ε, and not all in one place.
_NEAR = 0.1
# Finite, because a row in which nothing may move would otherwise have no softmax.
_NEVER = -1e30
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
        model, tokenizer, texts, labels, layers, position, text_column, target_column, limit, max_length, progress: as
            for :func:`correlation`.
        heads, rows: as for :func:`permutation`.
        fix_special: special tokens keep their weights, and only the rest is moved.
        share_heads: one distribution for all heads of a layer, instead of one for each.
        epsilon: how far the output may go (TVD). The paper: 0.01 for classes, 0.05 for answers.
        candidates, steps, lr, penalty: settings of the search, as in the paper's code.
        spread: the weight of the JSD between candidates, which keeps them apart.
        start: "random": log-uniform + 3·N(0, 1), as in the paper; "own": close to the model's own weights, from where a
            way outwards within ε is found more easily, where many heads are changed or the output is sensitive.
        examples: how many texts are shown with both weights, those that moved furthest first.
        batch_size: the largest number of texts, times the candidates, per forward pass.
        seed: for the starts; the same whatever the batch size.

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
        moved = part["jsd"]
        rows.append({
            "class": name, "n": len(part), "mean JSD": moved.mean(), "std": moved.std(ddof=0), "median": moved.median(),
            "of the furthest possible": _share(part), f"JSD < {_MOVED}": (moved < _MOVED).mean(),
            "mean TVD": part["tvd"].mean(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _share(records: pd.DataFrame) -> float:
    """How much of what could be moved was moved; texts whose weights cannot move at all say nothing."""
    some = records[records["bound"] > 0]
    return float((some["jsd"] / some["bound"]).mean())


def _verdict(records: pd.DataFrame, intervention: Intervention, epsilon: float) -> str:
    moved, n = records["jsd"], len(records)
    far, stayed = int((moved > records["bound"] / 2).sum()), int((moved < _MOVED).sum())
    lost = int((records["within"] == 0).sum())
    note = (
        f" For {lost} no candidate came within ε at any step, which may be the search's fault: try start='own'."
        if lost
        else ""
    )
    return (
        f"With the output within a TVD of {epsilon:g}, the attention of {intervention.describe()} could be moved by "
        f"a mean JSD of {moved.mean():.3f} (at most {LN2:.3f}; {_share(records):.0%} of the furthest "
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
