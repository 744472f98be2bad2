"""Tables 1 and 2 on twenty sentences by code that shares nothing with the package but the weights, in float64.

The forward pass, rollout, the flow network, blank-out, the gradient and the rank correlation are written out here from
their definitions; igraph solves the flows.
"""

from __future__ import annotations

import math

import igraph
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import rankdata

from attnflow.models import shipped
from attnflow.probes import grammar, verb_number

HEADS, LAYERS, SCALE = 8, 6, 2.0**45
LABELS = {"singular": 0, "plural": 1}


@pytest.fixture(scope="module")
def weights():
    return {name: value.double() for name, value in load_file(shipped.FOLDER / "model.safetensors").items()}


def norm(w, name, x):
    apart = x - x.mean(-1, keepdim=True)
    return apart / (apart.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(w, name, x):
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def forward(w, words):
    """(logits, attention of each layer ``[heads, n, n]``) of word embeddings ``[n, 128]``."""
    x, seen = words + w["wpe.weight"][: len(words)], []
    for i in range(LAYERS):
        q, k, v = linear(w, f"h.{i}.attn.c_attn", norm(w, f"h.{i}.ln_1", x)).split(128, -1)
        q, k, v = (t.view(len(words), HEADS, 16).transpose(0, 1) for t in (q, k, v))
        a = (q @ k.transpose(1, 2) / 4).softmax(-1)
        seen.append(a)
        x = x + linear(w, f"h.{i}.attn.c_proj", (a @ v).transpose(0, 1).reshape(len(words), 128))
        inner = linear(w, f"h.{i}.mlp.c_fc", norm(w, f"h.{i}.ln_2", x))
        gelu = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(w, f"h.{i}.mlp.c_proj", gelu)
    return norm(w, "ln_f", x[0]) @ w["score.weight"].T + w["score.bias"], seen


def flow_of_cls(steps):
    """Maximum flow from CLS at the top of ``steps`` to every input; integers, so that equal flows are equal."""
    n = len(steps[0])
    edges, capacities = [], []
    for depth, step in enumerate(steps):
        for i in range(n):
            for j in range(n):
                edges.append(((depth + 1) * n + i, depth * n + j))
                capacities.append(float(np.rint(step[i, j] * SCALE)))
    graph = igraph.Graph(n=(len(steps) + 1) * n, edges=edges, directed=True)
    graph.es["capacity"] = capacities
    return np.array([graph.maxflow_value(len(steps) * n, j, "capacity") for j in range(n)]) / SCALE


def spearman(a, b):
    return np.corrcoef(rankdata(np.round(a, 10)), rankdata(b))[0, 1]


def naive_tables(w, ids, right):
    """Per method and reference, the correlation at every layer."""
    words = w["wte.weight"][torch.tensor(ids)].clone().requires_grad_()
    logits, seen = forward(w, words)
    (slopes,) = torch.autograd.grad(logits[right], words)
    with torch.no_grad():
        base = logits.softmax(-1)[right]
        blanked = []
        for j in range(len(ids)):
            changed = torch.tensor([*ids[:j], 1, *ids[j + 1 :]])
            blanked.append(abs(float(forward(w, w["wte.weight"][changed])[0].softmax(-1)[right] - base)))
    references = {"blankout": np.array(blanked), "gradient": slopes.abs().sum(-1).numpy()}
    raw = [a.detach().mean(0).numpy() for a in seen]
    steps = [0.5 * a + 0.5 * np.eye(len(ids)) for a in raw]
    rolled, rollout, flow = np.eye(len(ids)), [], []
    for depth, step in enumerate(steps, 1):
        rolled = step @ rolled
        rollout.append(rolled[0])
        flow.append(flow_of_cls(steps[:depth]))
    methods = {"raw": [a[0] for a in raw], "rollout": rollout, "flow": flow}
    return {(m, r): [spearman(row, reference) for row in rows]
            for m, rows in methods.items() for r, reference in references.items()}  # fmt: skip


@pytest.mark.slow
def test_twenty_sentences_of_tables_1_and_2_in_float64(weights):
    model, tokenizer = verb_number.load()
    assert tokenizer.unk_token_id == 1
    examples = grammar.sentences(20, seed=7)
    found = verb_number.layers(model.double(), tokenizer, examples, blank="unk")
    for i, example in enumerate(examples):
        naive = naive_tables(weights, tokenizer(example.prefix)["input_ids"], LABELS[example.label])
        for key, values in naive.items():
            np.testing.assert_allclose(found.values[key][i], values, atol=1e-9, err_msg=f"{key} of {example.prefix!r}")
