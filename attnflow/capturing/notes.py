"""What a capture says about the model: its name, modules that gave nothing, the error where there is no attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from attnflow.capturing.session import Session
from attnflow.errors import CaptureError


def uncalled(session: Session) -> list[str]:
    """Notes on attention modules that exist and gave nothing."""
    notes = list(session.notes)
    sampled = session.survey.sampled
    if sampled:
        notes.append(
            f"{len(sampled)} modules of deformable attention (first: {sampled[0]}) were left out: they weigh sampled "
            "points and have no matrix of queries × keys."
        )
    every = session.survey.sites.values()
    sites = [s for s in every if session.layers is None or {s.layer, s.layer - s.depth} & session.layers]
    if session.layers is not None:
        towers = {s.tower for s in every} - {s.tower for s in sites}
        asked = ", ".join(map(str, sorted(session.layers)))
        left = f"; {', '.join(sorted(t for t in towers if t))} has none of them" if towers else ""
        notes.append(f"Only layers {asked} were asked for{left}.")
    silent = [s.name for s in sites if id(s.module) not in session.heard]
    if silent and not any(r.source == "output_attentions" for r in session.records):
        shown = ", ".join(silent[:3]) + (", …" if len(silent) > 3 else "")
        called = len(sites) - len(silent)
        notes.append(f"{called} of {len(sites)} attention modules were called; not called: {shown}.")
    return notes


def nothing(model: nn.Module, session: Session, routes: Sequence[str] = ("interface", "tap")) -> CaptureError:
    """The error for a model that showed no attention along any of ``routes``."""
    kind = model_type(model) or "no model type"
    if session.elsewhere:
        return CaptureError(
            f"0 runs of {type(model).__name__} were seen in this thread, and it was run in another "
            f"({', '.join(sorted(session.elsewhere))}): a capture sees the runs of its own thread. Start the thread "
            "with this one's context:  Thread(target=contextvars.copy_context().run, args=(model.generate,), kwargs=…)"
        )
    if not session.entries and not session.runs and session.tracing:
        return CaptureError(
            f"{type(model).__name__} was not run inside the with block:  with capture(model) as taken: model(**inputs)"
        )
    if session.outside:
        shapes, count = ", ".join(sorted({"×".join(map(str, s)) for s in session.outside})[:3]), len(session.outside)
        return CaptureError(
            f"{type(model).__name__} ({kind}) computed {count} softmaxes ({shapes}), none of them inside a module "
            "whose class or name says attention: which of them is attention cannot be told."
        )
    tried = ", ".join(routes) if session.route == "auto" else session.route
    count = len(session.survey.sites)
    return CaptureError(
        f"{type(model).__name__} ({kind}) computed no softmax attention in this run: {count} attention modules found, "
        f"0 calls seen (tried: {tried}). State-space, convolutional and linear-attention models have none; a model "
        "that computes it in a compiled kernel does not show it."
    )


def name_of(model: nn.Module) -> str:
    """The model's name where it has one, else its class."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    return name or type(model).__name__


def model_type(model: nn.Module) -> str:
    """The model type of its config, or an empty string."""
    return str(getattr(getattr(model, "config", None), "model_type", "") or "")
