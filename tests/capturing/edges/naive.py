"""The parts of a layer found in another way: by comparing the numbers that go in and out of the model's modules.

Only for layers that are made as most are: attention through transformers' interface, one projection, perhaps a norm and
a factor, x + attention, perhaps a norm. Everything is written out; nothing is shared with the package.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import AttentionInterface

Entry = tuple[nn.Module, int]
"""A layer, and how often the run had been in it before."""


class NotSeen(Exception):
    """The layer is made in another way."""


@dataclass
class Event:
    kind: str  # "in", "out" or "attention"
    module: nn.Module
    x: torch.Tensor
    weights: Any = None
    values: Any = None


@dataclass
class Layer:
    """T [n, m, e]: the parts before the norm; s [n, e]: x + attention; norm: the module, if it carries the stream.

    merged: the decoder's own positions come first among the inputs, the encoder's after them.
    """

    t: torch.Tensor
    x: torch.Tensor
    s: torch.Tensor
    norm: nn.Module | None
    merged: bool = False


@torch.no_grad()
def naive(model: nn.Module, inputs: dict[str, Any], kind: str) -> list[np.ndarray]:
    """Edges of every call of attention of one example, in order: rows are output positions, columns input positions."""
    tape = _tape(model, inputs)
    calls = [i for i, e in enumerate(tape) if e.kind == "attention"]
    if not calls:
        raise NotSeen("no call through the interface")
    return [_edges(_layer(tape, i, model), kind) for i in calls]


@torch.no_grad()
def ratios(model: nn.Module, inputs: dict[str, Any]) -> list[np.ndarray]:
    """The mixing ratio of each output position, for every call."""
    tape = _tape(model, inputs)
    return [mixing(_layer(tape, i, model)) for i, e in enumerate(tape) if e.kind == "attention"]


def _edges(layer: Layer, kind: str) -> np.ndarray:
    t, y = layer.t, layer.s
    t = t.clone()
    if t.shape[0] == t.shape[1] or layer.merged:  # else cross-attention, whose residual is no column
        for i in range(len(t)):
            t[i, i] += layer.x[i]
    if layer.norm is not None:
        t, y = _through(layer.norm, layer.s, t)
    if kind == "norm":
        c = t.norm(dim=-1)
    else:
        c = (y.abs().sum(-1)[:, None] - (y[:, None] - t).abs().sum(-1)).clamp(min=0)
    return (c / c.sum(-1, keepdim=True)).numpy()


def mixing(layer: Layer) -> np.ndarray:
    t = layer.t if layer.norm is None else _through(layer.norm, layer.s, layer.t)[0]
    x = layer.x if layer.norm is None else _through(layer.norm, layer.s, layer.x[:, None])[0][:, 0]
    own = torch.stack([t[i, i] for i in range(len(t))])
    others, near = (t.sum(1) - own).norm(dim=-1), (own + x).norm(dim=-1)
    return (others / (others + near)).numpy()


def _through(norm: Any, s: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A norm with the statistics of s, on each part."""

    def run(v: torch.Tensor) -> torch.Tensor:
        return norm(v[None])[0]

    if isinstance(norm, nn.LayerNorm):
        t = t - t.mean(-1, keepdim=True)
        std = (s.var(-1, unbiased=False) + norm.eps).sqrt()
    else:
        std = (s.square().mean(-1) + getattr(norm, "variance_epsilon", getattr(norm, "eps", 1e-6))).sqrt()
    bias = run(torch.zeros_like(s[:1]))
    gain = (run(s) - bias) * std[:, None] / (s - s.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else s)
    return t / std[:, None, None] * gain.nanmedian(0).values, run(s)


@torch.no_grad()
def value_zeroing(model: nn.Module, inputs: dict[str, Any], entries: list[Entry]) -> list[np.ndarray]:
    """The whole model is run again for each call and input position; ``entries`` are those of the calls, in order.

    Calls of one module with equal queries and keys, for parts of the values, count as one.
    """
    states: dict[int, list[torch.Tensor]] = {}
    zeroed: list[int] = []
    asked: list[tuple[Any, ...]] = []
    column, seen = -1, 0

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        nonlocal seen
        if seen in zeroed:
            value = value.clone()
            value[:, :, column] = 0
        seen += 1
        asked.append((module, query, key))
        return own_eager(module)(module, query, key, value, attention_mask, *args, **kwargs)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        states.setdefault(id(module), []).append((out[0] if isinstance(out, tuple) else out).clone())

    def run() -> None:
        states.clear()
        torch.manual_seed(0)  # some models draw lots at every run
        model(**copy.deepcopy(inputs))

    handles = [layer.register_forward_hook(leave) for layer in {id(e[0]): e[0] for e in entries}.values()]
    found: list[np.ndarray] = []
    try:
        with eager_is(model, attend):
            run()
            first, calls = dict(states), list(asked)
            for call, (layer, number) in enumerate(entries):
                alike = [
                    k for k in range(len(entries)) if entries[k] == entries[call] and _alike(calls[k], calls[call])
                ]
                if call > alike[0]:
                    continue
                rows, zeroed = [], alike
                base = first[id(layer)][number]
                for j in range(calls[call][2].shape[2]):
                    seen, column = 0, j
                    asked.clear()
                    run()
                    a, b = base[0].double(), states[id(layer)][number][0].double()
                    # 1 − cos = ½·|a/|a| − b/|b||², which keeps the digits of small distances.
                    rows.append((normalize(a, dim=-1) - normalize(b, dim=-1)).square().sum(-1) / 2)
                c = torch.stack(rows, 1)
                noise = (1e3 * torch.finfo(base.dtype).eps) ** 2
                c[c.max(-1).values < noise] = torch.nan  # a row that no value changes
                found.append((c / c.sum(-1, keepdim=True)).numpy())
    finally:
        for handle in handles:
            handle.remove()
    return found


def _alike(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    pairs = zip(one[1:], other[1:], strict=True)
    return one[0] is other[0] and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@torch.no_grad()
def entries_of_calls(model: nn.Module, inputs: dict[str, Any]) -> list[Entry]:
    """For every call of attention, in order, the layer that it stands in: the nearest that is checkpointed."""
    names = {id(module): name for name, module in model.named_modules()}
    entered: Counter[int] = Counter()
    found: list[Entry] = []

    def attend(module: Any, *args: Any, **kwargs: Any) -> Any:
        path = names[id(module)].split(".")
        above = [model.get_submodule(".".join(path[:k])) for k in range(len(path), 0, -1)]
        layers = [m for m in above if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            raise NotSeen("no layer that is checkpointed")
        found.append((layers[0], entered[id(layers[0])] - 1))
        return own_eager(module)(module, *args, **kwargs)

    def enter(module: nn.Module, args: Any) -> None:
        entered[id(module)] += 1

    with ExitStack() as stack, eager_is(model, attend):
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                stack.callback(layer.register_forward_pre_hook(enter).remove)
        model(**copy.deepcopy(inputs))
    if not found:
        raise NotSeen("no call through the interface")
    return found


def own_eager(module: Any) -> Any:
    for base in type(module).__mro__:
        eager = getattr(sys.modules[base.__module__], "eager_attention_forward", None)
        if eager is not None:
            return eager
    raise NotSeen("no eager function")


@contextmanager
def eager_is(model: nn.Module, function: Any) -> Iterator[None]:
    """Let ``model`` call ``function`` for attention."""
    configs = list({id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}.values())
    before = [c._attn_implementation_internal for c in configs]
    for config in configs:
        config._attn_implementation_internal = "eager"
    AttentionInterface._global_mapping["eager"] = function
    try:
        yield
    finally:
        AttentionInterface._global_mapping.pop("eager")
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation_internal = name


def _tape(model: nn.Module, inputs: dict[str, Any]) -> list[Event]:
    model = copy.deepcopy(model).eval()
    tape: list[Event] = []

    def attend(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        out, weights = own_eager(module)(module, query, key, value, attention_mask, *args, **kwargs)
        tape.append(Event("attention", module, out, weights, value))
        return out, weights

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        if isinstance(x, torch.Tensor):
            tape.append(Event("in", module, x.clone()))

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        y = out[0] if isinstance(out, tuple) else out
        if isinstance(y, torch.Tensor):
            tape.append(Event("out", module, y.clone()))

    for module in model.modules():
        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
    with eager_is(model, attend):
        model(**copy.deepcopy(inputs))
    return tape


def _layer(tape: list[Event], at: int, model: nn.Module) -> Layer:
    call = tape[at]
    stop = next((i for i in range(at + 1, len(tape)) if tape[i].kind == "attention"), len(tape))
    later = [e for e in tape[at + 1 : stop] if e.x.ndim == 3]
    flat = call.x.flatten(2)
    t, out = _projection(call, later, flat)
    for x in _candidates(tape, at, out):
        for parts, sum_ in _variants(t, out, later, model):
            for s in later:
                if _same(s.x, x + sum_):
                    merged = "merged_attention_mask" in inspect.signature(call.module.forward).parameters
                    return Layer(parts[0], x[0], s.x[0], _carried(s.x, later, tape[stop : stop + 40]), merged)
    raise NotSeen("x + attention is not seen")


def _variants(t: torch.Tensor, out: torch.Tensor, later: list[Event], model: nn.Module) -> Any:
    """Attention as it is, times the multiplier of the config, and through a norm that it goes into."""
    yield t, out
    factor = getattr(getattr(model, "config", None), "residual_multiplier", None)
    if isinstance(factor, int | float):
        yield factor * t, factor * out
    for event in later:
        if event.kind == "in" and re.search("Norm(Gated)?$", type(event.module).__name__) and _same(event.x, out):
            parts, y = _through(event.module, out[0], t[0])
            yield parts[None], y[None]


def _projection(call: Event, later: list[Event], flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for event in later:
        module = event.module
        if event.kind == "in" and event.x.shape == flat.shape and torch.equal(event.x, flat):
            if isinstance(module, nn.Linear):
                matrix = module.weight.T
            elif type(module).__name__ == "Conv1D":
                matrix = module.weight
            else:
                continue
            heads = call.weights.shape[1]
            values = call.values.repeat_interleave(heads // call.values.shape[1], 1)
            weights = call.weights[..., : values.shape[2]]
            parts = matrix.reshape(heads, -1, matrix.shape[1])
            t = torch.einsum("bhnm,bhmd,hde->bnme", weights, values, parts)
            bias = module.bias if module.bias is not None else torch.zeros(matrix.shape[1])
            return t, t.sum(2) + bias
    raise NotSeen("no projection")


def _candidates(tape: list[Event], at: int, out: torch.Tensor) -> list[torch.Tensor]:
    """What may be the residual: what went into the modules before the call, the last first."""
    return [e.x for e in reversed(tape[:at]) if e.kind == "in" and e.x.shape == out.shape][:12]


def _carried(s: torch.Tensor, later: list[Event], after: list[Event]) -> nn.Module | None:
    """The norm of s, if it and not s itself is added to what the rest of the layer gives."""
    events = later + [e for e in after if e.x.ndim == 3]
    outs = [e.x for e in events if e.kind == "out" and e.x.shape == s.shape]
    ins = [e.x for e in events if e.x.shape == s.shape]
    normed = False
    for event in later:
        if (
            re.search("Norm(Gated)?$", type(event.module).__name__)
            and event.kind == "in"
            and event.x.shape == s.shape
            and _same(event.x, s)
        ):
            y, normed = event.module(s), True
            for f in outs:
                for z in ins:
                    if _same(z, s + f):
                        return None
                    if _same(z, y + f):
                        return event.module
    if normed:
        raise NotSeen("whether s or its norm goes on")
    return None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a, b, atol=1e-5 * (1 + float(b.abs().max())), rtol=1e-4))
