"""One capture: what is being recorded, and where in the model the run is at the moment."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnflow.capturing import memory
from attnflow.capturing.plain import Plans
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.survey import Site, Survey

if TYPE_CHECKING:
    from attnflow.capturing.gradient_edges import Mixture

Replace = Callable[["Call", torch.Tensor], "torch.Tensor | None"]

ACTIVE: ContextVar[Session | None] = ContextVar("attnflow_session", default=None)
"""The session of this thread or task; calls of other threads pass through untouched."""

_NAMING = (
    "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "pixel_values", "input_features",
)  # fmt: skip
_OTHER_STATES = ("encoder_hidden_states", "key_value_states", "cross_attention_states", "encoder_states")


@dataclass(frozen=True)
class Call:
    """One computation of attention inside the model.

    Attributes:
        name: path of the module.
        layer: its layer number.
        kind: "self" or "cross".
        tower: path of the list of layers that it is in.
        run: how many times the model had been run before, in this session.
        entry: how many times this module had been entered before, in this run.
        part: how many calls this module had made before, in this entry.
        origin: in cross-attention between members of one batch, whose states the keys of each member are.
    """

    name: str
    layer: int
    kind: str
    tower: str
    run: int = 0
    entry: int = 0
    part: int = 0
    origin: tuple[int, ...] = ()


@dataclass(eq=False)
class Record:
    """What one call attended to.

    Attributes:
        call: where it happened.
        site: the module.
        weights: ``[batch, queries, keys]``, or ``[batch, heads, queries, keys]``: rows are queries, columns keys.
        queries: number of queries.
        keys: number of keys, without the column that maxima and minima carry for sinks.
        source: "interface", "tap" or "output_attentions".
        precision: the dtype in which the model computed.
        gradient: the gradient with respect to ``weights``, where it was asked for.
        live: the weights inside the autograd graph, until the gradient is there.
        heads: number of heads of ``live``, whose layout may be that of older code.
        mixture: for gradient edges, what they are computed from, until the gradient is there.
    """

    call: Call
    site: Site
    weights: torch.Tensor
    queries: int
    keys: int
    source: str
    precision: torch.dtype
    gradient: torch.Tensor | None = None
    live: torch.Tensor | None = None
    heads: int = 0
    mixture: Mixture | None = None


@dataclass(frozen=True, eq=False)
class Lazy:
    """The arguments of one call, from which its weights can be computed again, row by row."""

    call: Call
    eager: Callable[..., Any]
    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    options: dict[str, Any]


@dataclass
class Run:
    """What one run of the model was given, as far as it names positions.

    ``past`` is the number of positions that were in the cache before. ``found`` and ``left`` are one number of every
    cached key, ``[batch, keys]``, before and after the run: by them a batch that was reordered in between is seen.
    """

    inputs: dict[str, Any] = field(default_factory=dict)
    past: int = 0
    found: torch.Tensor | None = None
    left: torch.Tensor | None = None


@dataclass(eq=False)
class Session:
    """Everything that one capture holds while the model runs.

    ``explains``, for gradient edges: the function of the model's outputs ``[batch]`` whose gradient is taken.
    """

    survey: Survey
    reduction: Reduction = field(default_factory=Reduction)
    layers: frozenset[int] | None = None
    block: int | None = None
    replace: Replace | None = None
    gradients: bool = False
    explains: Callable[[Any], torch.Tensor] | None = None
    route: str = "auto"
    implementations: dict[int, Any] = field(default_factory=dict)
    consume: Callable[[Record], None] | None = None
    tracing: bool = False
    lazy: list[Lazy] | None = None

    def __post_init__(self) -> None:
        self.records: list[Record] = []
        self.count = 0
        self.heard: set[int] = set()
        self.checked: set[int] = set()
        self.notes: list[str] = []
        self.given: dict[int, Run] = defaultdict(Run)
        self.runs = 0
        self.depth = 0
        self.want_weights = False
        self.plans: Plans = {}
        self.quiet = False
        self.stack: list[tuple[Site, bool, tuple[int, ...]]] = []
        self.entries: dict[tuple[int, int], int] = defaultdict(int)
        self.parts: dict[tuple[int, int, int], int] = defaultdict(int)

    # Hooks on the whole model and on every attention module keep track of where the run is.

    def enter_model(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model's forward begins."""
        self.depth += 1
        if self.depth > 1:
            return
        self.note_inputs(module, args, kwargs)
        config = getattr(module, "config", None)
        self.want_weights = bool(kwargs.get("output_attentions", getattr(config, "output_attentions", False)))

    def note_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember what names the positions of this run: ids and masks, the shape of an image."""
        names = list(inspect.signature(module.forward).parameters)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        run = self.given[self.runs]
        for name in _NAMING:
            value = given.get(name)
            if isinstance(value, torch.Tensor):
                run.inputs[name] = value.detach()
        past = given.get("past_key_values")
        length = getattr(past, "get_seq_length", None)
        run.past = int(length()) if length is not None else 0
        if self.tracing and run.past:
            run.found = _trace(past)

    def leave_model(self, module: nn.Module, args: Any, output: Any) -> None:
        """The model's forward ends, also by an exception."""
        self.depth -= 1
        if self.depth == 0:
            if self.tracing and isinstance(output, Mapping):
                self.given[self.runs].left = _trace(output.get("past_key_values"))
            self.runs += 1
            self.stack.clear()
            self.plans.clear()

    def enter_site(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An attention module's forward begins."""
        own = kwargs.get("hidden_states", args[0] if args else None)
        other = next((kwargs[n] for n in _OTHER_STATES if n in kwargs), None)
        self.stack.append((site, _is_cross(site, args, kwargs), _origin(own, other)))
        self.entries[self.runs, id(site.module)] += 1

    def leave_site(self, site: Site) -> None:
        """An attention module's forward ends, also by an exception."""
        while self.stack and self.stack.pop()[0] is not site:
            pass

    def call(self, site: Site) -> Call:
        """The call that is being made now."""
        entry = max(self.entries[self.runs, id(site.module)] - 1, 0)
        key = (self.runs, id(site.module), entry)
        part = self.parts[key]
        self.parts[key] += 1
        inside = bool(self.stack) and self.stack[-1][0] is site
        cross, origin = self.stack[-1][1:] if inside else (site.looks_cross, ())
        layer = site.shared[entry] if entry < len(site.shared) else site.layer
        return Call(site.name, layer, "cross" if cross else "self", site.tower, self.runs, entry, part, origin)

    def wants(self, call: Call) -> bool:
        """False for layers that were not asked for."""
        return self.layers is None or call.layer in self.layers

    def keep(self, record: Record) -> None:
        """Take a record in."""
        self.count += 1
        self.heard.add(id(record.site.module))
        if record.live is not None and self.tracing and record.live.requires_grad:
            # Whoever runs the model himself also calls backward himself.
            record.live.retain_grad()
        if self.consume is not None:
            self.consume(record)
        else:
            self.records.append(record)
            memory.give_back(record.weights, len(self.records))


def _is_cross(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if states of another sequence reached the module."""
    if isinstance(site.module, nn.MultiheadAttention):
        query = args[0] if args else kwargs.get("query")
        key = args[1] if len(args) > 1 else kwargs.get("key")
        return key is not query and site.looks_cross
    own = kwargs.get("hidden_states", args[0] if args else None)
    for name in _OTHER_STATES:
        if name in kwargs:
            return kwargs[name] is not None and kwargs[name] is not own
    return site.looks_cross


def _origin(own: Any, other: Any) -> tuple[int, ...]:
    """For each member of the batch, the member whose own states it is given as keys; empty if they are no such states.

    Models that match two images put both into the batch and let each look at the other.
    """
    if not isinstance(own, torch.Tensor) or not isinstance(other, torch.Tensor) or own is other:
        return ()
    if own.shape != other.shape or own.ndim != 3 or len(own) < 2:
        return ()
    # One position of each tells most of them apart, and costs nothing in an ordinary decoder.
    alike = (other[:, None, 0] == own[None, :, 0]).all(-1)
    found = tuple(alike.int().argmax(1).tolist())
    return found if sorted(found) == list(range(len(own))) and torch.equal(other, own[list(found)]) else ()


def _trace(cache: Any) -> torch.Tensor | None:
    """One number of every key that a cache holds."""
    own = getattr(cache, "self_attention_cache", cache)
    for layer in getattr(own, "layers", None) or ():
        keys = getattr(layer, "keys", None)
        if isinstance(keys, torch.Tensor) and keys.ndim == 4 and keys.shape[2]:
            return keys[:, 0, :, 0].detach().clone()
    return None
