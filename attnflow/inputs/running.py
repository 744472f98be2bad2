"""A model to run as it is: unwrapped, one run at a time, dropout off, and put back afterwards."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from attnflow.errors import AttnFlowError, CaptureError, InputError
from attnflow.numbers import seed_of

_guard = threading.RLock()
_locks: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


def unwrap(model: Any) -> nn.Module:
    """The module to capture from: inside ``torch.compile``, a pipeline or a ``SentenceTransformer``."""
    return unpack(model)[0]


def unpack(model: Any, tokenizer: Any = None) -> tuple[nn.Module, Any]:
    """(the module to capture from, its tokenizer): what holds a model also knows its tokenizer."""
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"model is a {type(model).__name__} made by torch.jit: its code is a fixed graph, in which no attention "
            "module can be watched. Give the model that was traced."
        )
    if isinstance(model, torch.export.ExportedProgram) or _exported(model):
        raise CaptureError(
            f"model is a {type(model).__name__} made by torch.export: its code is a fixed graph, in which no attention "
            "module can be watched. Give the model that was exported."
        )
    if isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            return unpack(inner, tokenizer)
        from transformers import PreTrainedModel  # here, because it takes longer to import than all of attnflow

        if "sentence_transformers" in {c.__module__.split(".")[0] for c in type(model).__mro__}:
            held = next((m for m in model.modules() if isinstance(m, PreTrainedModel)), None)
            if held is not None:
                return held, tokenizer if tokenizer is not None else getattr(model, "tokenizer", None)
        return model, tokenizer
    inner = getattr(model, "model", None)
    if isinstance(inner, nn.Module):
        own = getattr(model, "tokenizer", None) or getattr(model, "processor", None)
        return unpack(inner, tokenizer if tokenizer is not None else own)
    raise CaptureError(
        f"model is a {type(model).__name__}, not a torch module. Load one:  model = AutoModel.from_pretrained(name)"
    )


def holds_model(source: Any) -> bool:
    """Whether ``source`` is a model, something that holds one (a pipeline), or the name of one."""
    return isinstance(source, nn.Module | str) or isinstance(getattr(source, "model", None), nn.Module)


def arguments(model: Any, tokenizer: Any = None, text: Any = None, call: str = "rollout") -> tuple[Any, Any, Any]:
    """(model, tokenizer, text) of a call, whatever the user gave for a model; all that is no model passes as it is.

    The name of a model, or the folder that it was saved to, is loaded with its tokenizer; a pipeline and a
    ``SentenceTransformer`` know theirs. As these need no tokenizer, the text may come second:
    ``rollout(pipeline, "a text")``. A model alone with a text and no tokenizer is an error with the line to paste.
    """
    model = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not holds_model(model):
        return model, tokenizer, text
    if isinstance(model, str):
        module, own = _by_name(model, tokenizer, text, call)
    elif isinstance(model, nn.Module) and type(model).__module__.startswith("transformers."):
        module, own = model, None  # the common case, as it is
    else:
        module, own = unpack(model)
    if isinstance(tokenizer, str | list) and text is None:
        if own is None:
            raise InputError(
                f"The second argument is the tokenizer, and it is a {type(tokenizer).__name__} "
                f"({str(tokenizer)[:30]!r}). The text comes third:  {_load_line(module)}; "
                f"{call}(model, tokenizer, text)"
            )
        tokenizer, text = None, tokenizer
    if isinstance(tokenizer, str):
        _refuse_name(tokenizer, text, call)
    if tokenizer is None and own is None and _is_text(text):
        _refuse_text(module, call)
        shown = text if isinstance(text, str) else text[0]
        shown = shown if len(shown) <= 30 else f"{shown[:29]}…"
        raise InputError(
            f"The text {shown!r} needs a tokenizer and tokenizer is None. Pass the model's own:  "
            f"{_load_line(module)}; {call}(model, tokenizer, text)"
        )
    return module, own if tokenizer is None else tokenizer, text


def _refuse_name(tokenizer: str, text: Any, call: str) -> None:
    """A str where the tokenizer belongs: the text, if the tokenizer stands behind it, else the name of one."""
    if hasattr(text, "convert_ids_to_tokens"):
        raise InputError(
            f"The second argument is the text {tokenizer[:30]!r} and the third the tokenizer. The order is model, "
            f"tokenizer, text:  {call}(model, tokenizer, text)"
        )
    raise InputError(
        f"The second argument is the tokenizer, and it is the str {tokenizer[:60]!r}. Load it by that name:  "
        f"tokenizer = AutoTokenizer.from_pretrained({tokenizer[:60]!r}); {call}(model, tokenizer, text)"
    )


def _refuse_text(module: Any, call: str) -> None:
    """A text for a model that reads none needs no tokenizer but another input."""
    reads = getattr(module, "main_input_name", "input_ids")
    if isinstance(reads, str) and reads not in ("input_ids", "inputs_embeds"):
        raise InputError(
            f"{type(module).__name__} reads {reads}, and a text was given:  {call}(model, None, {{{reads!r}: …}})"
        )


def _is_text(text: Any) -> bool:
    return isinstance(text, str) or (isinstance(text, list) and bool(text) and isinstance(text[0], str))


def _load_line(model: Any) -> str:
    """The line by which the tokenizer of a model is loaded; models that were made have no name."""
    name = getattr(model, "name_or_path", "") or "name"
    if type(model).__module__.startswith("attnflow.") and not os.path.isdir(name):
        return "tokenizer = attnflow.demo.tokenizer()"
    return f"tokenizer = AutoTokenizer.from_pretrained({name!r})"


def _by_name(name: str, tokenizer: Any, text: Any, call: str) -> tuple[Any, Any]:
    """The model of a name; a text in its place is noticed before anything is loaded."""
    if not name.strip() or "\n" in name or len(name.split()) > 3:
        raise InputError(
            f"The first argument is the model, and it is the text {name[:40]!r}. The order is model, tokenizer, "
            f"text:  {call}(model, tokenizer, text)"
        )
    from attnflow.models.loading import load

    return load(name)


def generates(model: Any) -> bool:
    """True if the model writes text: its last position predicts what comes next."""
    ask = getattr(model, "can_generate", None)
    return bool(ask()) if callable(ask) else False


@contextmanager
def model_errors(model: nn.Module, batch: Mapping[str, Any]) -> Iterator[None]:
    """Turn what transformers or torch raises for inputs that do not fit the model into an error that names the inputs.

    What the user's own code raises (a model, a hook, a callback) passes as it is, and so does a lack of memory.
    """
    try:
        yield
    except (AttnFlowError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if not any(f"{os.sep}{name}{os.sep}" in frames[-1].filename for name in ("torch", "transformers")):
            raise
        shapes = ", ".join(
            f"{name} {list(v.shape) if isinstance(v, torch.Tensor) else v!r}" for name, v in batch.items()
        )
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InputError(
            f"{type(model).__name__} cannot be run on {shapes}: {type(error).__name__}: {reason}"
        ) from error


def _exported(model: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(model, torch.fx.GraphModule) and not any(isinstance(m, PreTrainedModel) for m in model.children())


def renew_locks() -> None:
    """In a forked child nobody holds a lock any more."""
    global _guard, _locks
    _guard, _locks = threading.RLock(), WeakKeyDictionary()


def lock_of(model: nn.Module) -> threading.RLock:
    """One lock per model: two captures of the same model run after one another."""
    with _guard:
        return _locks.setdefault(model, threading.RLock())


def parts_of(model: nn.Module) -> list[nn.Module]:
    """``model.modules()`` by one loop: a capture asks for it several times, and nested generators take longer.

    >>> inner = nn.Linear(1, 1)
    >>> [type(m).__name__ for m in parts_of(nn.Sequential(inner, nn.ReLU(), inner))]
    ['Sequential', 'Linear', 'ReLU']
    """
    found: dict[nn.Module, None] = {}
    todo = [model]
    while todo:
        module = todo.pop()
        if module not in found:
            found[module] = None
            todo.extend(m for m in reversed(list(module._modules.values())) if m is not None)
    return list(found)


def named_parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """``model.named_modules(remove_duplicate=False)`` by one loop: each module at each of its places.

    >>> inner = nn.Linear(1, 1)
    >>> [name for name, _ in named_parts(nn.Sequential(inner, nn.ReLU(), inner))]
    ['', '0', '1', '2']
    """
    found: list[tuple[str, nn.Module]] = []
    todo = [("", model)]
    while todo:
        name, module = todo.pop()
        found.append((name, module))
        inside = [(f"{name}.{n}" if name else n, m) for n, m in module._modules.items() if m is not None]
        todo.extend(reversed(inside))
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout is off in here, because it changes the weights before they are seen; afterwards it is as it was."""
    training = [m for m in parts_of(model) if m.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def uncompiled(model: nn.Module) -> Iterator[None]:
    """``model.compile()`` keeps the compiled call on the module; hooks and taps need the plain one."""
    compiled = [(m, m._compiled_call_impl) for m in parts_of(model) if m._compiled_call_impl is not None]
    try:
        for module, _ in compiled:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in compiled:
            module._compiled_call_impl = call


@contextmanager
def undisturbed(model: Any) -> Iterator[nn.Module]:
    """The model itself, with dropout off and no compiled calls, which hooks do not reach; put back afterwards."""
    module = unwrap(model)
    with lock_of(module), evaluating(module), uncompiled(module):
        yield module


@contextmanager
def differentiable() -> Iterator[None]:
    """Gradients on, whatever the caller's context says."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Random numbers in here are the same every time; the caller's own are left as they were."""
    seed = seed_of(seed)
    state = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(state)
