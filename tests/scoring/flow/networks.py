"""Networks of many kinds, and slow solvers that share no code with the engine."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def adjust(w):
    a = w + np.eye(w.shape[-1])
    return a / a.sum(-1, keepdims=True)


def rescale(x):
    total = x.sum(-1, keepdims=True)
    return x / np.where(total > 0, total, 1)


def softmax_network(r, steps, n, temperature=3.0, causal=False, local=0.0, sink=0.0, heads=1):
    """Random attention of ``heads`` heads: logits of standard deviation ``temperature``, residual added."""
    i = np.arange(n)
    total = np.zeros((steps, n, n))
    for _ in range(heads):
        logits = r.standard_normal((steps, n, n)) * temperature - local * np.abs(i[:, None] - i)
        logits[..., 0] += sink
        total += softmax(np.where(i[:, None] >= i, logits, -np.inf) if causal else logits)
    return adjust(total / heads)


def instances(r, steps, n) -> Iterator[tuple[str, np.ndarray]]:
    """One network of every family."""
    logits = r.standard_normal((steps, n, n))
    one_hot = np.eye(n)[r.integers(0, n, (steps, n))]
    for temperature in (0.5, 2, 8, 40):
        yield f"softmax {temperature}", adjust(softmax(logits * temperature))
    yield "uniform", adjust(np.full((steps, n, n), 1 / n))
    yield "one-hot", adjust(one_hot)
    yield "one-hot, no residual", one_hot
    yield "permutation", adjust(np.stack([np.eye(n)[r.permutation(n)] for _ in range(steps)]))
    yield "shift", adjust(np.eye(n)[np.maximum(np.arange(n) - 1, 0)][None].repeat(steps, 0))
    yield "causal", adjust(rescale(np.tril(softmax(logits * 3))))
    yield "causal, no residual", rescale(np.tril(softmax(logits * 3)))
    yield "no residual", softmax(logits * 3)
    yield "local with a sink", softmax_network(r, steps, n, 2.0, local=0.3, sink=3.0)
    sparse = softmax(logits * 2)
    sparse[sparse < np.quantile(sparse, 0.6)] = 0
    yield "sparse", adjust(rescale(sparse))
    yield "sparse, no residual", rescale(sparse)
    padded = adjust(softmax(logits))
    padded[:, :, -1] = padded[:, -1] = 0
    yield "padding", padded
    holes = softmax(logits * 3)
    holes[r.random((steps, n)) < 0.3] = 0
    yield "zero rows", holes
    tiny = softmax(logits)
    tiny[r.random(tiny.shape) < 0.4] = 1e-12
    yield "1e-12 capacities", tiny / 1.5
    yield "log-uniform", rescale(10.0 ** r.uniform(-17, 0, (steps, n, n)))
    yield "the same layer again", adjust(softmax(logits[:1] * 2)).repeat(steps, 0)
    yield "ties", adjust(softmax(np.round(logits)))
    yield (
        "dyadic, row sums below one",
        (d := r.integers(0, 4, (steps, n, n)) / 16) / np.maximum(1, d.sum(-1, keepdims=True)),
    )
    twins = softmax(logits * 2)
    twins[:, 1 % n], twins[:, :, 1 % n] = twins[:, 0], twins[:, :, 0]
    yield "twin tokens", adjust(rescale(twins))
    sinks = softmax(logits)
    sinks[..., 0] += 5
    yield "attention sink", adjust(rescale(sinks))
    yield "row sums 0.1 to 1.5", adjust(softmax(logits * 3)) * r.uniform(0.1, 1.5, (steps, n, 1))
    yield "row sums above one", r.random((steps, n, n)) * 2


def edges(stack):
    """(from, to, capacity) of every edge; node (h, i) has the number h·n + i."""
    _, n, _ = stack.shape
    s, i, k = np.nonzero(stack)
    return (s + 1) * n + i, s * n + k, stack[s, i, k]


def by_fractions(stack, height, source, sink):
    """networkx on exact rational capacities."""
    import networkx as nx

    n = stack.shape[1]
    g = nx.DiGraph()
    g.add_nodes_from([height * n + source, sink])
    for a, b, c in zip(*edges(stack), strict=True):
        g.add_edge(int(a), int(b), capacity=Fraction(float(c)))
    return nx.maximum_flow_value(g, height * n + source, sink)


def by_igraph(stack):
    """A function (height, source, sink) → flow by igraph's push-relabel on floats."""
    import igraph

    steps, n, _ = stack.shape
    a, b, c = edges(stack)
    g = igraph.Graph(n=(steps + 1) * n, edges=np.stack([a, b], 1), directed=True)
    capacity = c.tolist()
    return lambda height, source, sink: g.maxflow_value(height * n + source, sink, capacity)
