"""Gradients of an answer's log-probability at the embeddings of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnflow.answers.reading import Run, takes
from attnflow.capturing.survey import survey
from attnflow.capturing.towers import beside_text
from attnflow.errors import CaptureError
from attnflow.inputs.running import differentiable, model_errors, undisturbed

LONG = 1024
"""From so many tokens on, each layer is computed again in the backward pass instead of being kept."""


def gradients(run: Run, spans: Sequence[tuple[int, int]], keep: bool | None = None) -> tuple[list[Tensor], Tensor]:
    """(for each span of answer tokens the gradient ``[positions, width]`` of its log-probability, the embeddings).

    The gradient is that at the word embeddings; for models of images and text at what goes into the first layer, where
    the image's patches stand among the words. ``keep``: hold all layers' states; by default for short inputs only.
    """
    if tuple(spans) in run.slopes:
        found, embeddings = run.slopes[tuple(spans)]
        return found, embeddings
    given = run.lean()
    if takes(run.model, "use_cache"):
        given["use_cache"] = False
    kept = run.positions < LONG if keep is None else keep
    with undisturbed(run.model) as model, differentiable(), ExitStack() as stack:
        if not kept:
            stack.enter_context(checkpointed(model))
        found = []
        leaf, logprobs = _forward(run, model, given)
        for first, last in spans:
            if found and not kept:
                leaf, logprobs = _forward(run, model, given)
            found.append(torch.autograd.grad(logprobs[first:last].sum(), leaf, retain_graph=kept)[0][0])
        run.slopes[tuple(spans)] = found, leaf.detach()[0]
        return found, leaf.detach()[0]


def _forward(run: Run, model: nn.Module, given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    leaves: list[Tensor] = []
    with _entrance(model, "pixel_values" in given, leaves), model_errors(model, given):
        outputs = model(**given)
    if not leaves:
        raise CaptureError(f"{type(model).__name__} does not call its input embeddings: use another method.")
    return leaves[0], run.logprobs(outputs)


@contextmanager
def _entrance(model: nn.Module, inside: bool, leaves: list[Tensor]) -> Iterator[None]:
    """The first time that the text comes in, as a leaf of the graph; an encoder comes before its decoder."""

    def fresh(x: Tensor) -> Tensor:
        leaf = x.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf.clone()  # some models scale it in place, which a leaf does not allow

    def after(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
        return fresh(out) if not leaves else None

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if leaves:
            return None
        if args:
            return (fresh(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": fresh(kwargs["hidden_states"])}

    if inside:
        handles = [_layers(model)[0].register_forward_pre_hook(before, with_kwargs=True)]
    else:
        # An encoder may have a table of its own, with the same rows as the model's.
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
        alike = [m for m in model.modules() if isinstance(m, type(table)) and _rows(m) == _rows(table)]
        handles = [m.register_forward_hook(after) for m in alike]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _rows(table: Any) -> int:
    return len(table.weight)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers of the towers that read text, in order."""
    towers = {s.tower: None for s in survey(model).sites.values() if not beside_text(s.tower, False)}
    out: list[nn.Module] = []
    for path in towers:
        holder = model.get_submodule(path)
        out += list(holder) if isinstance(holder, nn.ModuleList) else []
    return out


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Compute each layer again in the backward pass: only what goes into a layer is held. Put back afterwards.

    transformers' own switch works in training mode only, in which dropout is on.
    """
    changed: list[nn.Module] = []
    try:
        for layer in _layers(model):
            if "forward" in layer.__dict__:
                continue  # somebody has put a function of their own there
            layer.__dict__["forward"] = _again(layer.forward)
            changed.append(layer)
        yield
    finally:
        for layer in changed:
            layer.__dict__.pop("forward", None)


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run
