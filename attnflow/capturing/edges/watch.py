"""Which edges a capture keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attnflow.capturing.edges.decompose import Decomposition
from attnflow.capturing.edges.value_zeroing import ValueZeroing
from attnflow.capturing.session import Session, Watch
from attnflow.errors import SelectionError


def watch(model: nn.Module, session: Session, edges: str, mixing: bool) -> Watch | None:
    """What takes the calls of attention in; None for plain attention."""
    if edges == "gradient" and mixing:
        raise SelectionError(
            "edges='gradient' and mixing=True, but gradients and parts are not computed in one run. Capture the ratios "
            "apart:  capture(…, mixing=True)"
        )
    if edges == "gradient":
        return None
    if edges == "attention" and not mixing:
        return None
    if session.gradients or session.replace is not None:
        raise SelectionError(f"edges={edges!r} (mixing={mixing}) cannot be had together with gradients= or replace=.")
    if edges != "attention" and session.reduction.heads != "mean":
        raise SelectionError(
            f"edges={edges!r} and heads={session.reduction.heads!r}, but a part holds what all heads brought: leave "
            "heads= out."
        )
    if edges == "value_zeroing" and mixing:
        raise SelectionError(
            "edges='value_zeroing' and mixing=True, but only parts have a mixing ratio. Use edges='norm' or 'alti'."
        )
    return ValueZeroing(model, session) if edges == "value_zeroing" else Decomposition(model, session, edges, mixing)


@contextmanager
def watched(session: Session) -> Iterator[None]:
    """While the model runs, and at its end."""
    if session.watch is None:
        yield
        return
    with session.watch.around():
        yield
        session.watch.finish()
