"""Does attention rank the inputs as gradients and leave-one-out do? (Jain & Wallace 2019, experiment 1)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from attnflow.audit.finding import Finding
from attnflow.audit.instances import Instance, Progress, Texts, by_class, check_number, open_texts
from attnflow.audit.intervention import Layers, layer_numbers, replaced, unseen
from attnflow.audit.registry import experiment, takes
from attnflow.capturing.session import Call
from attnflow.comparing.scorer import Scored, Scorer, at_layers, correlated
from attnflow.errors import CaptureError, SelectionError
from attnflow.heads import Heads
from attnflow.inputs.running import undisturbed
from attnflow.numbers import real, truths
from attnflow.scoring.gradient import SCALELESS, scale_share
from attnflow.scoring.registry import MethodCall, Spec, calls, find, names

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Vector = npt.NDArray[np.float64]

# The length of the gradient comes first: the product, which the paper has, fails behind a norm of the embeddings.
LENGTH, PRODUCT = "attention – ‖gradient‖", "attention – gradient × embedding"
LOO = "attention – leave-one-out"
LENGTH_LOO, PRODUCT_LOO = "‖gradient‖ – leave-one-out", "gradient × embedding – leave-one-out"
# What the verdict calls the two sides of a pair; an empty first side is the attention method.
_SIDES = {
    LENGTH: ("", "the lengths of gradients"),
    PRODUCT: ("", "gradients times embeddings"),
    LOO: ("", "leave-one-out"),
    LENGTH_LOO: ("the lengths of gradients", "leave-one-out"),
    PRODUCT_LOO: ("gradients times embeddings", "leave-one-out"),
}
# The pairs that a norm behind the embeddings leaves without a meaning.
_PRODUCTS = (PRODUCT, PRODUCT_LOO)
_CAVEAT = ", but these products are no measure of the words here: a norm ignores the scale of the embeddings"
SHARE = "|Σ g·x| / Σ|g·x|"
# The words of the verdict for |τ|; a convention of this library.
_WORDS = ((0.5, "strongly"), (0.3, "moderately"), (0.1, "weakly"), (0.0, "hardly at all"))
_LIMITS = (
    "Gradients and leave-one-out are no ground truth: where two methods agree, both may be wrong, and where they "
    "differ, either may be right (Neely et al. 2022).",
    "τ weighs every pair of tokens alike, also those that no method thinks important, and its p-value takes pairs of "
    "tokens as chance alone would order them; long texts are significant more easily.",
    "Leave-one-out takes tokens away one at a time, which gives the model texts unlike those that it was trained on.",
)


@experiment(
    "1",
    "Does attention rank the inputs as gradients and leave-one-out do?",
    trains=False,
    options=takes("layers", "methods"),
)
def correlation(
    model: Any,
    tokenizer: Any,
    texts: Any,
    *,
    labels: Sequence[Any] | None = None,
    methods: Spec | None = None,
    layers: Layers = -1,
    heads: Heads = "mean",
    detach_attention: bool = True,
    special_tokens: bool = False,
    significance: float = 0.05,
    position: int | str | None = None,
    text_column: str | None = None,
    target_column: str | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Finding:
    """Kendall's τ of attention with gradients and with leave-one-out, and of these two with each other.

    Experiment 1 of Jain & Wallace (2019, Algorithm 1, Table 2). With α the attention of the output position,

        ‖∂ŷ/∂xₜ‖₂                          Kendall(α, ‖g‖)
        gₜ = |Σ_dim ∂ŷ/∂xₜ · xₜ|          the paper's τ_g = Kendall(α, g)
        Δŷₜ = TVD(ŷ(x without t), ŷ(x))    τ_loo = Kendall(α, Δŷ)

    over the tokens of a text, and over the texts the mean τ and the share with p ≤ 0.05. ŷ is the probability of
    what the model predicted; τ-b and its p-value are scipy's. The length ‖∂ŷ/∂xₜ‖₂ comes before the paper's gₜ because
    gₜ fails behind a norm of the embeddings: the norm ignores their scale, so that Σ_dim ∂ŷ/∂xₜ · xₜ of a word is minus
    that of its position and type. Whether a norm is there is measured on the first text, and the verdict and the limits
    say it. :func:`attnflow.compare` is the same for other correlations, references and larger data, without p-values.

    Args:
        model, tokenizer: a classifier, a masked or a causal language model, and its tokenizer.
        texts: a list of texts, or anything that :func:`attnflow.inputs.datasets.open_data` takes.
        labels: the class under which each text is counted; by default the class that the model predicts.
        methods: of "raw", "rollout" and "flow", or a dict of options as for :func:`attnflow.compare`; None takes all
            three, or "raw" alone where the attention is not square.
        layers: the model's own numbers (negative ones count from the top), or "all"; by default the last.
        heads: how the heads of a layer are brought down to one: "mean", "max", "min", one head, or the mean of some.
        detach_attention: treat the weights as constants in the gradient, as the paper's code does; False follows the
            gradient through the softmax too.
        special_tokens: False leaves [CLS], </s> and their like out of the ranking, as the paper does with SOS and EOS.
        significance: the p-value up to which a τ counts as significant.
        position: the output position: by default the mask, the last position of a causal model, or [CLS].
        text_column, target_column, limit: which data; the column ``target_column`` has the labels.
        max_length: cut texts to this many tokens.
        batch_size: the largest number of shortened texts per forward pass.
        progress: called with (texts done, total).

    Returns:
        A :class:`Finding`; a record is one τ: of a text, a pair, a method and a layer. A scoring that ranks nothing
        has no τ (NaN) and is counted under ``nan``.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> sizes = dict(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    >>> tiny = BertForSequenceClassification(BertConfig(**sizes)).eval()
    >>> found = correlation(tiny, None, [[1, 5, 6, 7, 2], [1, 8, 9, 7, 2]], methods="raw")
    >>> list(found.table.columns)
    ['class', 'pair', 'method', 'layer', 'mean τ', 'std', 'significant', 'n', 'nan']
    """
    import pandas as pd

    check_number("batch_size", batch_size)
    truths(detach_attention=detach_attention, special_tokens=special_tokens)
    if not 0 < real(significance, "significance") < 1:
        raise SelectionError(f"significance={significance}, but a p-value is between 0 and 1: use 0.05.")
    given = open_texts(
        texts, labels, position=position, text_column=text_column, target_column=target_column, limit=limit,
        max_length=max_length,
    )  # fmt: skip
    asked = None if methods is None else calls("methods", methods, "attention")
    made: list[dict[str, Any]] = []
    share = float("nan")
    with undisturbed(model) as module:
        for done, instance in enumerate(given.instances(module, tokenizer, head=False), 1):
            scorer = Scorer(instance.example, instance.goal, instance.row, heads=heads, batch_size=batch_size)
            scored = _scores(scorer, asked, layers)
            references = _references(module, scorer, detach_attention)
            # A property of the model, not of the text: the first one shows it.
            share = scale_share(instance.example, instance.goal) if done == 1 else share
            made += _records(instance, scored, references, special_tokens)
            if progress is not None:
                progress(done, len(given))
    records = pd.DataFrame(made)
    table = _table(records, significance)
    settings = {
        **_settings(given, records, significance), "heads": heads, "detach_attention": detach_attention,
        "special_tokens": special_tokens, SHARE: share,
    }  # fmt: skip
    verdict = _verdict(table, len(given), significance, scaleless=share < SCALELESS)
    return Finding("correlation", table, records, verdict, _limits(share), settings, lambda ax: _draw(ax, records))


def _scores(scorer: Scorer, asked: Sequence[MethodCall] | None, layers: Layers) -> dict[str, Scored]:
    """The attention of the output position by each method, at the chosen layers."""
    shown = names("attention", shown=True)
    # Of a pooling layer, rollout and flow are raw attention.
    chosen = asked or calls("methods", shown[:1] if scorer.pooled else shown, "attention")
    return {call.name: at_layers(scorer.score(call), layer_numbers(layers)) for call in chosen}


def _references(model: nn.Module, scorer: Scorer, detach: bool) -> dict[str, Scored]:
    """Lengths of gradients, products with the embeddings, and leave-one-out, by the name of their pair with attention.

    ``[1, tokens]`` each; NaN where a token cannot be taken away.
    """
    goal = scorer.goal
    with _constant(model) if detach else nullcontext():
        length = MethodCall(LENGTH, find("gradient"), {"reduce": "l2", "score": goal.score})
        product = MethodCall(PRODUCT, find("input_x_gradient"), {"reduce": "abs_of_sum", "score": goal.score})
        found = {call.name: scorer.score(call) for call in (length, product)}
    # Independent classes have no one distribution: the probability of the predicted one is compared.
    score = None if goal.independent or goal.kind == "vector" or goal.score == "logit" else "tvd"
    found[LOO] = scorer.score(MethodCall(LOO, find("blankout-delete"), {"score": score}))
    scorer.example.cache.clear()
    return found


@contextmanager
def _constant(model: nn.Module) -> Iterator[None]:
    """No gradient goes through the attention weights; an error if they were not seen."""
    seen: list[str] = []

    def cut(call: Call, weights: Tensor) -> Tensor:
        seen.append(call.name)
        return weights.detach()

    with replaced(model, cut) as records:
        yield
        records.clear()
    if not seen:
        raise CaptureError(f"{unseen(model)} Let the gradient through it:  detach_attention=False")


def _records(
    instance: Instance, scored: Mapping[str, Scored], references: Mapping[str, Scored], special_tokens: bool
) -> Iterator[dict[str, Any]]:
    """One τ per pair of scorings: attention with each reference, and gradients with leave-one-out."""
    head = {"number": instance.number, "class": instance.label, "text": instance.text}
    pairs = [({name: found}, {pair: reference}) for name, found in scored.items()
             for pair, reference in references.items()]  # fmt: skip
    left_out = references[LOO]
    pairs += [({"": references[LENGTH]}, {LENGTH_LOO: left_out}), ({"": references[PRODUCT]}, {PRODUCT_LOO: left_out})]
    how: dict[str, Any] = {"correlations": ("kendall",), "special": (special_tokens,), "p_values": True}
    for methods, others in pairs:
        for found in correlated(instance.example.tokens, methods, others, **how):
            layer = -1 if found["layer"] == "input" else int(found["layer"])
            yield {**head, "pair": found["reference"], "method": found["method"], "layer": layer,
                   "tau": found["value"], "p": found["p"], "tokens": found["n"]}  # fmt: skip


def _settings(given: Texts, records: pd.DataFrame, significance: float) -> dict[str, Any]:
    attention = records[records["method"] != ""]
    return {
        **given.settings(),
        "methods": sorted(set(attention["method"])),
        "layers": sorted(int(i) for i in set(attention["layer"])),
        "‖gradient‖": "length of the gradient of the predicted probability",
        "gradient × embedding": "|Σ gradient·embedding| of the predicted probability",
        "leave_one_out": "deletion, TVD ½Σ|p − q| of the outputs",
        "significance": significance,
        "correlation": "kendall (τ-b)",
    }


def _table(records: pd.DataFrame, significance: float) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for name, part in by_class(records):
        for (pair, method, layer), mine in part.groupby(["pair", "method", "layer"], sort=False):
            tau = mine["tau"].dropna()
            rows.append({
                "class": name, "pair": pair, "method": method or "—", "layer": layer if method else "—",
                "mean τ": tau.mean(), "std": tau.std(ddof=0),
                "significant": (mine["p"].dropna() <= significance).mean() if len(tau) else float("nan"),
                "n": len(tau), "nan": len(mine) - len(tau),
            })  # fmt: skip
    return pd.DataFrame(rows)


def _limits(share: float) -> tuple[str, ...]:
    """Where a norm ignores the scale of the embeddings, what that makes of the product comes first."""
    if not share < SCALELESS:
        return _LIMITS
    return (
        "The product of gradient and embedding is no measure of the words here: a norm behind the embeddings ignores "
        f"their scale (measured: |Σ g·x| is {share:.0e} of Σ|g·x|, for x of words, positions and types together), so a "
        "word's product is minus that of its position and type. Take the length of the gradient.",
        *_LIMITS,
    )


def _verdict(table: pd.DataFrame, count: int, significance: float, scaleless: bool = False) -> str:
    whole = table[table["class"] == "all"]
    parts = whole.groupby(["pair", "method"], sort=False)
    said = [
        _line(part.to_dict("records"), significance) + (_CAVEAT if scaleless and pair in _PRODUCTS else "")
        for (pair, _), part in parts
    ]
    lost = int(whole["nan"].max())
    note = f" Up to {lost} of them have no τ, because a scoring ranked nothing." if lost else ""
    return f"Over {count} texts: {'; '.join(said)}.{note}"


def _line(rows: Sequence[Mapping[Any, Any]], significance: float) -> str:
    """One method against one reference; of several layers the highest and the lowest."""
    ranked = sorted((row for row in rows if not np.isnan(row["mean τ"])), key=lambda row: row["mean τ"])
    first = rows[0]
    side, other = _SIDES[first["pair"]]
    who = side or f"{first['method']} attention"
    if not ranked:
        return f"{who} and {other} cannot be compared"
    verb = "agree" if side else "agrees"
    if len(ranked) > 1:
        low, high = (f"layer {row['layer']} ({_figures(row, significance)})" for row in (ranked[0], ranked[-1]))
        return f"{who} {verb} with {other} most at {high} and least at {low}"
    tau = ranked[0]["mean τ"]
    word = next(w for least, w in _WORDS if abs(tau) >= least)
    turned = "dis" if tau <= -_WORDS[-2][0] else ""
    where = "" if side else f" of layer {ranked[0]['layer']}"
    return f"{who}{where} {turned}{verb} {word} with {other} ({_figures(ranked[0], significance)})"


def _figures(row: Mapping[Any, Any], significance: float) -> str:
    return f"mean τ {row['mean τ']:.2f}, p ≤ {significance:g} for {row['significant']:.0%}"


def _draw(ax: Axes, records: pd.DataFrame) -> None:
    groups = records.groupby(["pair", "method", "layer"], sort=False)
    edges = np.linspace(-1, 1, 41).tolist()
    for (pair, method, layer), part in groups:
        name = f"{str(pair).replace('attention', str(method))}, layer {layer}" if method else str(pair)
        ax.hist(part["tau"].dropna(), bins=edges, histtype="step", label=name)
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    ax.set(xlabel="Kendall's τ", ylabel="texts", xlim=(-1, 1))
    ax.legend(fontsize="small")
