"""Do two scorings rank the same inputs first? Rank correlation of relevance scores, by scipy.

Two conventions decide what such a figure means, and both are kept visible here: what happens to equal scores
(ties), and what happens where all scores are equal. Equal scores share their average rank (Spearman) or are
counted out of the pairs (Kendall's τ-b). A constant scoring ranks nothing, so its correlation is NaN and
is counted as such, never 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import SelectionError, ShapeError, WeightsError
from attnflow.numbers import at_least, to_numpy, truths, word
from attnflow.relevance import Relevance
from attnflow.select import pick_layer, pick_position

Vector = npt.NDArray[np.float64]

# Scores that differ by less than this share of the largest one are rounding, not a ranking.
_ROUNDING = 1e-12
# Up to this many positions, looking at all pairs is quicker than sorting.
_ALL_PAIRS = 256


@dataclass(frozen=True, eq=False)
class Correlation:
    """One coefficient per layer.

    Attributes:
        values: ``[layers]``; NaN where a scoring was constant, or fewer than two positions were left.
        layers: the layer numbers of the first scoring.
        method: "spearman", "kendall", …
        n: how many positions were compared.
        ties: ``[layers]``, the share of pairs of positions to which the first scoring gives equal scores.
        reference_ties: the same for the second scoring.
    """

    values: Vector
    layers: tuple[int | str, ...]
    method: str
    n: int
    ties: Vector
    reference_ties: float

    @property
    def nan(self) -> int:
        """How many of the layers have no coefficient."""
        return int(np.isnan(self.values).sum())

    def __float__(self) -> float:
        if len(self.values) != 1:
            raise ShapeError(f"{len(self.values)} layers have {len(self.values)} coefficients, not one: use .values.")
        return float(self.values[0])

    def __repr__(self) -> str:
        shown = ", ".join(f"{v:.3f}" for v in self.values)
        return f"Correlation({self.method}, n={self.n}: {shown})"


def correlate(
    scores: Any,
    reference: Any,
    method: str = "spearman",
    *,
    special_tokens: bool = True,
    layer: int | None = None,
    position: int | str | None = None,
    k: int = 5,
) -> Correlation:
    """The correlation of each layer of ``scores`` with ``reference``.

    A position for which either side has NaN is left out: blank-out by deletion has no score for the position that
    it explains, and pixels say nothing about a [CLS] token. An infinite score is an error.

    Args:
        scores: a :class:`Relevance` ``[layers, keys]`` (rows = layers, columns = input positions), or
            ``[layers, queries, keys]`` with ``position`` given, or plain numbers ``[keys]``.
        reference: the same inputs scored in another way: a :class:`Relevance` of one row, or plain numbers.
        method: "spearman" (average ranks), "kendall" (τ-b), "weighted_kendall" (pairs weighted by the
            rank of their members, hyperbolically: Vigna 2015), "top_k_kendall" (all but the ``k`` highest of each side
            are taken as equal, then τ-b), "pearson", or "spearman_dense": the 1 − 6Σd²/(n(n²−1)) on dense ranks of
            the code published with Abnar & Zuidema (2020), wrong wherever scores are equal, and here only to explain
            figures that were computed with it.
        special_tokens: False leaves out [CLS], </s> and their like; one side must then be a :class:`Relevance`, which
            knows its tokens.
        layer: one layer of ``scores`` by the model's own number; None for all.
        position: one output position of ``scores``.
        k: for "top_k_kendall".

    >>> correlate([0.1, 0.2, 0.7], [1, 2, 3])
    Correlation(spearman, n=3: 1.000)
    >>> correlate([0.5, 0.5, 0.5], [1, 2, 3]).nan
    1
    """
    _find(method)
    truths(special_tokens=special_tokens)
    rows, layers = _rows(scores, layer, position)
    ref = _one_row(reference)
    if rows.shape[-1] != len(ref):
        raise ShapeError(
            f"scores have {rows.shape[-1]} positions, the reference {len(ref)}: both must score the same inputs. "
            "Use words() or drop_special() on both or on neither."
        )
    keep = present(rows, ref)
    if not special_tokens:
        keep &= ~_special(scores, reference)
    rows, ref = rows[:, keep], ref[keep]
    values = coefficients(rows, ref, method, k)
    return Correlation(values, layers, method, int(keep.sum()), tie_shares(rows), tie_share(ref))


def present(rows: Vector, reference: Vector) -> npt.NDArray[np.bool_]:
    """``[positions]``: which of them both sides score; NaN is a missing score, and an infinite one is an error."""
    for name, values in (("The scores have", rows), ("The reference has", reference)):
        if np.isinf(values).any():
            at = int(np.argwhere(np.isinf(values))[0][-1])
            raise WeightsError(
                f"{name} an infinite value at position {at}, which has no place in a ranking of finite ones: "
                "a model or a division overflowed. Use finite scores, or NaN where there is none."
            )
    return np.asarray(~np.isnan(rows).any(0) & ~np.isnan(reference))


def coefficients(rows: Vector, reference: Vector, method: str = "spearman", k: int = 5) -> Vector:
    """``[rows, positions]`` against ``[positions]`` → ``[rows]``; NaN where one side is constant or shorter than 2.

    >>> coefficients(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), np.array([1.0, 2.0, 3.0]), "kendall")
    array([ 1., -1.])
    """
    compute = _find(method)
    if method in _TIES_COUNT:
        dull = constant_rows(rows) | is_constant(reference)
    else:
        dull = np.full(len(rows), rows.shape[1] < 2)
    out = np.full(len(rows), np.nan)
    if not dull.all():
        out[~dull] = compute(rows[~dull], reference, k)
    return out


def kendall_p_values(rows: Vector, reference: Vector) -> Vector:
    """``[rows, positions]`` against ``[positions]`` → ``[rows]``: scipy's p-value of Kendall's τ-b; NaN where no τ is.

    >>> kendall_p_values(np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]), np.arange(5.0)).round(3)
    array([0.017])
    """
    from scipy.stats import kendalltau

    dull = constant_rows(rows) | is_constant(reference)
    pairs = zip(rows, dull, strict=True)
    return np.array([np.nan if flat else kendalltau(row, reference).pvalue for row, flat in pairs], np.float64)


def tie_share(scores: Vector) -> float:
    """The share of pairs of positions with equal scores; 0 for fewer than two positions.

    >>> round(tie_share(np.array([1.0, 1.0, 2.0])), 3)
    0.333
    """
    return float(tie_shares(scores[None])[0])


def tie_shares(rows: Vector) -> Vector:
    """``[rows, positions]`` → ``[rows]``: the share of pairs of positions with equal scores."""
    from scipy.stats import rankdata

    n = rows.shape[1]
    ordered = np.sort(rows, axis=1)
    if not (ordered[:, 1:] == ordered[:, :-1]).any():  # most scores have no ties, and to rank takes ten times as long
        return np.zeros(len(rows))
    # A score that c positions share has lowest and highest ranks c − 1 apart at each of them: c(c − 1) in all.
    spread = rankdata(rows, "max", axis=1) - rankdata(rows, "min", axis=1)
    return np.asarray(spread.sum(1) / (n * (n - 1)), np.float64)


def is_constant(scores: Vector) -> bool:
    """True if the scores rank nothing: fewer than two, or equal up to rounding."""
    return bool(constant_rows(scores[None])[0])


def constant_rows(rows: Vector) -> npt.NDArray[np.bool_]:
    """``[rows, positions]`` → ``[rows]``: which of them rank nothing."""
    if rows.shape[1] < 2:
        return np.ones(len(rows), bool)
    return np.asarray(np.ptp(rows, axis=1) <= _ROUNDING * np.abs(rows).max(axis=1))


def _find(method: str) -> Callable[[Vector, Vector, int], Any]:
    if word(method, "method") not in METHODS:
        raise SelectionError(f"method={method!r} is not a correlation. Use one of: {', '.join(METHODS)}.")
    return METHODS[method]


def _spearman(rows: Vector, ref: Vector, k: int) -> Any:
    from scipy.stats import rankdata

    return _pearson(rankdata(rows, axis=1), rankdata(ref), k)


def _pearson(rows: Vector, ref: Vector, k: int) -> Any:
    # One product for all layers: scipy's pearsonr takes a millisecond per pair, most of it for the p-value.
    x, y = rows - rows.mean(1, keepdims=True), ref - ref.mean()
    x, y = x / np.abs(x).max(1, keepdims=True), y / np.abs(y).max()
    return np.clip(x @ y / np.sqrt((x * x).sum(1) * (y @ y)), -1, 1)


def _kendall(rows: Vector, ref: Vector, k: int) -> Any:
    if len(ref) > _ALL_PAIRS:
        from scipy.stats import kendalltau

        # Only its p-value, which is not used, depends on the way; the exact one is slow.
        return [_quietly(kendalltau, row, ref, method="asymptotic") for row in rows]
    # All layers at once, pair by pair: scipy's half a millisecond per row was the third largest cost of a comparison.
    i, j = np.triu_indices(len(ref), 1)
    signs, own = np.sign(rows[:, i] - rows[:, j]), np.sign(ref[i] - ref[j])
    return signs @ own / np.sqrt((signs * signs).sum(1) * (own @ own))


def _weighted_kendall(rows: Vector, ref: Vector, k: int) -> Any:
    from scipy.stats import weightedtau

    return [_quietly(weightedtau, row, ref) for row in rows]


def _top_k_kendall(rows: Vector, ref: Vector, k: int) -> Any:
    k = at_least(k, 1, "k", ": top_k_kendall compares the k highest scores")
    return _kendall(np.array([_floor(row, k) for row in rows]), _floor(ref, k), k)


def _floor(scores: Vector, k: int) -> Vector:
    """All scores below the ``k``-th highest made equal; those equal to it stay in."""
    if k >= len(scores):
        return scores
    least = np.partition(scores, -k)[-k]
    return np.where(scores >= least, scores, scores.min())


def _spearman_dense(rows: Vector, ref: Vector, k: int) -> Any:
    n = len(ref)
    dense = np.unique(ref, return_inverse=True)[1]
    ranks = np.array([np.unique(row, return_inverse=True)[1] for row in rows])
    return 1 - 6 * ((ranks - dense) ** 2).sum(1) / (n * (n * n - 1))


def _quietly(function: Callable[..., Any], a: Vector, b: Vector, **options: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of nearly constant input
        return float(function(a, b, **options).statistic)


METHODS: dict[str, Callable[[Vector, Vector, int], Any]] = {
    "spearman": _spearman,
    "kendall": _kendall,
    "weighted_kendall": _weighted_kendall,
    "top_k_kendall": _top_k_kendall,
    "pearson": _pearson,
    "spearman_dense": _spearman_dense,
}
# All but the legacy formula, which gives a number for constant scores too: that is its defect.
_TIES_COUNT = tuple(name for name in METHODS if name != "spearman_dense")


def _rows(scores: Any, layer: int | None, position: int | str | None) -> tuple[Vector, tuple[int | str, ...]]:
    """``[layers, keys]`` and the layer numbers."""
    if isinstance(scores, Relevance):
        array = scores.scores
        if array.ndim == 3:
            if position is None:
                raise SelectionError(
                    f"The scores are of {array.shape[1]} output positions, and one row is compared with the reference. "
                    "Choose it:  correlate(scores, reference, position='cls')"
                )
            array = array[:, pick_position(position, scores.rows)]
        layers = scores.layers
    else:
        array = _numbers(scores, "scores")
        array = array[None] if array.ndim == 1 else array
        layers = tuple(range(len(array))) if len(array) > 1 else ("input",)
    if layer is not None:
        i = pick_layer(layer, layers)
        array, layers = array[i : i + 1], layers[i : i + 1]
    return np.asarray(array, np.float64), tuple(layers)


def _one_row(reference: Any) -> Vector:
    array = reference.scores if isinstance(reference, Relevance) else _numbers(reference, "the reference")
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != 1:
        raise ShapeError(
            f"The reference has shape {tuple(array.shape)}, and one score for each position is needed. "
            "Choose a row:  reference.at(layer=-1, position='cls')"
        )
    return np.asarray(array[0], np.float64)


def _numbers(values: Any, name: str) -> npt.NDArray[Any]:
    if hasattr(values, "detach"):
        values = to_numpy(values, name)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ShapeError(
            f"{name} has rows of different length: give numbers [positions] or [layers, positions]."
        ) from None
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or 0 in array.shape:
        raise ShapeError(
            f"{name} of type {type(values).__name__} ({array.dtype}, {array.ndim} axes) cannot be compared: "
            "give a Relevance, or numbers [positions] or [layers, positions]."
        )
    return array


def _special(scores: Any, reference: Any) -> npt.NDArray[np.bool_]:
    known: Sequence[Relevance] = [x for x in (scores, reference) if isinstance(x, Relevance)]
    if not known:
        raise SelectionError(
            "special_tokens=False, but plain numbers do not say which positions are special: give a Relevance."
        )
    marked: npt.NDArray[np.bool_] = np.array([x.tokens.special for x in known], bool)
    return np.asarray(marked.any(axis=0))
