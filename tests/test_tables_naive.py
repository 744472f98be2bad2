"""Tables 1 and 2 by code that shares nothing with the package but the weights and the vocabulary, in float64.

The token ids, the forward pass, rollout, the flow network, blank-out, the gradient and the rank correlations are
written out here from their definitions; igraph solves the flows. Twenty sentences of each set are compared.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import igraph
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import rankdata

from attnflow.models import shipped
from attnflow.probes import verb_number

HEADS, LAYERS, SCALE = 8, 6, 2.0**45
UNK, CLS, EOS = 1, 2, 3
LABELS = {"singular": 0, "plural": 1}
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def weights():
    return {name: value.double() for name, value in load_file(shipped.FOLDER / "model.safetensors").items()}


@pytest.fixture(scope="module")
def vocabulary():
    """(the id of every word, the tags of parts of speech, which alone keep their capitals)."""
    saved = json.loads((shipped.FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    return saved["model"]["vocab"], {entry["content"] for entry in saved["added_tokens"]}


@pytest.fixture
def tables(monkeypatch):
    """The benchmark that makes the tables."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("tables")
    for name in ("tables", "tables_page", "report"):
        sys.modules.pop(name, None)


def ids_of(vocabulary, prefix):
    """The words between blanks, where a mark at the end of a longer word is a word of its own, within CLS and EOS."""
    known, tags = vocabulary
    split = [(word[:-1], word[-1]) if word[-1] in ".,;:!?" else (word,) for word in prefix.split()]
    words = [part for parts in split for part in parts if part]
    return [CLS, *(known.get(word if word in tags else word.lower(), UNK) for word in words), EOS]


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


def dense(a, b):
    """Spearman's formula for ranks without ties, on ranks in which equal scores take one place together."""
    n, apart = len(a), rankdata(np.round(a, 10), "dense") - rankdata(b, "dense")
    return 1 - 6 * (apart**2).sum() / (n * (n * n - 1))


def naive_references(w, ids, right):
    """Every reference of the tables, ``[tokens]`` each."""
    words = w["wte.weight"][torch.tensor(ids)].clone().requires_grad_()
    (slopes,) = torch.autograd.grad(forward(w, words)[0][right], words)
    with torch.no_grad():
        changed = [ids, *([*ids[:j], UNK, *ids[j + 1 :]] for j in range(len(ids)))]
        base, *left = (float(forward(w, w["wte.weight"][torch.tensor(i)])[0].softmax(-1)[right]) for i in changed)
        sizes = {"abs_sum": slopes.abs().sum(-1), "l2": slopes.pow(2).sum(-1).sqrt(),
                 "product": (slopes * words).sum(-1).abs()}  # fmt: skip
    return {"unk": np.abs(np.array(left) - base), **{name: size.numpy() for name, size in sizes.items()}}


def naive_methods(w, ids):
    """The row of CLS by every method, at every layer."""
    with torch.no_grad():
        raw = [a.mean(0).numpy() for a in forward(w, w["wte.weight"][torch.tensor(ids)])[1]]
    steps = [0.5 * a + 0.5 * np.eye(len(ids)) for a in raw]
    rolled, rollout, flow = np.eye(len(ids)), [], []
    for depth, step in enumerate(steps, 1):
        rolled = step @ rolled
        rollout.append(rolled[0])
        flow.append(flow_of_cls(steps[:depth]))
    return {"raw": [a[0] for a in raw], "rollout": rollout, "flow": flow}


def naive_tables(w, ids, right, variants):
    """``{(variant, method): [layers]}`` of one sentence."""
    references, methods = naive_references(w, ids, right), naive_methods(w, ids)
    found = {}
    for variant in variants:
        kept = slice(None) if variant.special else slice(1, -1)
        coefficient = {"spearman": spearman, "spearman_dense": dense}[variant.correlation]
        one = references[variant.reference][kept]
        for method, rows in methods.items():
            found[variant, method] = [coefficient(row[kept], one) for row in rows]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["grammar", "valid", "test"])
def test_twenty_sentences_of_tables_1_and_2_in_float64(weights, vocabulary, tables, request, part):
    """All that the tables show of every model, on the package's own sentences and on those that the tables use."""
    source = None if part == "grammar" else request.getfixturevalue("data") / "verb-number"
    texts = [(example.prefix, LABELS[example.label]) for example in tables.sentences(source, part, 20)]
    # The row "rounding error" ranks what rounding left of sums that are zero: no two programs agree about it.
    variants = tuple(v for v in tables.MAIN if v.reference != "paper")
    model, tokenizer = verb_number.load()
    found = tables.correlations(model.double(), tokenizer, texts, variants)
    for i, (prefix, right) in enumerate(texts):
        naive = naive_tables(weights, ids_of(vocabulary, prefix), right, variants)
        assert len(naive) == 8 * 3
        for key, values in naive.items():
            assert len(values) == LAYERS
            np.testing.assert_allclose(found[key][i], values, atol=1e-9, rtol=0, err_msg=f"{key} of {prefix!r}")


@pytest.mark.parametrize(
    ("prefix", "ids"),
    [
        ("The key", ["<cls>", "the", "key", "<eos>"]),
        ("many NNS , mr. NN", ["<cls>", "many", "NNS", ",", "mr", ".", "NN", "<eos>"]),
        ("here qwertyuiop", ["<cls>", "here", "<unk>", "<eos>"]),
    ],
)
def test_naive_ids_are_those_of_the_tokenizer(vocabulary, prefix, ids):
    known, _ = vocabulary
    assert ids_of(vocabulary, prefix) == [known[word] for word in ids]
    assert ids_of(vocabulary, prefix) == verb_number.load()[1](prefix)["input_ids"]
