"""What a comparison computes: methods, references and their options, checked before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnflow.correlation import METHODS as CORRELATIONS
from attnflow.errors import SelectionError
from attnflow.scoring.registry import MethodCall, Spec, calls

UNITS = ("token", "word")


@dataclass(frozen=True)
class Plan:
    """Everything that decides what the records are; see :func:`attnflow.compare`."""

    methods: tuple[MethodCall, ...]
    references: tuple[MethodCall, ...]
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
        calls("methods", methods, "attention"),
        calls("references", references, "model"),
        chosen,
        (False, True) if special_tokens is None else (special_tokens,),
        (layers,) if isinstance(layers, int) else None if layers is None else tuple(layers),
        **rest,
    )


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
