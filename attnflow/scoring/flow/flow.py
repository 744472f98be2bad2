"""Attention flow: how much can pass from an output to each input, if attention weights are the widths of pipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from attnflow.attention import Attention
from attnflow.errors import SelectionError
from attnflow.heads import Heads
from attnflow.numbers import real, truths, word
from attnflow.relevance import Relevance, Report
from attnflow.scoring.flow.integers import Layers
from attnflow.scoring.flow.report import describe
from attnflow.scoring.flow.solver import WIDE, Solution, solve
from attnflow.scoring.network import F64, Network, Residual, network, residual_of
from attnflow.scoring.raw import explained_at, said
from attnflow.scoring.rollout import measured
from attnflow.scoring.source import each, ready
from attnflow.select import pick_layer, pick_position

BACKENDS = ("numba", "networkx")


@overload
def flow(source: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Relevance]: ...
@overload
def flow(source: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Relevance: ...
def flow(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    position: int | str | None = None,
    layer: int | None = None,
    residual: Residual = None,
    start_layer: int = 0,
    normalize: bool = False,
    receptive_field: bool = False,
    backend: str = "numba",
    certify: bool = False,
    tolerance: float | None = None,
    threads: int | None = None,
    heads: Heads | None = None,
    sinks: str | None = None,
    block: str | None = None,
    tokens: Sequence[str] | None = None,
    edges: str | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """Attention flow (Abnar & Zuidema 2020, section 3): maximum flow from an output down to each input.

    The nodes are the positions of the input and of every layer's output; the capacities of the edges are the
    residual-adjusted attention  Â = (1−ρ)·W + ρ·I  with rows that sum to one, as in :func:`attnflow.rollout`.
    ``scores[l, i, j]`` is how much output position *i* at layer *l* draws on input position *j*: the value of the
    maximum flow from node (l, i) to input node *j*. Rows are outputs, columns inputs; rows do not sum to one, as
    each input has a flow of its own. In an encoder-decoder model the outputs are the decoder's and the inputs both
    sequences. ``settings["report"]`` says how far the scores depend on the output at all.

    With other ``edges`` the capacities are other matrices, of any row sums; flow is exact on all of them.

    Args:
        source: a model (with ``tokenizer`` and ``text``), an :class:`Attention`, Hugging Face's tuple of
            attentions, or an array ``[L, n, n]`` or ``[L, H, n, n]``.
        layer: one layer by the model's own number (negative ones count from the top), or None for all.
        position: one output position: a number, "cls", "last", "mask", or None for all.
        residual: the residual share ρ, 0.5 by default, "none", "measured" or "add"; as for :func:`attnflow.rollout`.
        start_layer: leave out the layers below this one.
        normalize: divide each row by its sum, as the authors' code does.
        receptive_field: divide each score by the number of outputs that can see the input, and rescale the row
            (a heuristic for causal models, whose first tokens are seen by all others; not in the paper's equations).
        backend: "numba", the exact engine, or "networkx", the readable reference: a thousand times slower.
        certify: solve every pair in full and prove it by a cut of the same integer value;
            ``settings["certificate"]`` holds the cuts.
        tolerance: an interval in place of exact flows: ``scores`` are lower bounds, ``settings["upper"]`` upper
            bounds, at most this far apart. With ``layer`` and ``position`` this is for thousands of tokens. Where the
            memory does not suffice for that, ``settings["wide"]`` of the intervals are wider, and a warning says so.
        threads: how many; by default one per core.
        heads, sinks, block, tokens, edges, options: as for :func:`attnflow.raw`.

    >>> f = flow([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]])
    >>> f.scores[-1]
    array([[0.75, 0.75],
           [0.75, 0.75]])

    Two layers of three tokens: all outputs, one layer, one output, one number per input.

    >>> weights = [[[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.5, 0.0, 0.5]]] * 2
    >>> flow(weights).scores.shape, flow(weights, layer=-1).scores.shape, flow(weights, position=-1).scores.shape
    ((2, 3, 3), (1, 3, 3), (2, 3))
    >>> last = flow(weights, layer=-1, position=-1, tokens=["the", "key", "is"])
    >>> last.scores.round(3)
    array([[0.5 , 0.1 , 0.75]])
    >>> [(token, round(score, 3)) for token, score in last.top(2)]
    [('is', 0.75), ('the', 0.5)]

    Each input has a flow of its own, so a row does not sum to one unless it is asked to.

    >>> flow(weights, layer=-1, position=-1, normalize=True).scores.round(3)
    array([[0.37 , 0.074, 0.556]])

    At the first layer flow is the weight itself, here without a residual.

    >>> flow(weights, layer=0, position=1, residual="none").scores
    array([[0.1, 0.6, 0.3]])
    """
    _check(backend, certify, tolerance, normalize, receptive_field)
    source, tokenizer, text = ready(source, tokenizer, text, "flow")

    def method(attention: Attention) -> Relevance:
        net = network(attention, residual, start_layer)
        known: dict[str, Any] = {"residual": residual_of(attention, residual), "start_layer": start_layer}
        how = {"normalize": normalize, "receptive_field": receptive_field, "backend": backend}
        settings: dict[str, Any] = {**known, **how, **said(attention)}
        at = list(range(len(net.layers))) if layer is None else [pick_layer(layer, net.layers)]
        layers = tuple(net.layers[i] for i in at)
        nodes = list(net.rows)
        if position is not None:
            p = pick_position(position, net.queries)
            nodes = [net.rows[p]]
            known |= {"position": p, "position_token": net.queries[p]}
        solution, found = _solved(net, [net.tops[i] for i in at], nodes, backend, certify, tolerance, threads)
        settings |= found
        report = describe(solution, net.tokens, layers, net.labels if backend == "numba" else ())
        ways = [name for name in ("receptive_field", "normalize") if how[name]]
        known |= {"report": Report.of(report), "rescaled": bool(ways), "joins": ("flow", *ways)}
        scores = solution.scores
        if receptive_field:
            scores = by_receptive_field(scores, net)
        if normalize:
            scores = normalized(scores)
        if position is not None:
            return Relevance(scores[:, 0], net.tokens, layers, "flow", settings, attention.model, **known)
        return Relevance(scores, net.tokens, layers, "flow", settings, attention.model, net.queries, **known)

    given: dict[str, Any] = {"heads": heads, "sinks": sinks, "tokens": tokens, "block": block, "edges": edges}
    given |= {**explained_at(source, edges, position), **measured(source, residual)}
    return each(source, tokenizer, text, method, **given, **options)


def _check(
    backend: str, certify: bool, tolerance: float | None, normalize: bool = False, receptive_field: bool = False
) -> None:
    if word(backend, "backend") not in BACKENDS:
        raise SelectionError(f"backend={backend!r} is not known. Use 'numba' or 'networkx'.")
    truths(certify=certify, normalize=normalize, receptive_field=receptive_field)
    if backend == "networkx" and (certify or tolerance is not None):
        raise SelectionError("certify and tolerance belong to backend='numba', but backend='networkx' was given.")
    if tolerance is not None and certify:
        raise SelectionError("certify proves exact flows, but tolerance asks for bounds. Leave one of them out.")
    if tolerance is not None and not 0 < real(tolerance, "tolerance") < 1:
        raise SelectionError(f"tolerance={tolerance}, but it is a width of an interval: use a number in (0, 1).")


def _solved(
    net: Network,
    tops: list[int],
    nodes: list[int],
    backend: str,
    certify: bool,
    tolerance: float | None,
    threads: int | None,
) -> tuple[Solution, dict[str, Any]]:
    """The solution by the chosen way, and what it adds to the settings."""
    if backend == "networkx":
        from attnflow.scoring.flow.reference import solve_networkx

        return solve_networkx(net.stack(), tops, nodes), {}
    stack: F64 | Layers = net.stack() if len(nodes) == net.size else Layers(net)
    if certify:
        from attnflow.scoring.flow.certificate import certify as prove

        certificate = prove(stack, tops, nodes, threads)
        return certificate.solution, {"certificate": certificate}
    if tolerance is not None:
        from attnflow.scoring.flow.interval import bracket

        lower, upper, pruned = bracket(stack, tolerance, tops, nodes, threads)
        wide = int((lower.proofs == WIDE).sum())
        return lower, {"tolerance": tolerance, "upper": upper, "pruned": pruned, "wide": wide}
    return solve(stack, tops, nodes, threads=threads), {}


def normalized(scores: F64) -> F64:
    """Rows divided by their sums; rows of zeros stay.

    >>> normalized(np.array([[1.0, 3.0], [0.0, 0.0]]))
    array([[0.25, 0.75],
           [0.  , 0.  ]])
    """
    total = scores.sum(-1, keepdims=True)
    rows: F64 = np.divide(scores, total, out=np.zeros_like(scores), where=total > 0)
    return rows


def by_receptive_field(scores: F64, net: Network, groups: Sequence[Sequence[int]] | None = None) -> F64:
    """Scores divided by the share of outputs that can see the input; rows keep their sums. A heuristic.

    Abnar & Zuidema (2020, section 5) say that with a causal mask both methods lean to the first tokens, and that one
    should normalise by the receptive field, without a formula. Here an input that all outputs can see counts once, and
    one that half of them can see twice. ``groups`` are the inputs that each column stands for, where it is not one.
    """
    reach = np.eye(net.size, dtype=bool)
    for step in net.stack()[: max(net.tops)]:
        reach = (step > 0).astype(np.float64) @ reach > 0
    rows = reach[list(net.rows)]
    seen = rows.mean(0) if groups is None else np.stack([rows[:, list(g)].any(1).mean() for g in groups])
    scaled: F64 = np.divide(scores, seen, out=np.zeros_like(scores), where=seen > 0)
    kept: F64 = normalized(scaled) * scores.sum(-1, keepdims=True)
    return kept
