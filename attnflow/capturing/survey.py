"""Which modules of a model compute attention, how, and the layer of which tower each of them is.

Nothing is run here: the code of the module classes is read (by the names in its bytecode), and the path of a
module inside the model gives its tower and its layer number.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.inputs.running import named_parts

Eager = Callable[..., Any]

_SOFTMAX = {"softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
_ATTENTION = re.compile(r"att(?:n|ention)|mha", re.I)
# The last three have "attention" in their name and a softmax, but it weighs features, patches without queries, or one
# number: PatchTSMixer, MobileViTV2, SwiftFormer.
_OTHER = re.compile(
    r"router|gating|expert|deformable|loss|pooling|MixerGatedAttention|LinearSelfAttention|EfficientAdditiveAttention",
    re.I,
)
_SAMPLED = re.compile(r"deformable", re.I)
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention|src_att|multihead_attn$", re.I)

# What an eager function may name and still be softmax(q·kᵀ·scale + mask)·v and nothing else.
_PLAIN = {
    "torch", "matmul", "transpose", "nn", "functional", "F", "softmax", "dropout", "training", "contiguous",
    "size", "shape", "repeat_kv", "num_key_value_groups", "float32", "to", "dtype", "type",
}  # fmt: skip
_PLAIN_ARGUMENTS = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"}


@dataclass(eq=False)
class Site:
    """A module that computes attention.

    Attributes:
        name: its path in the model.
        module: the module.
        eager: its own eager function if it calls attention through transformers' interface, else None.
        taps: True if its code holds a softmax of its own.
        tower: path of the list of layers that it is in; "" if there is none.
        layer: its number in that list.
        depth: how many layers the list has.
        pattern: its path with the layer numbers left out.
        shared: the numbers of all layers that use it, where it stands in more than one.
        parent: the module that it is a part of.
    """

    name: str
    module: nn.Module
    eager: Eager | None
    taps: bool
    tower: str = ""
    layer: int = 0
    depth: int = 1
    pattern: str = ""
    shared: tuple[int, ...] = ()
    parent: nn.Module | None = None

    @property
    def looks_cross(self) -> bool:
        """True if its name or its own flag says cross-attention."""
        flag = getattr(self.module, "is_cross_attention", None)
        if isinstance(flag, bool):
            return flag
        return bool(_CROSS.search(self.name) or _CROSS.search(type(self.module).__name__))


@dataclass(eq=False)
class Survey:
    """All attention modules of a model, in the order in which it lists them.

    ``sampled`` names the modules of deformable attention: they weigh a few sampled points and have no matrix of
    queries × keys.
    """

    sites: dict[int, Site] = field(default_factory=dict)
    sampled: list[str] = field(default_factory=list)

    @property
    def interface(self) -> bool:
        """True if some module calls attention through transformers' interface."""
        return any(s.eager is not None for s in self.sites.values())

    @property
    def tap(self) -> bool:
        """True if some module has a softmax in its own code, which only a tap can see."""
        return any(s.taps for s in self.sites.values())


def survey(model: nn.Module) -> Survey:
    """Find the attention modules of ``model``.

    >>> from transformers import GPT2Config, GPT2Model
    >>> found = survey(GPT2Model(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=9)))
    >>> [(s.name, s.tower, s.layer, s.depth) for s in found.sites.values()]
    [('h.0.attn', 'h', 0, 2), ('h.1.attn', 'h', 1, 2)]
    """
    found: dict[int, Site] = {}
    sampled: list[str] = []
    paths: dict[int, list[str]] = defaultdict(list)
    for name, module in named_parts(model):
        paths[id(module)].append(name)
        if len(paths[id(module)]) > 1:
            continue
        if _SAMPLED.search(type(module).__name__) and _has_softmax(module):
            sampled.append(name)
        eager = own_eager(class_of(module))
        taps = _has_softmax(module) and _named_attention(name, module)
        if eager is not None or taps:
            parent = model.get_submodule(name.rpartition(".")[0]) if name else None
            found[id(module)] = Site(name, module, eager, taps, parent=parent)
    _drop_wrappers(found)
    _number(model, list(found.values()))
    _share(found, paths)
    return Survey(found, sampled)


def _drop_wrappers(found: dict[int, Site]) -> None:
    """Leave out modules that only wrap an ``nn.MultiheadAttention``, which is a site of its own."""
    names = {s.name for s in found.values() if isinstance(s.module, nn.MultiheadAttention)}
    for key, site in list(found.items()):
        inside = [n for n in names if n.startswith(site.name + ".")]
        if inside and site.eager is None and not isinstance(site.module, nn.MultiheadAttention):
            del found[key]


def _named_attention(name: str, module: nn.Module) -> bool:
    label = type(module).__name__
    last = ".".join(name.split(".")[-2:])
    return bool(_ATTENTION.search(label) or _ATTENTION.search(last)) and not _OTHER.search(label)


def _has_softmax(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    if type(module).__module__.startswith("torch.nn"):
        return False
    return _code_has_softmax(class_of(module)) or any(isinstance(m, nn.Softmax) for m in module.children())


@functools.cache
def _code_has_softmax(klass: Any) -> bool:
    return any(_SOFTMAX & _reach(f) for f in _functions(klass))


def _functions(klass: type) -> Iterator[FunctionType]:
    for base in klass.__mro__:
        if base is nn.Module:
            return
        for value in base.__dict__.values():
            if isinstance(value, staticmethod):
                value = value.__func__
            value = inspect.unwrap(value) if callable(value) else value
            if isinstance(value, FunctionType):
                yield value


def _reach(function: FunctionType) -> set[str]:
    """Names used by a function and by the functions of the same file that it calls."""
    names = _names(function.__code__)
    asks = "get_interface" in names
    for name in list(names):
        helper = function.__globals__.get(name)
        # Where the interface is asked, the eager function belongs to it and not to the module's own code.
        if not isinstance(helper, FunctionType) or (asks and name.endswith("eager_attention_forward")):
            continue
        if helper.__module__ == function.__module__:
            names = names | _names(helper.__code__)
    return names


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def class_of(module: nn.Module) -> Any:
    """The class of a module, as something to look up in a cache."""
    return type(module)


@functools.cache
def own_eager(klass: Any) -> Eager | None:
    """The eager function that this class's forward hands to transformers' interface, or None.

    It is read from the bytecode of ``forward``: a modelling file may define two of them. A forward that asks for a
    kernel and has no eager function gets :func:`bare`.
    """
    for base in klass.__mro__:
        if base is nn.Module:
            return None
        for method in base.__dict__.values():
            function = inspect.unwrap(method) if callable(method) else None
            if not isinstance(function, FunctionType):
                continue
            names = _names(function.__code__)
            if function.__name__ == "forward" and _looks_up(names):
                return bare
            if "get_interface" not in names:
                continue
            for name in function.__code__.co_names:
                found = function.__globals__.get(name)
                if name.endswith("eager_attention_forward") and callable(found):
                    return found  # type: ignore[no-any-return]
    return None


def _looks_up(names: set[str]) -> bool:
    """Whether code takes a kernel from transformers' list and has no eager function for when there is none."""
    other = any(n == "get_interface" or n.endswith("eager_attention_forward") for n in names)
    return {"ALL_ATTENTION_FUNCTIONS", "_attn_implementation"} <= names and not other


def bare(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What ``scaled_dot_product_attention`` computes, for modules that have no eager function of their own.

    A mask of booleans says where to look; a row that may look nowhere gives zeros. Both results have transformers'
    form: [batch, queries, heads, width] and [batch, heads, queries, keys].
    """
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is None:
        weights = scores.softmax(-1)
    elif attention_mask.dtype == torch.bool:
        weights = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min).softmax(-1)
        weights = weights.masked_fill(~attention_mask, 0)
    else:
        weights = (scores + attention_mask).softmax(-1)
    weights = nn.functional.dropout(weights, dropout)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@functools.cache
def is_plain(eager: Eager) -> bool:
    """True if an eager function is softmax(q·kᵀ·scale + mask)·v and nothing else, by the names in its code."""
    code = getattr(inspect.unwrap(eager), "__code__", None)
    if code is None:
        return False
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names = _names(code)
    return {"matmul", "softmax"} <= names <= _PLAIN and set(arguments) <= _PLAIN_ARGUMENTS


@functools.cache
def consumed(eager: Eager) -> frozenset[str]:
    """Names of the keyword arguments that an eager function looks at."""
    code = getattr(inspect.unwrap(eager), "__code__", None)
    if code is None:
        return frozenset()
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return frozenset(arguments) | {c for c in code.co_consts if isinstance(c, str)}


def _number(model: nn.Module, sites: list[Site]) -> None:
    """Give each site its tower, layer number and depth."""
    families: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        site.pattern = re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)", "*", site.name)
        families[site.pattern].append(site)
    for members in families.values():
        paths = [s.name.split(".") for s in members]
        spots = [i for i, part in enumerate(paths[0]) if part.isdigit()]
        own = [getattr(s.module, "layer_idx", None) for s in members]
        known = all(type(n) is int and n >= 0 for n in own) and len(set(own)) == len(own)
        varying = [i for i in spots if len({p[i] for p in paths}) > 1]
        at = _layer_spot(paths, spots, varying, own if known else None)
        for order, (site, path, number) in enumerate(zip(members, paths, own, strict=True)):
            if at is None:
                outer = varying[0] if varying else (spots[0] if spots else len(path))
                site.tower = ".".join(path[:outer])
                site.layer = int(number) if known and number is not None else order
                site.depth = max(len(members), site.layer + 1)
            else:
                site.tower = ".".join(path[:at])
                site.layer = int(path[at])
                site.depth = _length(model, site.tower, site.layer + 1)


def _share(found: dict[int, Site], paths: dict[int, list[str]]) -> None:
    """Note the layers of a module that several layers share; ``paths`` are all places of each module."""
    for key, site in found.items():
        names = paths[key]
        prefix = f"{site.tower}." if site.tower else ""
        heads = [n.removeprefix(prefix).split(".")[0] for n in names if n.startswith(prefix)]
        if len(names) > 1 and len(heads) == len(names) and all(h.isdigit() for h in heads):
            site.shared = tuple(map(int, heads))


def _layer_spot(paths: list[list[str]], spots: list[int], varying: list[int], own: list[Any] | None) -> int | None:
    """Which number in the path is the layer's; None if no single one is."""
    if own is not None:
        same = [i for i in spots if all(int(p[i]) == n for p, n in zip(paths, own, strict=True))]
        if same:
            return same[0]
        if len(varying) != 1:
            return None
    if len(varying) == 1:
        return varying[0]
    return spots[0] if spots and not varying else None


def _length(model: nn.Module, path: str, least: int) -> int:
    try:
        holder = model.get_submodule(path)
    except AttributeError:
        return least
    return max(least, len(holder)) if isinstance(holder, nn.ModuleList | nn.Sequential | nn.ModuleDict) else least
