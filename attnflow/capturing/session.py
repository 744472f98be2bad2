"""One capture: what is being recorded, and where in the model the run is at the moment."""

from __future__ import annotations

import inspect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from attnflow.capturing import memory
from attnflow.capturing.plain import Again, Held, Plans
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.survey import Site, Survey
from attnflow.capturing.trail import Trail
from attnflow.errors import CaptureError
from attnflow.reprs import one_line

if TYPE_CHECKING:
    from attnflow.capturing.gradient_edges import Mixture

Replace = Callable[["Call", torch.Tensor], "torch.Tensor | None"]

ACTIVE: ContextVar[Session | None] = ContextVar("attnflow_session", default=None)
"""The innermost session of this thread or task; calls of other threads pass through untouched."""


def watching(module: nn.Module) -> Session | None:
    """The session of this thread that looks at a module; of captures inside one another the innermost."""
    session = ACTIVE.get()
    while session is not None and id(module) not in session.watched:
        session = session.outer
    return session


_NAMING = (
    "input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "pixel_values", "input_features",
    "inputs_embeds", "image_grid_thw", "grid_thw",
)  # fmt: skip
_LEAD = ("decoder_input_ids", "input_ids", "inputs_embeds", "pixel_values", "input_features")
_OTHER_STATES = ("encoder_hidden_states", "key_value_states", "cross_attention_states", "encoder_states")


@dataclass(frozen=True)
class Call:
    """One computation of attention inside the model.

    Attributes:
        name: path of the module.
        layer: its layer number.
        kind: "self" or "cross".
        tower: path of the list of layers that it is in.
        run: how many times the model had been run before, since the capture began.
        entry: how many times this module had been entered before, in this run.
        part: how many calls this module had made before, in this entry.
        origin: in cross-attention between members of one batch, whose states the keys of each member are.
        depth: how many layers its tower has.
    """

    name: str
    layer: int
    kind: str
    tower: str
    run: int = 0
    entry: int = 0
    part: int = 0
    origin: tuple[int, ...] = ()
    depth: int = 0


@one_line
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
        mixing: ``[batch, queries]``: the mixing ratio of each output position, where the layer was decomposed.
        error: how far the sum of the layer's parts is from what the model computed, relative to its size.
        rows: the queries that ``weights`` has rows of, where those are not all.
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
    mixing: torch.Tensor | None = None
    error: float | None = None
    rows: tuple[int, ...] | None = None


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
    causal: bool = False


@dataclass(frozen=True, eq=False)
class Computed:
    """What one call of attention through transformers' interface computed.

    Attributes:
        weights: ``[batch, heads, queries, keys]``, or what computes rows of them again.
        values: ``[batch, heads or a divisor, keys, width]``.
        out: the output, ``[batch, queries, heads, width]``.
        query: the tensor of the queries.
        rows: the queries that ``weights`` has rows of, where those are not all.
        mixes: True if ``out`` was computed as weights × values, and nothing else.
        held: the memory in which ``weights`` are, if the watch lent it.
    """

    weights: torch.Tensor | Again
    values: torch.Tensor
    out: torch.Tensor
    query: torch.Tensor
    rows: tuple[int, ...] | None = None
    mixes: bool = False
    held: Held | None = None


@dataclass(frozen=True, eq=False)
class Projection:
    """What ``multi_head_attention_forward`` does with its weights.

    ``values`` are ``[batch, heads, keys, width]``, ``matrix`` and ``bias`` the output projection; the element at each
    place of ``out`` is that of the flat ``[batch, queries, width]`` at ``where``; ``query`` is what the queries are of.
    """

    values: torch.Tensor
    matrix: torch.Tensor
    bias: torch.Tensor | None
    out: torch.Tensor
    where: torch.Tensor
    query: torch.Tensor


class Watch(Protocol):
    """Keeps something else of the calls of attention than their weights; the session hands over each that is wanted."""

    by_rows: bool
    """Whether it takes weights that are computed again, some rows at a time."""

    def around(self) -> AbstractContextManager[object]:
        """While the model runs."""

    def lend(self, query: torch.Tensor, key: torch.Tensor) -> Held | None:
        """Memory for the weights of one call; None if they are to have their own."""

    def attended(self, call: Call, site: Site, given: Computed) -> None:
        """A call through transformers' interface."""

    def weighed(self, call: Call, site: Site, weights: torch.Tensor, four: torch.Tensor) -> None:
        """A softmax, whose values are not known yet; ``four`` are its weights as [batch, heads, queries, keys]."""

    def projected(self, call: Call, site: Site, weights: torch.Tensor, given: Projection) -> None:
        """A call of ``multi_head_attention_forward``."""

    def finish(self) -> None:
        """The run is over."""


@one_line
@dataclass
class Run:
    """What one run of the model was given, as far as it names positions.

    ``past`` is the number of positions that were in the cache before. ``found`` and ``left`` are one number of every
    cached key, ``[batch, keys]``, before and after the run: by them a batch that was reordered in between is seen.
    Inside ``generate()``, ``history`` are all ids so far, ``padding`` is their mask, ``generation`` the number of its
    call.
    """

    inputs: dict[str, Any] = field(default_factory=dict)
    past: int = 0
    found: torch.Tensor | None = None
    left: torch.Tensor | None = None
    history: torch.Tensor | None = None
    padding: torch.Tensor | None = None
    generation: int | None = None


@one_line
@dataclass(eq=False)
class Generation:
    """One call of ``generate()`` on so many ``examples``.

    ``sequences`` is what it returned, ``ends`` are the ids that end a sequence; ``history`` and ``padding`` are the ids
    and the mask of its next run.
    """

    examples: int
    ends: frozenset[int]
    sequences: torch.Tensor | None = None
    history: torch.Tensor | None = None
    padding: torch.Tensor | None = None


@dataclass(eq=False)
class Session:
    """Everything that one capture holds while the model runs.

    ``explains``, for gradient edges: the function of the model's outputs ``[batch]`` whose gradient is taken.
    ``again``, where a layer is run again: the output that a call of attention is to give; None if it is computed.
    ``rows``: the only queries, of ``row_length``, whose weights are wanted; ``whole_rows`` where all have to be
    computed for them. ``two_towers``: the model is an encoder-decoder.
    """

    survey: Survey
    reduction: Reduction = field(default_factory=Reduction)
    layers: frozenset[int] | None = None
    block: int | None = None
    replace: Replace | None = None
    gradients: bool = False
    explains: Callable[[Any], torch.Tensor] | None = None
    route: str = "auto"
    consume: Callable[[Record], None] | None = None
    tracing: bool = False
    lazy: list[Lazy] | None = None
    watch: Watch | None = None
    again: Callable[[Site], torch.Tensor | None] | None = None
    rows: tuple[int, ...] | None = None
    row_length: int = 0
    whole_rows: bool = False
    two_towers: bool = False

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
        self.outer: Session | None = None
        self.watched: set[int] = set(self.survey.sites)
        self.elsewhere: set[str] = set()
        self.thread = threading.get_ident()
        self.open_tap: Callable[[], AbstractContextManager[object]] = nullcontext
        self.alone = threading.RLock()
        self.boundary: Run | None = None
        self.trail: Trail | None = None
        self.sizes: dict[int, list[tuple[int, ...]]] = {}
        self.refused: list[CaptureError] = []
        self.pieces: dict[int, list[torch.Tensor]] = defaultdict(list)
        self.outside: list[tuple[int, ...]] = []
        self.settle: Callable[[], None] = _nothing
        self.reached = False
        self.generations: list[Generation] = []
        self.generating: list[Generation] = []

    # What the session hears of the models and of every attention module says where the run is.

    def enter_model(self, module: nn.Module, wrapper: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The forward of a model, or of one inside it, begins; a wrapper is one that only calls others."""
        if self.depth == 0:
            given = self.note_inputs(module, args, kwargs)
            # Whether this is a new run is seen at its first attention module: generate() runs an encoder by itself,
            # before the model, and both are one run.
            self.boundary = given if self.boundary is None else _over(self.boundary, given)
            config = getattr(module, "config", None)
            if not wrapper:
                self.want_weights = bool(kwargs.get("output_attentions", getattr(config, "output_attentions", False)))
        self.depth += not wrapper

    def note_inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
        """What names the positions of a run: ids and masks, the shape of an image."""
        names = list(inspect.signature(module.forward).parameters)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        run = Run()
        for name, value in given.items():
            if (name in _NAMING or name.endswith("mask")) and isinstance(value, torch.Tensor):
                run.inputs[name] = value.detach()
        past = given.get("past_key_values")
        length = getattr(past, "get_seq_length", None)
        run.past = int(length()) if length is not None else 0
        if self.tracing and run.past:
            run.found = _trace(past)
        if self.generating and self.generating[-1].history is not None:
            now = self.generating[-1]
            run.history, run.padding, run.generation = now.history, now.padding, self.generations.index(now)
        return run

    def enter_generate(self, generation: Generation) -> None:
        """A call of ``generate()`` begins."""
        self.generations.append(generation)
        self.generating.append(generation)

    def leave_generate(self, generation: Generation, sequences: torch.Tensor | None) -> None:
        """It ends, also by an exception."""
        self.generating.remove(generation)
        generation.sequences, generation.history = sequences, None

    def leave_model(self, wrapper: bool, last: bool, output: Any) -> None:
        """The forward ends, also by an exception; with the ``last`` one the run is over."""
        self.depth -= not wrapper
        if self.depth:
            return
        if self.tracing and isinstance(output, Mapping):
            self.given[self.runs].left = _trace(output.get("past_key_values"))
        self.settle()
        self.stack.clear()
        self.plans.clear()
        if last:
            self.boundary = None
            self.runs += self.reached
            self.reached = False

    def enter_site(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An attention module's forward begins."""
        if not self.stack:
            self.settle()
        self._begin(site)
        own = kwargs.get("hidden_states", args[0] if args else None)
        other = next((kwargs[n] for n in _OTHER_STATES if n in kwargs), None)
        self.stack.append((site, _is_cross(site, args, kwargs), _origin(own, other)))
        self.entries[self.runs, id(site.module)] += 1
        if site.taps:
            given = (*args, *kwargs.values())
            self.sizes[id(site.module)] = [tuple(t.shape) for t in given if isinstance(t, torch.Tensor)]

    def _begin(self, site: Site) -> None:
        """A new run, if a model was entered anew (or none at all) and this module has been in the open one."""
        again = self.entries[self.runs, id(site.module)] > 0
        if again and (self.boundary is not None or (self.depth == 0 and not self.stack)):
            self.runs += 1
        if self.boundary is not None:
            self.given[self.runs] = _over(self.given[self.runs], self.boundary)
            self.boundary = None
        self.reached = True

    def leave_site(self, site: Site) -> None:
        """An attention module's forward ends, also by an exception."""
        while self.stack and self.stack.pop()[0] is not site:
            pass
        if not self.stack and (self.trail is None or not self.trail.open):
            self.settle()

    def padded(self, length: int) -> int:
        """How many of these positions were given; the rest is what a module padded its last block with."""
        given = self.given[self.runs].inputs
        known = [int(given[n].shape[1]) for n in ("input_ids", "inputs_embeds") if n in given]
        return min([*known, length])

    def batch(self) -> int:
        """How many texts this run was given; 0 if that is not known."""
        given = self.given[self.runs].inputs
        return next((int(given[n].shape[0]) for n in _LEAD if n in given and given[n].ndim), 0)

    def here(self) -> AbstractContextManager[object]:
        """The tap, for a run in another thread than the one that opened the session: a tap is of one thread."""
        return self.open_tap() if threading.get_ident() != self.thread else nullcontext()

    def call(self, site: Site) -> Call:
        """The call that is being made now."""
        entry = max(self.entries[self.runs, id(site.module)] - 1, 0)
        key = (self.runs, id(site.module), entry)
        part = self.parts[key]
        self.parts[key] += 1
        inside = bool(self.stack) and self.stack[-1][0] is site
        cross, origin = self.stack[-1][1:] if inside else (site.looks_cross, ())
        layer = site.shared[entry] if entry < len(site.shared) else site.layer
        kind = "cross" if cross else "self"
        return Call(site.name, layer, kind, site.tower, self.runs, entry, part, origin, site.depth)

    def wants(self, call: Call) -> bool:
        """False for layers that were not asked for; negative numbers count from the end of the call's own tower."""
        return self.layers is None or bool({call.layer, call.layer - call.depth} & self.layers)

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """Hear nothing of what is computed in here."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def hear(self, site: Site) -> None:
        """A call was seen."""
        self.count += 1
        self.heard.add(id(site.module))

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def keep(self, record: Record) -> None:
        """Take a record in."""
        self.count += 1
        self.heard.add(id(record.site.module))
        if record.live is not None and self.tracing and record.live.requires_grad:
            # Users who run the model themselves also call backward themselves.
            record.live.retain_grad()
        if self.consume is not None:
            self.consume(record)
        else:
            self.records.append(record)
            memory.give_back(record.weights, len(self.records))


def _nothing() -> None:
    """Nothing is left to be settled when the outermost attention module ends."""


def _over(first: Run, then: Run) -> Run:
    """What is known of one run from two models that were entered in it; what the second was given counts."""
    found = then.found if then.found is not None else first.found
    late = then if then.history is not None else first
    inputs, past = {**first.inputs, **then.inputs}, max(first.past, then.past)
    return Run(inputs, past, found, first.left, late.history, late.padding, late.generation)


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
    """One number of every key that a cache holds, in all layers: those of the first tell ids alone, of a window few."""
    own = getattr(cache, "self_attention_cache", cache)
    layers = [getattr(layer, "keys", None) for layer in getattr(own, "layers", None) or ()]
    held = [k[:, 0, :, 0].detach() for k in layers if isinstance(k, torch.Tensor) and k.ndim == 4 and k.shape[2]]
    same = [k.to(held[0].device) for k in held if k.shape[0] == held[0].shape[0]]
    return torch.cat(same, 1) if same else None
