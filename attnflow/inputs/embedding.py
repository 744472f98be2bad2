"""Where a model turns ids into word embeddings, and how to give it other ones.

Gradients are taken with respect to *word* embeddings: positions, segments and the layer norm behind them are the
model's own business and are applied once, by the model. Handing the output of the whole embedding block to
``inputs_embeds`` applies them twice, in silence, in nearly every family (Abnar & Zuidema's code was right for
the DistilBERT of 2020 and is wrong for today's).

The module is *found*, not named: a dry run watches which module is called with exactly the input ids. In T5 or
BART ``get_input_embeddings()`` is a module that is never called. There are three routes, tried in this order:

``"hook"``            the module that was called with the ids; its output is replaced
``"get_input_embeddings"``   the same hook on the module that the model names, for models that change ids first
``"inputs_embeds"``   the embeddings given as an argument
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnflow.errors import InputError, SelectionError
from attnflow.inputs.limits import word_embeddings
from attnflow.inputs.running import model_errors, parts_of
from attnflow.numbers import word

ROUTES = ("hook", "get_input_embeddings", "inputs_embeds")
IDS = {"input_ids": "inputs_embeds", "decoder_input_ids": "decoder_inputs_embeds"}


@dataclass(frozen=True, eq=False)
class Slot:
    """One place where ids become embeddings.

    Attributes:
        ids: the model's argument that holds the ids.
        module: the module that looks them up.
        call: which of the module's calls in one forward pass (encoder and decoder may share a module).
        turned: True where the model gives the module ``[positions, batch]``.
    """

    ids: str
    module: nn.Module
    call: int = 0
    turned: bool = False


@dataclass(frozen=True, eq=False)
class Embedder:
    """The slots of a model, one for each argument that holds ids, and the route that reaches them."""

    route: str
    slots: tuple[Slot, ...]
    name: str = ""

    def embeddings(self, model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """``[batch, positions, dimensions]`` for each slot: the model's own embeddings of the ids."""
        if self.route != "get_input_embeddings":
            return tuple(_lookup(s.module, inputs[s.ids]) for s in self.slots)
        # This route is for models that change the ids before they look them up, so only a run shows the embeddings.
        seen: dict[int, Tensor] = {}

        def note(i: int, out: Tensor) -> None:
            seen[i] = out.detach().clone()

        with torch.no_grad(), _hooks(self.slots, note):
            run(model, inputs)
        return tuple(_straight(seen[i], s.turned) for i, s in enumerate(self.slots))

    def sums(self, model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Tensor | None, ...]:
        """For each slot what the model goes on with: the embeddings and all that it adds to them (positions, types).

        It is the input of the first module that is called behind the slot with a tensor of that shape; None where no
        such module is called.
        """
        found: list[Tensor | None] = [None] * len(self.slots)
        latest: list[tuple[int, torch.Size]] = []

        def start(i: int, out: Tensor) -> None:
            latest[:] = [(i, out.shape)]

        def look(module: nn.Module, args: tuple[Any, ...]) -> None:
            given = args[0] if args else None
            if latest and isinstance(given, Tensor) and given.is_floating_point() and given.shape == latest[0][1]:
                found[latest.pop()[0]] = given.detach().clone()

        handles = [m.register_forward_pre_hook(look) for m in parts_of(model)]
        try:
            with torch.no_grad(), _hooks(self.slots, start):
                run(model, inputs)
        finally:
            for handle in handles:
                handle.remove()
        return tuple(x if x is None else _straight(x, s.turned) for x, s in zip(found, self.slots, strict=True))

    def vectors(self, slot: int, token: int) -> Tensor:
        """``[1, 1, dimensions]``: the embedding of one id."""
        module = self.slots[slot].module
        device = next(module.parameters()).device
        return _lookup(module, torch.tensor([[token]], device=device))

    def mean(self, slot: int) -> Tensor:
        """``[1, 1, dimensions]``: the mean embedding of the whole vocabulary."""
        module = self.slots[slot].module
        weight: Any = module.weight
        # Through the module, which may scale its rows, and in parts, because vocabularies are large.
        parts = [
            _lookup(module, ids[None]) for ids in torch.split(torch.arange(len(weight), device=weight.device), 8192)
        ]
        total = torch.stack([p.double().sum(1) for p in parts]).sum(0)
        return (total / len(weight)).to(weight.dtype)[None]

    def run(self, model: nn.Module, inputs: Mapping[str, Any], embeddings: Sequence[Tensor]) -> Any:
        """The model's outputs for other embeddings ``[batch, positions, dimensions]`` of the same positions.

        ``inputs`` are of one example and are repeated to the batch of the embeddings.
        """
        batch = repeated(inputs, embeddings[0].shape[0])
        if self.route == "inputs_embeds":
            kept = {k: v for k, v in batch.items() if k not in {s.ids for s in self.slots}}
            given = {IDS[s.ids]: e for s, e in zip(self.slots, embeddings, strict=True)}
            return run(model, {**kept, **given})
        fired: set[int] = set()

        def swap(i: int, out: Tensor) -> Tensor:
            fired.add(i)
            # A clone, because some models scale the embeddings in place, which a leaf does not allow.
            return _straight(embeddings[i], self.slots[i].turned).to(out.dtype).clone()

        with _hooks(self.slots, swap):
            outputs = run(model, batch)
        if len(fired) != len(self.slots):
            missing = [s.ids for i, s in enumerate(self.slots) if i not in fired]
            raise InputError(
                f"The embedding of {', '.join(missing)} was found in a first pass and not called in a second: the "
                "model's forward pass changes from call to call. Use route='inputs_embeds'."
            )
        return outputs

    @contextmanager
    def shaken(self, noise: Sequence[Tensor]) -> Iterator[None]:
        """While this is open, ``noise`` ``[1, positions, dimensions]`` is added to what each slot looks up.

        Whoever runs the model meanwhile (a capture, a gradient) sees an input a little beside the true one.
        """

        def add(slot: Slot, extra: Tensor) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> Any:
                first = output[0] if isinstance(output, tuple) else output
                there = _straight(first, slot.turned)
                if there.ndim != 3 or there.shape[1] != extra.shape[1]:
                    return None
                new = _straight(there + extra.to(there.dtype), slot.turned)
                return (new, *output[1:]) if isinstance(output, tuple) else new

            return slot.module.register_forward_hook(hook)

        handles = [add(slot, extra) for slot, extra in zip(self.slots, noise, strict=True)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


_found: WeakKeyDictionary[nn.Module, dict[tuple[str, tuple[str, ...]], Embedder]] = WeakKeyDictionary()


def find(model: nn.Module, inputs: Mapping[str, Any], route: str = "auto") -> Embedder:
    """The embedder of ``model`` for the arguments of ``inputs``; found once for each model.

    Args:
        route: "auto" takes the first of :data:`ROUTES` that leaves the output as it is.
    """
    if word(route, "route") not in ("auto", *ROUTES):
        raise SelectionError(f"route={route!r} is not known. Use 'auto', {', '.join(map(repr, ROUTES))}.")
    names = tuple(n for n in IDS if n in inputs)
    if not names:
        raise InputError(
            f"Word embeddings need input_ids, and the inputs are {', '.join(inputs)}. Pass input_ids or a text."
        )
    known = _found.setdefault(model, {})
    if (route, names) not in known:
        known[(route, names)] = _first_that_works(model, inputs, names, ROUTES if route == "auto" else (route,))
    return known[(route, names)]


def _first_that_works(
    model: nn.Module, inputs: Mapping[str, Any], names: tuple[str, ...], routes: Sequence[str]
) -> Embedder:
    from attnflow.inputs.target import full_output

    with torch.no_grad():
        calls, plain = _watch(model, inputs)
        expected = (
            full_output(plain) if isinstance(plain, Mapping) and {"logits", "last_hidden_state"} & set(plain) else None
        )
        reasons = []
        for route in routes:
            slots = [_slot(model, inputs, name, route, calls) for name in names]
            if None in slots:
                reasons.append(f"{route}: no such module is called with the ids")
                continue
            embedder = Embedder(route, tuple(s for s in slots if s is not None), _names(model, slots))
            reason = _unlike(embedder, model, inputs, expected)
            if reason is None:
                return embedder
            reasons.append(f"{route}: {reason}")
    raise InputError(
        f"{type(model).__name__} gave no way to its word embeddings ({'; '.join(reasons)}). Blank-out needs none: "
        "blankout(model, tokenizer, text, blank='mask')"
    )


def _unlike(embedder: Embedder, model: nn.Module, inputs: Mapping[str, Any], expected: Tensor | None) -> str | None:
    """Why this way does not give what the model gives for its ids; None if it does."""
    from attnflow.inputs.target import full_output

    try:
        outputs = embedder.run(model, inputs, embedder.embeddings(model, inputs))
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, NotImplementedError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    if expected is None:
        return None
    got = full_output(outputs)
    off = float((got.float() - expected.float()).abs().max()) if got.shape == expected.shape else float("inf")
    scale = 1.0 + float(expected.float().abs().max())
    return None if off <= 1e-3 * scale else f"the output changes by {off:.2g}"


@dataclass
class _Call:
    module: nn.Module
    number: int
    ids: Tensor


@dataclass
class _Calls:
    seen: list[_Call] = field(default_factory=list)
    counts: dict[nn.Module, int] = field(default_factory=dict)

    def hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        number = self.counts.get(module, 0)
        self.counts[module] = number + 1
        given = args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))
        if isinstance(given, Tensor) and not given.is_floating_point():
            self.seen.append(_Call(module, number, given.detach().clone()))


def _watch(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[_Calls, Any]:
    """A forward pass in which every table of vectors notes what it was asked for."""
    calls = _Calls()
    tables = [m for m in model.modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 2]
    handles = [m.register_forward_hook(calls.hook, with_kwargs=True) for m in tables]
    try:
        return calls, run(model, inputs)
    finally:
        for handle in handles:
            handle.remove()


def _slot(model: nn.Module, inputs: Mapping[str, Any], name: str, route: str, calls: _Calls) -> Slot | None:
    ids = inputs[name]
    exact = [c for c in calls.seen if c.ids.numel() == ids.numel() and torch.equal(c.ids.reshape(-1), ids.reshape(-1))]
    # The decoder's ids may equal the encoder's: the encoder is called first.
    exact = exact[::-1] if name.startswith("decoder") else exact
    found = _table(model, ids, exact)
    named = word_embeddings(model)
    if route == "inputs_embeds":
        module = named if found is None else found.module
        accepted = IDS[name] in inspect.signature(model.forward).parameters
        return Slot(name, module) if accepted and module is not None else None
    if route == "get_input_embeddings":
        found = next((c for c in calls.seen if c.module is named and name == "input_ids"), None)
    if found is None:
        return None
    return Slot(name, found.module, found.number, tuple(found.ids.shape) == tuple(ids.shape[::-1]) != ids.shape)


def _table(model: nn.Module, ids: Tensor, exact: Sequence[_Call]) -> _Call | None:
    """The call that looks up words, of those with exactly the ids."""
    # Tables of positions may be called with the ids too, for their shape alone (BART's are).
    named = word_embeddings(model)
    own = [c for c in exact if c.module is named]
    alike = [c for c in exact if _rows_of(c.module) == _rows_of(named)]
    whole = [c for c in exact if _rows_of(c.module) > int(ids.max())]
    return next(iter([*own, *alike, *whole]), None)


def _rows_of(module: nn.Module | None) -> int:
    weight = getattr(module, "weight", None)
    return len(weight) if isinstance(weight, Tensor) else 0


def _names(model: nn.Module, slots: Sequence[Slot | None]) -> str:
    wanted = {s.module for s in slots if s is not None}
    return ", ".join(name for name, module in model.named_modules() if module in wanted)


@contextmanager
def _hooks(slots: Sequence[Slot], change: Any) -> Iterator[None]:
    """``change(i, output)`` sees, and where it returns a tensor replaces, the output of slot ``i``."""
    counts: dict[nn.Module, int] = {}
    wanted = {(s.module, s.call): i for i, s in enumerate(slots)}

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        number = counts.get(module, 0)
        counts[module] = number + 1
        i = wanted.get((module, number))
        if i is None:
            return None
        first = output[0] if isinstance(output, tuple) else output
        new = change(i, first)
        if new is None:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    handles = [m.register_forward_hook(hook) for m in dict.fromkeys(s.module for s in slots)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _straight(embeddings: Tensor, turned: bool) -> Tensor:
    return embeddings.transpose(0, 1) if turned else embeddings


def _lookup(module: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found = module(ids)
    vectors: Tensor = found[0] if isinstance(found, tuple) else found
    return vectors


def repeated(inputs: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """The inputs of one example ``batch`` times."""
    if batch == 1:
        return dict(inputs)
    return {
        name: value.expand(batch, *value.shape[1:]) if isinstance(value, Tensor) and value.shape[:1] == (1,) else value
        for name, value in inputs.items()
    }


def run(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """One forward pass without a cache, which nothing here reads."""
    accepted = inspect.signature(model.forward).parameters
    extra = {"use_cache": False} if "use_cache" in accepted and "use_cache" not in inputs else {}
    with model_errors(model, inputs):
        return model(**inputs, **extra)
