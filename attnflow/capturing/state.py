"""Making a model ready for capture, and putting back everything that was touched, whatever happens."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from attnflow.capturing import bands, boundaries, interface, registered, rows
from attnflow.capturing.session import ACTIVE, Session, watching
from attnflow.capturing.survey import Site
from attnflow.inputs import running
from attnflow.inputs.running import evaluating, lock_of, parts_of, uncompiled

_IMPLEMENTATION = "_attn_implementation_internal"

_guard = threading.RLock()
_switched: dict[int, tuple[Any, Any, int]] = {}
_stood: dict[tuple[bool, str], tuple[Any, int]] = {}
_open: dict[int, tuple[int, ExitStack]] = {}
"""What captures that are going on have to put back, and the thread of each."""


def _forked() -> None:
    """In a forked child the other threads are gone: so are their locks, and what they changed is put back."""
    global _guard
    _guard = threading.RLock()
    running.renew_locks()
    for key, (thread, stack) in list(_open.items()):
        if thread != threading.get_ident():
            _open.pop(key)
            stack.close()


if hasattr(os, "register_at_fork"):
    # Held over the fork, so that no capture is half set up or half undone in the child.
    os.register_at_fork(
        before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_forked
    )


@contextmanager
def uninterrupted() -> Iterator[list[Any]]:
    """Ctrl-C waits, in the list, until the block is over, so that the block takes effect as a whole."""
    waiting: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield waiting
        return
    try:
        signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
        yield waiting
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[0])


@contextmanager
def prepared(
    model: nn.Module, session: Session, *, eager: bool = True, hooks: bool = True, dropout: bool = False
) -> Iterator[None]:
    """Switch ``model`` over to ``session`` for the time of the block.

    Switched and put back: the attention implementation of every config, dropout (the training flags; not with
    ``dropout=True``), compiled calls, hooks, the key in transformers' interface.
    """
    undo = ExitStack()
    token = None
    try:  # twice, because a Ctrl-C may come just before the first clean-up is under way
        try:
            with uninterrupted() as waiting:
                lock = lock_of(model)
                while not lock.acquire(timeout=0.2):
                    if waiting:
                        raise KeyboardInterrupt
                undo.callback(lock.release)
                with _guard:
                    inner = undo.enter_context(ExitStack())
                    _open[id(session)] = (threading.get_ident(), inner)
                    _switch(model, session, inner, eager, hooks, dropout)
                session.thread, session.outer = threading.get_ident(), ACTIVE.get()
                token = ACTIVE.set(session)
            yield
        finally:
            _undone(undo, session, token)
    finally:
        _undone(undo, session, token)


def _switch(model: nn.Module, session: Session, stack: ExitStack, eager: bool, hooks: bool, dropout: bool) -> None:
    found = configs(model)
    stack.enter_context(_same_parts(model, found))
    if not dropout:
        stack.enter_context(evaluating(model))
    stack.enter_context(uncompiled(model))
    if eager:
        loaded = [loaded_with(c) for c in found]
        makers: dict[str, Callable[[Any], Any]] = {
            n: functools.partial(registered.checked, n) for n in loaded if n is not None and registered.is_own(n)
        }
        kernel = rows.KERNEL if rows.kept_by(session.survey, loaded, session) else None
        stack.enter_context(_standing_in(makers if kernel is None else {**makers, kernel: rows.beside}))
        stack.enter_context(_implementation(found, "eager", kernel))
    stack.enter_context(listening(model, session) if hooks else _same_hooks(model))
    stack.enter_context(_standing_in({"eager": interface.dispatching}, everywhere=True))


def _undone(undo: ExitStack, session: Session, token: Any) -> None:
    with uninterrupted():
        if token is not None and ACTIVE.get() is session:
            ACTIVE.reset(token)
        with _guard:
            _open.pop(id(session), None)
            undo.close()


def configs(model: nn.Module) -> list[Any]:
    """Every config object in the model that names an attention implementation, each once."""
    found: dict[int, Any] = {}
    # A module that has no config is asked by its dictionary: to look for a name that is not there takes it long.
    modules = parts_of(model)
    todo = [getattr(m, "config", None) for m in modules if "config" in m.__dict__ or hasattr(type(m), "config")]
    while todo:
        config = todo.pop()
        if config is None or id(config) in found or not hasattr(config, _IMPLEMENTATION):
            continue
        found[id(config)] = config
        todo += [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]
    return list(found.values())


@contextmanager
def _standing_in(makers: Mapping[str, Callable[[Any], Any]], everywhere: bool = False) -> Iterator[None]:
    """Stand in for attention functions of transformers by name; the last capture to go puts them back.

    Each function is made of the one whose place it takes. ``everywhere``: also in modelling files that have a list of
    functions of their own.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    mapping = AttentionInterface._global_mapping if everywhere else ALL_ATTENTION_FUNCTIONS._local_mapping
    entered: list[str] = []
    try:
        with _guard:
            for name, make in makers.items():
                before, users = _stood.get((everywhere, name), (mapping.get(name), 0))
                _stood[everywhere, name] = (before, users + 1)
                entered.append(name)
                if users == 0:
                    mapping[name] = make(before if everywhere else ALL_ATTENTION_FUNCTIONS.get(name))
        yield
    finally:
        with _guard:
            for name in entered:
                before, users = _stood.pop((everywhere, name))
                if users > 1:
                    _stood[everywhere, name] = (before, users - 1)
                elif before is None:
                    mapping.pop(name, None)
                else:
                    mapping[name] = before


@contextmanager
def _implementation(found: Sequence[Any], name: str, but: str | None = None) -> Iterator[None]:
    """Switch all of a model's configs but those of one implementation.

    Two models may share a config, so the first to come switches it and the last to go puts it back.
    """
    mine = [c for c in found if not registered.is_own(n := loaded_with(c)) and (but is None or n != but)]
    entered: list[Any] = []
    try:
        with _guard:
            for config in mine:
                _, old, users = _switched.get(id(config), (config, getattr(config, _IMPLEMENTATION), 0))
                _switched[id(config)] = (config, old, users + 1)
                entered.append(config)
                setattr(config, _IMPLEMENTATION, name)
        yield
    finally:
        with _guard:
            for config in entered:
                _, old, users = _switched[id(config)]
                if users > 1:
                    _switched[id(config)] = (config, old, users - 1)
                else:
                    setattr(config, _IMPLEMENTATION, old)
                    del _switched[id(config)]


def loaded_with(config: Any) -> str | None:
    """The attention implementation that a config had before any capture switched it."""
    kept = _switched.get(id(config))
    value = kept[1] if kept is not None else getattr(config, _IMPLEMENTATION, None)
    return value if isinstance(value, str) else None


def implementations(model: nn.Module) -> str:
    """The attention implementations that a model was loaded with."""
    return ", ".join(sorted({n for c in configs(model) if (n := loaded_with(c))})) or "its own"


@contextmanager
def listening(model: nn.Module, session: Session) -> Iterator[None]:
    """Let the session hear of every run of the model and of its attention modules."""
    found = boundaries.bounds(model, session.survey)
    with ExitStack() as stack:

        def add(register: Callable[..., Any], hook: Callable[..., Any], **options: Any) -> None:
            stack.callback(register(hook, **options).remove)

        stack.callback(boundaries.remove, found, session)
        boundaries.install(found, session)
        for site in session.survey.sites.values():
            enter, leave = _site_hooks(session, site)
            add(site.module.register_forward_pre_hook, enter, with_kwargs=True)
            add(site.module.register_forward_hook, leave, always_call=True)
        yield


@contextmanager
def _same_parts(model: nn.Module, found: Sequence[Any]) -> Iterator[None]:
    """BigBird puts other attention modules in place of its own for a short text, for good: put them back."""
    kinds = [getattr(c, "model_type", "") for c in found]
    if not set(kinds) & bands.REPLACING:
        yield
        return
    parts = [(m, dict(m._modules), m.__dict__.get("attention_type")) for m in model.modules()]
    written = [(c, c.attention_type) for c in found if hasattr(c, "attention_type")]
    try:
        yield
    finally:
        for module, children, kind in parts:
            module._modules.update(children)
            if kind is not None:
                module.__dict__["attention_type"] = kind
        for config, kind in written:
            config.attention_type = kind


@contextmanager
def _same_hooks(model: nn.Module) -> Iterator[None]:
    """transformers puts hooks on a model for good when it is first asked for ``output_attentions``: take them off."""
    before = [(m, set(m.__dict__), set(m._forward_hooks)) for m in model.modules()]
    try:
        yield
    finally:
        for module, names, hooks in before:
            for number in set(module._forward_hooks) - hooks:
                del module._forward_hooks[number]
            for name in set(module.__dict__) - names:
                del module.__dict__[name]


def _site_hooks(session: Session, site: Site) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if watching(module) is session:
            session.enter_site(site, args, kwargs)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if watching(module) is session:
            session.leave_site(site)

    return enter, leave


@contextmanager
def grad_mode(gradients: bool) -> Iterator[None]:
    """With gradients the graph is needed, whatever mode the caller is in; without, it is only memory."""
    before = torch.is_grad_enabled()
    try:
        if gradients:
            with torch.inference_mode(False), torch.enable_grad():
                yield
        else:
            with torch.no_grad():
                yield
    finally:
        torch.set_grad_enabled(before)  # also if a Ctrl-C came between the two
