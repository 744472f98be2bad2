"""Where a run of the model begins and ends.

A model is run by calling it, but also by ``model.forward(...)``, by the ``generate()`` of something around it, or by a
wrapper that calls it twice. So the forward of the model and of every Hugging Face model inside it is watched, for as
long as some capture lasts, and asks which session the calling thread has.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

from torch import nn

from attnflow.capturing.session import Session, watching
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
class _Forward:
    """Stands in for a module's ``forward`` while some session watches it."""

    module: nn.Module
    inner: Any
    own: bool
    sessions: list[tuple[Session, bool, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        session = watching(self.module)
        mine = next((s for s in self.sessions if s[0] is session), None)
        if session is None or mine is None:
            for other, _, _ in self.sessions:
                other.elsewhere.add(threading.current_thread().name)
            return self.inner(*args, **kwargs)
        _, wrapper, last = mine
        output = None
        with session.alone, session.here():
            session.enter_model(self.module, wrapper, args, kwargs)
            try:
                output = self.inner(*args, **kwargs)
            finally:
                session.leave_model(self.module, wrapper, last, output)
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self.module))
        return MethodType(type(self.module).forward, copied) if copied is not None else self.inner


_installed: dict[int, _Forward] = {}


def install(found: Sequence[Bound], session: Session) -> None:
    """Watch the forwards of a model; called and undone under the guard of :mod:`attnflow.capturing.state`."""
    for bound in found:
        module = bound.module
        session.watched.add(id(module))
        forward = _installed.get(id(module))
        if forward is None:
            own = "forward" in module.__dict__
            forward = _installed[id(module)] = _Forward(module, module.forward, own)
            module.__dict__["forward"] = forward
        forward.sessions.append((session, bound.wrapper, module is found[0].module))


def remove(found: Sequence[Bound], session: Session) -> None:
    """Take the session away; the last one to go puts each forward back."""
    for bound in found:
        forward = _installed.get(id(bound.module))
        if forward is None:
            continue
        forward.sessions[:] = [s for s in forward.sessions if s[0] is not session]
        if not forward.sessions:
            if forward.own:
                bound.module.__dict__["forward"] = forward.inner
            else:
                bound.module.__dict__.pop("forward", None)
            del _installed[id(bound.module)]
