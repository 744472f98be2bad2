"""What a comparison computes: methods, references and their options, checked before anything runs."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnflow.correlation import METHODS as CORRELATIONS
from attnflow.errors import SelectionError

Spec = str | Sequence[str] | Mapping[str, Any]

ATTENTION = {
    "raw": "attnflow.scoring.raw:raw",
    "rollout": "attnflow.scoring.rollout:rollout",
    "flow": "attnflow.scoring.flow.flow:flow",
}
_GRADIENT, _BLANKOUT = "attnflow.scoring.gradient:attribute", "attnflow.scoring.blankout:attribute"
REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "gradient": (_GRADIENT, {"method": "saliency"}),
    "gradient-paper": (_GRADIENT, {"method": "saliency", "reduce": "paper"}),
    "input_x_gradient": (_GRADIENT, {"method": "input_x_gradient"}),
    "integrated_gradients": (_GRADIENT, {"method": "integrated_gradients"}),
    "gradient_shap": (_GRADIENT, {"method": "gradient_shap"}),
    "blankout": (_BLANKOUT, {}),
    "blankout-mask": (_BLANKOUT, {"blank": "mask"}),
    "blankout-unk": (_BLANKOUT, {"blank": "unk"}),
    "blankout-pad": (_BLANKOUT, {"blank": "pad"}),
    "blankout-delete": (_BLANKOUT, {"blank": "delete"}),
    "blankout-mean-embedding": (_BLANKOUT, {"blank": "mean-embedding"}),
}
UNITS = ("token", "word")


@dataclass(frozen=True)
class Step:
    """One method or reference: its name in the table, the function and its options."""

    name: str
    kind: str
    options: dict[str, Any]
    function: Callable[..., Any] = field(compare=False)

    def settings(self) -> dict[str, Any]:
        """How it is told apart from another one of the same name."""
        return {"function": self.kind, **self.options}


@dataclass(frozen=True)
class Plan:
    """Everything that decides what the records are; see :func:`attnflow.compare`."""

    methods: tuple[Step, ...]
    references: tuple[Step, ...]
    correlations: tuple[str, ...]
    special: tuple[bool, ...]
    layers: tuple[int, ...] | None = None
    position: int | str | None = None
    unit: str = "token"
    k: int = 5
    max_length: int | None = None
    batch_size: int = 32
    on_error: str = "raise"

    def settings(self) -> dict[str, Any]:
        """Plain JSON: two runs with the same settings have the same records."""
        return {
            "methods": {s.name: s.settings() for s in self.methods},
            "references": {s.name: s.settings() for s in self.references},
            "correlations": list(self.correlations),
            "special_tokens": list(self.special),
            "layers": None if self.layers is None else list(self.layers),
            "position": self.position,
            "unit": self.unit,
            "k": self.k,
            "max_length": self.max_length,
        }


def make_plan(
    methods: Spec,
    references: Spec,
    correlation: str | Sequence[str],
    special_tokens: bool | None,
    layers: int | Sequence[int] | None,
    **rest: Any,
) -> Plan:
    """Check the names and options, and find the functions."""
    chosen = (correlation,) if isinstance(correlation, str) else tuple(correlation)
    for name in chosen:
        if name not in CORRELATIONS:
            raise SelectionError(f"correlation={name!r} is not known. Use one of: {', '.join(CORRELATIONS)}.")
    for argument, value, known in (("unit", rest["unit"], UNITS), ("on_error", rest["on_error"], ("raise", "skip"))):
        if value not in known:
            raise SelectionError(f"{argument}={value!r} is not known. Use one of: {', '.join(known)}.")
    return Plan(
        steps_of("methods", methods, {name: (where, {}) for name, where in ATTENTION.items()}),
        steps_of("references", references, REFERENCES),
        chosen,
        (False, True) if special_tokens is None else (special_tokens,),
        (layers,) if isinstance(layers, int) else None if layers is None else tuple(layers),
        **rest,
    )


def steps_of(argument: str, spec: Spec, known: Mapping[str, tuple[str, dict[str, Any]]]) -> tuple[Step, ...]:
    """The steps that ``spec`` names, with the options it gives; ``known`` has each one's function and own options."""
    given = {spec: {}} if isinstance(spec, str) else spec if isinstance(spec, Mapping) else {name: {} for name in spec}
    if not given:
        raise SelectionError(f"{argument} is empty: choose from {', '.join(known)}.")
    return tuple(_step(argument, name, value, known) for name, value in given.items())


def _step(argument: str, name: str, value: Any, known: Mapping[str, tuple[str, dict[str, Any]]]) -> Step:
    if callable(value):
        return Step(name, f"{value.__module__}.{value.__qualname__}", {}, value)
    options = dict(value or {})
    base = options.pop("method", name)
    if base not in known:
        raise SelectionError(
            f"{argument}: {base!r} is not known. Use {', '.join(known)}, or a function:  "
            f"{argument}={{{name!r}: my_function}}"
        )
    where, defaults = known[base]
    module, attribute = where.split(":")
    function = getattr(importlib.import_module(module), attribute)
    accepted = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = [p.name for p in accepted if p.name not in ("position", "layer", "tokens")]
    wrong = [o for o in options if o not in (*names, "score")]
    if wrong:
        raise SelectionError(f"{argument}: {name!r} has no option {wrong[0]!r}. Its options: {', '.join(names)}.")
    return Step(name, base, {**defaults, **options}, function)


def identity(model: Any, tokenizer: Any) -> dict[str, Any]:
    """What tells one model and tokenizer from another: names, and a digest of some of every weight."""
    if isinstance(model, str):
        return {"name": model}
    mark = hashlib.blake2b(digest_size=8)
    for name, weight in model.state_dict().items():
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, len(flat) // 16)].float().cpu().numpy()
        mark.update(f"{name}{tuple(weight.shape)}".encode() + some.tobytes())
    kind = type(tokenizer).__name__
    size = len(tokenizer) if tokenizer is not None and hasattr(tokenizer, "__len__") else None
    return {
        "name": str(getattr(model, "name_or_path", "")),
        "class": type(model).__name__,
        "weights": mark.hexdigest(),
        "tokenizer": None if tokenizer is None else f"{kind}, {size} tokens",
    }
