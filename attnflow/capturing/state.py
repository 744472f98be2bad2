"""Making a model ready for capture, and putting back everything that was touched, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from attnflow.capturing import interface
from attnflow.capturing.session import ACTIVE, Session
from attnflow.capturing.survey import Site
from attnflow.errors import CaptureError

_IMPLEMENTATION = "_attn_implementation_internal"

_guard = threading.RLock()
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_switched: dict[int, tuple[Any, Any, int]] = {}


def unwrap(model: Any) -> nn.Module:
    """The module to capture from: what ``torch.compile`` wrapped, a pipeline's model."""
    if isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        return inner if isinstance(inner, nn.Module) else model
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        raise CaptureError(
            f"model is a {type(model).__name__}, and capture takes the model inside it:  "
            f"capture({type(model).__name__.lower()}.model, …)"
        )
    raise CaptureError(
        f"model is a {type(model).__name__}, not a torch module. Load one:  model = AutoModel.from_pretrained(name)"
    )


def lock_of(model: nn.Module) -> threading.RLock:
    """One lock a model: two captures of the same model run after one another."""
    with _guard:
        return _locks.setdefault(model, threading.RLock())


@contextmanager
def prepared(
    model: nn.Module, session: Session, *, eager: bool = True, hooks: bool = True, dropout: bool = False
) -> Iterator[None]:
    """Switch ``model`` over to ``session`` for the time of the block.

    Switched and put back: the attention implementation of every config, dropout (the training flags; not with
    ``dropout=True``), compiled calls, hooks, the key in transformers' interface.
    """
    with ExitStack() as stack:
        stack.enter_context(lock_of(model))
        if not dropout:
            stack.enter_context(_evaluating(model))
        stack.enter_context(_uncompiled(model))
        if eager:
            session.implementations = {id(c): getattr(c, _IMPLEMENTATION) for c in configs(model)}
            stack.enter_context(_implementation(model, "eager"))
        stack.enter_context(_watched(model, session) if hooks else _same_hooks(model))
        stack.enter_context(interface.installed())
        token = ACTIVE.set(session)
        stack.callback(ACTIVE.reset, token)
        yield


def configs(model: nn.Module) -> list[Any]:
    """Every config object in the model that names an attention implementation, each once."""
    found: dict[int, Any] = {}
    todo = [getattr(m, "config", None) for m in model.modules()]
    while todo:
        config = todo.pop()
        if config is None or id(config) in found or not hasattr(config, _IMPLEMENTATION):
            continue
        found[id(config)] = config
        todo += [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]
    return list(found.values())


@contextmanager
def _implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Two models may share a config, so the first to come switches it and the last to go puts it back."""
    mine = configs(model)
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


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off: it is applied to the weights before they are seen."""
    training = [m for m in model.modules() if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _uncompiled(model: nn.Module) -> Iterator[None]:
    """``model.compile()`` keeps the compiled call on the module; hooks and taps need the plain one."""
    compiled = [(m, m._compiled_call_impl) for m in model.modules() if m._compiled_call_impl is not None]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


@contextmanager
def _watched(model: nn.Module, session: Session) -> Iterator[None]:
    with ExitStack() as stack:

        def add(register: Callable[..., Any], hook: Callable[..., Any], **options: Any) -> None:
            stack.callback(register(hook, **options).remove)

        add(model.register_forward_pre_hook, session.enter_model, with_kwargs=True, prepend=True)
        add(model.register_forward_hook, session.leave_model, always_call=True)
        encoder = _encoder(model)
        if encoder is not None:
            # generate() runs the encoder by itself, before the model.
            add(encoder.register_forward_pre_hook, _alone(session), with_kwargs=True)
        for site in session.survey.sites.values():
            enter, leave = _site_hooks(session, site)
            add(site.module.register_forward_pre_hook, enter, with_kwargs=True)
            add(site.module.register_forward_hook, leave, always_call=True)
        yield


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


def _encoder(model: nn.Module) -> nn.Module | None:
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    try:
        found = model.get_encoder()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return found if isinstance(found, nn.Module) and found is not model else None


def _alone(session: Session) -> Callable[..., None]:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if session.depth == 0 and ACTIVE.get() is session:
            session.note_inputs(module, args, kwargs)

    return note


def _site_hooks(session: Session, site: Site) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if ACTIVE.get() is session:
            session.enter_site(site, args, kwargs)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if ACTIVE.get() is session:
            session.leave_site(site)

    return enter, leave


@contextmanager
def grad_mode(gradients: bool) -> Iterator[None]:
    """With gradients the graph is needed, whatever mode the caller is in; without, it is only memory."""
    if not gradients:
        with torch.no_grad():
            yield
        return
    with torch.inference_mode(False), torch.enable_grad():
        yield
