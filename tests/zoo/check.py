"""What must hold of a capture from any model: right numbers, a model that runs as before, no trace left.

The reference is transformers' own `output_attentions=True` on a copy of the model that is switched to eager. Not every
tensor that it gives is attention (some models return scores or states there), so only probabilities are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from attnflow import capture
from attnflow.attention import Attention
from tests.zoo.build import Tiny, floats, run
from tests.zoo.witness import proved

TOLERANCE = 2e-5

GATES = {
    "mobilevitv2": "one weight for each patch, without queries",
    "patchtsmixer": "a gate over features",
    "swiftformer": "a softmax over one number",
}
"""Types whose only softmax is not between positions: a capture must refuse them."""


@dataclass
class Report:
    """What one capture gave.

    Attributes:
        route: how the weights were obtained.
        blocks: for each block its number of layers.
        layers: for each block its layer numbers.
        sums: smallest and largest row sum, without the column of a sink.
        compared: how many tensors of the reference could be compared.
        wrong: those of them that no captured layer equals, by name.
        unchanged: the model's output is the same, bit for bit, before and after.
        owners: model types of the parts of the model whose attention was seen.
        notes: what capture said.
        proved: how many layers are what the model multiplies its values with (see :mod:`tests.zoo.witness`).
        layer_count: how many layers there are.
    """

    route: str
    blocks: dict[str, int]
    layers: dict[str, list[int]]
    sums: tuple[float, float]
    compared: int = 0
    wrong: list[str] = field(default_factory=list)
    unchanged: bool = True
    owners: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    proved: int = 0
    layer_count: int = 0


def check(tiny: Tiny) -> Report:
    """Capture from `tiny` and compare; errors of capture pass through, after the model was checked for traces."""
    before, traces = _numbers(run(tiny.model, tiny.inputs)), snapshot(tiny.model)
    torch.manual_seed(0)
    try:
        taken = capture(tiny.model, inputs=copy.deepcopy(tiny.inputs), heads="all")
    finally:
        left = differences(traces, snapshot(tiny.model))
        if left:
            raise AssertionError(f"capture left traces: {left}")
    if kind := GATES.get(tiny.model.config.model_type):
        raise AssertionError(f"{kind} was taken for attention between positions")
    attention, notes = _first(taken), []
    eager = in_eager(tiny)
    expected = reference(eager)
    wrong = mismatches(attention, expected)
    if wrong and not _close(before, _numbers(run(eager.model, eager.inputs))):
        notes = ["in eager this model computes something else, so it was compared as loaded in eager"]
        torch.manual_seed(0)
        wrong = mismatches(_first(capture(eager.model, inputs=copy.deepcopy(tiny.inputs), heads="all")), expected)
    shown, every = _proved(attention, eager, tiny)
    return Report(
        route=attention.route,
        blocks={name: len(b.weights) for name, b in attention.blocks.items()},
        layers={name: list(b.layers) for name, b in attention.blocks.items()},
        sums=row_sums(attention),
        compared=len(expected),
        wrong=wrong,
        unchanged=_same(before, _numbers(run(tiny.model, tiny.inputs))),
        owners=owners(tiny.model, attention),
        notes=[*attention.notes, *notes],
        proved=shown,
        layer_count=every,
    )


def _proved(attention: Attention, eager: Tiny, loaded: Tiny) -> tuple[int, int]:
    """By the eager copy; by the fused kernel where the model knows no eager attention."""
    try:
        return proved(attention, eager)
    except KeyError as error:
        if error.args != ("eager",):
            raise
        return proved(attention, loaded)


def _first(taken: Attention | list[Attention]) -> Attention:
    return taken[0] if isinstance(taken, list) else taken


def in_eager(tiny: Tiny) -> Tiny:
    """A copy of the model, switched to eager."""
    model = copy.deepcopy(tiny.model)
    for config in _configs(model):
        config._attn_implementation_internal = "eager"
    return Tiny(model, tiny.inputs)


def reference(eager: Tiny) -> dict[str, Tensor]:
    """The probabilities that `output_attentions=True` gives, by field and number."""
    try:
        output = run(eager.model, eager.inputs, output_attentions=True)
    except Exception:  # no such argument, or one that the model itself does not stand
        return {}
    model = eager.model
    found = {name: _dense(t, model.config) for name, t in _attentions(output)}
    found = {name: t for name, t in found.items() if not _in_parts(t, model.config)}
    sampled = any("deformable" in type(m).__name__.lower() for m in model.modules())
    return {name: t for name, t in found.items() if _probabilities(t) and not (sampled and _points(t))}


def _dense(weights: Tensor, config: PreTrainedConfig) -> Tensor:
    """Bands as matrices: column c of row i of a band is position i + c - half, where there is one."""
    window = getattr(config, "attention_window", None)
    if window is None or weights.ndim != 4 or weights.shape[-1] not in {w + 1 for w in window}:
        return weights
    n, half = weights.shape[-2], weights.shape[-1] // 2
    dense = weights.new_zeros(*weights.shape[:-1], n)
    for i in range(n):
        low, high = max(0, i - half), min(n, i + half + 1)
        dense[..., i, low:high] = weights[..., i, low - i + half : high - i + half]
    return dense


def _in_parts(weights: Tensor, config: PreTrainedConfig) -> bool:
    """Whether these are only a part: CANINE returns one chunk, BigBird loses what a block is given twice."""
    if config.model_type == "canine":
        return weights.shape[-1] == config.local_transformer_stride
    blocks = getattr(config, "attention_type", "") == "block_sparse"
    return blocks and weights.shape[-1] == weights.shape[-2] and bool(weights.sum(-1).min() < 0.99)


def _points(weights: Tensor) -> bool:
    """Whether these are [batch, queries, heads, points], the weights of sampled points: not between positions."""
    return weights.shape[-2] <= 16 and weights.shape[1] > weights.shape[-2]


def _attentions(output: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    for key, value in output.items() if hasattr(output, "items") else ():
        if "attention" in key and "mask" not in key:
            yield from _tensors(value, path + key)
        elif hasattr(value, "items"):
            yield from _attentions(value, f"{path}{key}.")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for i, inner in enumerate(value):
            yield from _tensors(inner, f"{name}[{i}]")


def _probabilities(weights: Tensor) -> bool:
    if weights.ndim != 4 or not weights.is_floating_point() or 0 in weights.shape:
        return False
    return bool(weights.min() >= 0) and bool(weights.sum(-1).max() < 1.001) and bool(weights.sum(-1).max() > 0.1)


def mismatches(attention: Attention, expected: dict[str, Tensor]) -> list[str]:
    """Names in `expected` that no captured layer equals; each layer may stand for one of them only."""
    taken = [part for block in attention.blocks.values() for w in block.weights for part in _parts(attention, w)]
    seen: list[Tensor] = []
    wrong = []
    for name, weights in expected.items():
        if any(torch.equal(weights, other) for other in seen):
            continue  # the model names one layer twice
        seen.append(weights)
        at = next((i for i, w in enumerate(taken) if equal(w, weights)), None)
        if at is None:
            wrong.append(name)
        else:
            del taken[at]
    return wrong


def _parts(attention: Attention, weights: np.ndarray) -> list[np.ndarray]:
    """A layer, in two where capture says that one softmax goes over two sequences: the model returns them apart."""
    rows, columns = weights.shape[-2:]
    if columns > rows and any("one softmax over" in note for note in attention.notes):
        return [weights[..., :rows], weights[..., rows:]]
    return [weights]


def equal(taken: np.ndarray, weights: Tensor) -> bool:
    """Whether captured [heads, queries, keys] are those of the one example in [parts, heads, queries, keys].

    There is one part, or one for each window or tile; windows do not see each other, and in cross-attention the two
    images of a pair see only each other.
    """
    parts, heads, rows, columns = weights.shape
    if heads > 1 and torch.equal(weights, weights[:, :1].expand_as(weights)) and len(taken) == heads:
        taken = np.broadcast_to(taken.mean(0), taken.shape)  # the model returns the mean in place of each head
    if taken.shape[-1] == parts * columns + 1:
        taken = taken[..., :-1]
    if parts == 1 and taken.shape[-2] > rows and taken.shape[-1] > columns:
        taken = taken[..., -rows:, -columns:]  # the model returns its text's part only
    if taken.shape != (heads, parts * rows, parts * columns):
        return False
    orders = [list(range(parts)), [1, 0]] if parts == 2 else [list(range(parts))]
    return any(_placed(taken, weights.float().numpy(), order) for order in orders)


def _placed(taken: np.ndarray, weights: np.ndarray, order: list[int]) -> bool:
    """Whether the keys of part *i* stand in the columns of part ``order[i]``, and nothing stands elsewhere."""
    rows, columns = weights.shape[-2:]
    shown = 0
    for i, (part, at) in enumerate(zip(weights, order, strict=True)):
        own = taken[:, i * rows : (i + 1) * rows, at * columns : (at + 1) * columns]
        if not np.allclose(own, part, atol=TOLERANCE, rtol=1e-3):
            return False
        shown += np.count_nonzero(own)
    return shown == np.count_nonzero(taken)


def row_sums(attention: Attention) -> tuple[float, float]:
    """Smallest and largest row sum; what a sink took is not counted."""
    sums = [w[..., : -1 if b.sink else None].sum(-1) for b in attention.blocks.values() for w in b.weights]
    return float(min(s.min() for s in sums)), float(max(s.max() for s in sums))


def owners(model: PreTrainedModel, attention: Attention) -> list[str]:
    """Model types of the modules that attended, each by the nearest configuration above it."""
    found = set()
    names = {m for b in attention.blocks.values() for m in b.modules}
    for path in names & {name for name, _ in model.named_modules()} or {""}:
        while path and not isinstance(getattr(model.get_submodule(path), "config", None), PreTrainedConfig):
            path = path.rpartition(".")[0]
        found.add(model.get_submodule(path).config.model_type)
    return sorted(found)


def _numbers(output: Any) -> list[Tensor]:
    return [t.detach().clone() for t in floats(output)]


def _same(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)
    )


def _close(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(
        torch.allclose(a.nan_to_num(), b.nan_to_num(), atol=1e-3, rtol=1e-3) for a, b in zip(before, after, strict=True)
    )


def _configs(model: PreTrainedModel) -> list[PreTrainedConfig]:
    """Every configuration object in the model, each once."""
    found: dict[int, PreTrainedConfig] = {}
    todo = [getattr(m, "config", None) for m in model.modules()]
    while todo:
        config = todo.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            todo += [getattr(config, k, None) for k in getattr(type(config), "sub_configs", None) or ()]
    return list(found.values())


def snapshot(model: PreTrainedModel) -> dict[str, Any]:
    """All that a capture could leave changed."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    generation = getattr(model, "generation_config", None)
    return {
        "implementation": [c._attn_implementation_internal for c in _configs(model)],
        "config": [c.to_dict() for c in _configs(model)],
        "generation config": generation.to_dict() if generation is not None else None,
        "hooks": [[len(getattr(m, h)) for h in hooks] for m in model.modules()],
        "training flag": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "parameters": [(p.data_ptr(), p._version) for p in model.parameters()],
        "interface": sorted(AttentionInterface._global_mapping),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what changed."""
    return [name for name in before if repr(before[name]) != repr(after[name])]


def parts(model: PreTrainedModel) -> list[str]:
    """The model types of all configurations in a model."""
    return sorted({c.model_type for c in _configs(model) if c.model_type})
