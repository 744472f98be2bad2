"""The flow into a word: one sink that is joined to all of its pieces.

The maximum flows into the pieces of a word do not add up, as they may use the same edges above. What can reach the
word is one maximum flow into all pieces together: into a sink to which each of them is joined by an edge without a
limit. The pieces are inputs, which nothing else leaves, so that sink and pieces are one node whose edges are those of
the pieces, added up. The network with such nodes in place of the inputs is a network like any other, and the engine
solves it as exactly: in integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnflow.errors import SelectionError, ShapeError
from attnflow.relevance import Relevance
from attnflow.scoring.flow.integers import Capacities, integers
from attnflow.scoring.flow.solver import solve
from attnflow.scoring.network import F64, Network, network
from attnflow.scoring.source import reduced
from attnflow.tokens import Grouping


def joined_flows(
    stack: Any, groups: Sequence[Sequence[int]], tops: Sequence[int], rows: Sequence[int], threads: int | None = None
) -> F64:
    """Maximum flows into groups of inputs: ``[tops, rows, groups]``.

    ``out[a, b, g]`` is the flow from node ``rows[b]`` at height ``tops[a]`` into all inputs of ``groups[g]`` together
    (Abnar & Zuidema 2020, §3, with one sink for the group). Groups share no input.

    >>> half = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]
    >>> solve([half, half], [2], [0]).scores.tolist()
    [[[0.5, 1.0, 0.5]]]
    >>> joined_flows([half, half], [[0], [1, 2]], [2], [0]).tolist()
    [[[0.5, 1.0]]]
    """
    merged = _merged(integers(stack, spare=math.ceil(math.log2(max(map(len, groups))))), groups)
    return solve(merged, tops, rows, threads=threads).scores[..., : len(groups)]


def _merged(caps: Capacities, groups: Sequence[Sequence[int]]) -> Capacities:
    """The network whose input *g* is group *g*; inputs of no group have no edges.

    The number of a group is at most that of its first input, so that a causal network stays causal.
    """
    cap = caps.cap.copy()
    cap[0] = 0
    for g, members in enumerate(groups):
        cap[0, :, g] = caps.cap[0][:, list(members)].sum(-1)
    return caps.replaced(cap)


def word_scores(r: Relevance, group: Grouping) -> F64:
    """The scores of the words that ``group`` makes of the tokens of ``r``, a result of flow: ``[..., words]``.

    Words of one piece keep their score. Rows that were rescaled are rescaled by words.
    """
    if r.attention is None:
        raise SelectionError(
            f"The {len(r.tokens)} tokens of this {r.method} make {len(group.members)} words, and flows into the pieces "
            "of a word do not add up: the flow of a word is computed from the attention, which this result does not "
            "hold (files leave it out). Take the words first:  flow(model, tokenizer, text).words().save(path)"
        )
    net = network(reduced(r.attention, r.heads), r.residual, r.start_layer or 0)
    columns = _places(r, net)
    plain = not r.rescaled
    # Rescaled rows are no flows: those of all words are computed, and rescaled anew.
    asked = [g for g, members in enumerate(group.members) if len(members) > 1 or not plain]
    groups = [[columns[j] for j in group.members[g]] for g in asked]
    tops = [net.tops[net.layers.index(int(layer))] for layer in r.layers]
    found = joined_flows(net.stack(), groups, tops, _rows(r, net))
    found = found[:, 0] if r.scores.ndim == 2 else found
    if not plain:
        return _rescaled(found, r, net, groups)
    scores: F64 = np.array(r.scores[..., [members[0] for members in group.members]], np.float64)
    scores[..., asked] = found
    return scores


def _rescaled(scores: F64, r: Relevance, net: Network, groups: Sequence[Sequence[int]]) -> F64:
    from attnflow.scoring.flow.flow import by_receptive_field, normalized

    if "receptive_field" in r.joins:
        scores = by_receptive_field(scores, net, groups)
    return normalized(scores) if "normalize" in r.joins else scores


def _places(r: Relevance, net: Network) -> list[int]:
    """The input of each column: all of them, or all that are not special."""
    if tuple(r.tokens) == tuple(net.tokens[: len(r.tokens)]):
        return list(range(len(r.tokens)))
    kept = [j for j, special in enumerate(net.tokens.special) if not special]
    if tuple(r.tokens) == tuple(net.tokens[j] for j in kept):
        return kept
    raise ShapeError(
        f"This {r.method} scores {len(r.tokens)} inputs ({' '.join(r.tokens[:6])} …), and its attention is over "
        f"{len(net.tokens)} ({' '.join(net.tokens[:6])} …), so that the flow of its words cannot be computed."
    )


def _rows(r: Relevance, net: Network) -> list[int]:
    """The nodes whose flows the rows of ``r`` are."""
    if r.scores.ndim == 3:
        numbers = range(len(net.rows)) if r.kept_rows is None else r.kept_rows
        if len(numbers) == len(r.rows):
            return [net.rows[p] for p in numbers]
    elif r.position is not None:
        return [net.rows[r.position]]
    raise ShapeError(
        f"This {r.method} has {len(r.rows) or 1} rows and does not say which of the {len(net.rows)} outputs they are, "
        "so that the flow of its words cannot be computed. Take the words first:  relevance.words().at(position=…)"
    )
