"""Where a run of the model begins and ends.

A model is run by calling it, but also by ``model.forward(...)``, by the ``generate()`` of something around it, or by a
wrapper that calls it twice. So the forward of the model and of every Hugging Face model inside it is watched, for as
long as some capture lasts, and asks which session the calling thread has.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn

from attnflow.capturing.session import Generation, Session, watching
from attnflow.capturing.survey import Survey


@dataclass(frozen=True)
class Bound:
    """A module whose forward is a run, or a part of one.

    ``wrapper`` is True for a class that is not transformers' own and only calls models that are inside it.
    """

    module: nn.Module
    wrapper: bool


def bounds(model: nn.Module, survey: Survey) -> list[Bound]:
    """The model itself, and every Hugging Face model inside it that has attention."""
    from transformers import PreTrainedModel  # here, because it takes longer to import than all of attnflow

    sites = [s.name for s in survey.sites.values()]
    inner = {
        name: module
        for name, module in model.named_modules()
        if name and isinstance(module, PreTrainedModel) and any(s.startswith(f"{name}.") for s in sites)
    }
    found = []
    for name, module in {"": model, **inner}.items():
        prefix = f"{name}." if name else ""
        own = [s for s in sites if s.startswith(prefix)]
        below = [f"{n}." for n in inner if n != name and n.startswith(prefix)]
        foreign = not type(module).__module__.startswith("transformers.models.")
        covered = bool(below) and all(any(s.startswith(b) for b in below) for s in own)
        found.append(Bound(module, foreign and covered))
    return found


@dataclass(eq=False)
class _Method:
    """Stands in for a method of a module while some session watches it."""

    module: nn.Module
    name: str
    inner: Any
    own: bool
    sessions: list[tuple[Session, bool, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = watching(self.module)
        mine = next((s for s in self.sessions if s[0] is session), None)
        if session is not None and mine is not None:
            return self.watched(session, *mine[1:], args, kwargs)
        for other, _, _ in self.sessions:
            other.elsewhere.add(threading.current_thread().name)
        return self.inner(*args, **kwargs)

    def watched(self, session: Session, wrapper: bool, last: bool, args: Any, kwargs: Any) -> Any:
        """The call, of which the session is told."""
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self.module))
        return MethodType(getattr(type(self.module), self.name), copied) if copied is not None else self.inner


class _Forward(_Method):
    """A run of the model, or of a part of it."""

    def watched(self, session: Session, wrapper: bool, last: bool, args: Any, kwargs: Any) -> Any:
        output = None
        with session.alone, session.here():
            session.enter_model(self.module, wrapper, args, kwargs)
            try:
                output = self.inner(*args, **kwargs)
            finally:
                session.leave_model(wrapper, last, output)
        return output


class _Generate(_Method):
    """A call of ``generate()``, whose runs belong together."""

    def watched(self, session: Session, wrapper: bool, last: bool, args: Any, kwargs: Any) -> Any:
        generation = Generation(_examples(args, kwargs), _ends(self.module, args, kwargs))
        output = None
        session.enter_generate(generation)
        try:
            output = self.inner(*args, **kwargs)
        finally:
            made = getattr(output, "sequences", output)
            ids = isinstance(made, torch.Tensor) and made.ndim == 2 and not made.is_floating_point()
            session.leave_generate(generation, made.detach().cpu() if ids and made is not None else None)
        return output


class _Prepare(_Method):
    """What ``generate()`` calls before each run, with all ids so far."""

    def watched(self, session: Session, wrapper: bool, last: bool, args: Any, kwargs: Any) -> Any:
        ids, mask = kwargs.get("input_ids", args[0] if args else None), kwargs.get("attention_mask")
        if session.generating and isinstance(ids, torch.Tensor) and ids.ndim == 2:
            now = session.generating[-1]
            now.history = ids.detach().cpu()
            own = isinstance(mask, torch.Tensor) and mask.ndim == 2 and kwargs.get("encoder_outputs") is None
            now.padding = mask.detach().cpu() if own else None
        return self.inner(*args, **kwargs)


_STANDING_IN = {"forward": _Forward, "generate": _Generate, "prepare_inputs_for_generation": _Prepare}
_installed: dict[tuple[int, str], _Method] = {}


def _examples(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """How many examples generate() was given."""
    first = {"inputs": args[0]} if args else {}
    lead = [v for v in {**first, **kwargs}.values() if isinstance(v, torch.Tensor) and v.ndim > 1]
    return max([int(v.shape[0]) for v in lead[:1]], default=1)


def _ends(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end a sequence."""
    own = getattr(module, "generation_config", None)
    config = kwargs.get("generation_config") or next((a for a in args[1:] if hasattr(a, "eos_token_id")), own)
    ends = kwargs.get("eos_token_id", getattr(config, "eos_token_id", None))
    ends = getattr(own, "eos_token_id", None) if ends is None else ends
    listed = ends.tolist() if isinstance(ends, torch.Tensor) else ends
    listed = listed if isinstance(listed, list | tuple) else [listed]
    return frozenset(int(i) for i in listed if i is not None)


def install(found: Sequence[Bound], session: Session) -> None:
    """Watch the forwards of a model; called and undone under the guard of :mod:`attnflow.capturing.state`."""
    for bound in found:
        module = bound.module
        session.watched.add(id(module))
        for name in _methods(module):
            method = _installed.get((id(module), name))
            if method is None:
                own = name in module.__dict__
                method = _STANDING_IN[name](module, name, getattr(module, name), own)
                _installed[id(module), name] = method
                module.__dict__[name] = method
            method.sessions.append((session, bound.wrapper, module is found[0].module))


def _methods(module: nn.Module) -> list[str]:
    generates = all(callable(getattr(type(module), n, None)) for n in _STANDING_IN)
    return list(_STANDING_IN) if generates else ["forward"]


def remove(found: Sequence[Bound], session: Session) -> None:
    """Take the session away; the last one to go puts each method back."""
    for bound in found:
        for name in _STANDING_IN:
            method = _installed.get((id(bound.module), name))
            if method is None:
                continue
            method.sessions[:] = [s for s in method.sessions if s[0] is not session]
            if not method.sessions:
                if method.own:
                    bound.module.__dict__[name] = method.inner
                else:
                    bound.module.__dict__.pop(name, None)
                del _installed[id(bound.module), name]
