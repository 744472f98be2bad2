"""Capture for people who run the model themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import nn

from attnflow.attention import Attention
from attnflow.capturing import generate
from attnflow.capturing.axes import Frame, grid_of, masks_of, virtual_tokens
from attnflow.capturing.blocks import assemble
from attnflow.capturing.edges.watch import watched
from attnflow.capturing.notes import name_of, nothing, uncalled
from attnflow.capturing.session import Record, Run, Session
from attnflow.capturing.state import prepared, uninterrupted
from attnflow.capturing.tap import tapped
from attnflow.errors import CaptureError
from attnflow.inputs.naming import name_ids
from attnflow.inputs.running import generates
from attnflow.tokens import Tokens


class Taken:
    """What was attended to while the model ran inside ``with capture(model) as taken:``.

    Call the model in any way: ``model(**batch)``, a pipeline around it, ``model.generate(...)``. Runs that continue
    one another through a key-value cache are put together: the rows of each generated token, against all keys so
    far, make one causal matrix.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> small = dict(n_layer=2, n_embd=8, n_head=2, vocab_size=9, bos_token_id=1, eos_token_id=2)
    >>> model = GPT2LMHeadModel(GPT2Config(**small)).eval()
    >>> from attnflow import capture
    >>> with capture(model) as taken:
    ...     out = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    >>> taken.attention
    Attention(2 layers × 6 tokens, heads=mean, route=interface, model=GPT2LMHeadModel)
    """

    def __init__(
        self, model: nn.Module, tokenizer: Any, session: Session, sinks: str, settings: Any, edges: str = "attention"
    ) -> None:
        self._model, self._tokenizer, self._session = model, tokenizer, session
        self._sinks, self._settings, self._edges = sinks, dict(settings), edges
        self._stack: ExitStack | None = None

    def __enter__(self) -> Taken:
        if self._stack is not None:
            raise CaptureError("This capture is in use already: make a new one for each with.")
        self._session.tracing = True
        try:
            with uninterrupted():
                self._stack = ExitStack()
                self._stack.enter_context(prepared(self._model, self._session))
                self._stack.enter_context(watched(self._session))
                self._stack.enter_context(tapped(self._session))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._close()
        finally:
            self._close()  # a Ctrl-C may have come before the first was under way

    def _close(self) -> None:
        with uninterrupted():
            if self._stack is not None:
                self._stack.close()
            self._stack = None

    @property
    def records(self) -> list[Record]:
        """Every call of attention, in order, as it was made; rows are queries, columns keys."""
        return self._session.records

    @property
    def attentions(self) -> list[Attention]:
        """One :class:`Attention` for each example of each run, in the order of the runs."""
        session = self._session
        if not session.tracing:
            raise CaptureError("This capture was never entered:  with capture(model) as taken: model(**inputs)")
        session.settle()
        if session.refused:
            raise session.refused[0]
        if not session.records:
            raise nothing(self._model, session)
        for record in session.records:
            if record.live is not None and record.live.grad is not None:
                gradient = record.live.grad
                record.gradient = gradient.reshape(-1, record.heads or gradient.shape[1], *gradient.shape[-2:])
        notes = uncalled(session)
        if session.elsewhere:
            names = ", ".join(sorted(session.elsewhere))
            notes.append(f"The model was also run in another thread ({names}): those runs are not in this capture.")
        return assemble_runs(self._model, self._tokenizer, session, self._sinks, self._settings, notes, self._edges)

    @property
    def attention(self) -> Attention:
        """The one :class:`Attention` there is."""
        found = self.attentions
        if len(found) != 1:
            raise CaptureError(
                f"One attention was asked for and {len(found)} were captured (runs × examples). Use:  taken.attentions"
            )
        return found[0]


def assemble_runs(
    model: nn.Module,
    tokenizer: Any,
    session: Session,
    sinks: str,
    settings: Mapping[str, Any],
    notes: Sequence[str],
    edges: str = "attention",
) -> list[Attention]:
    """One :class:`Attention` for each example of each run; runs that continue one another are put together."""
    out: list[Attention] = []
    for chain, records, given in generate.groups(session):
        frame = _frame(model, tokenizer, given, records)
        frame = replace(frame, survey=None if session.layers is None else session.survey)
        out += assemble(
            records, frame, sinks=sinks, heads=session.reduction.heads,
            model=name_of(model), settings={**settings, "runs": len(chain)}, notes=notes, edges=edges,
            generates=generates(model),
        )  # fmt: skip
    return out


def _frame(model: nn.Module, tokenizer: Any, given: Run, records: list[Record]) -> Frame:
    """What the model was given says how many examples there are and what their positions are called."""
    ids = given.inputs.get("input_ids")
    decoder = given.inputs.get("decoder_input_ids")
    pixels = given.inputs.get("pixel_values")
    lead = next((t for t in (decoder, ids, pixels) if t is not None), None)
    batch = int(lead.shape[0]) if lead is not None else min(int(r.weights.shape[0]) for r in records)
    tokens, kept = _named(tokenizer, ids, given.inputs.get("attention_mask"))
    decoder_tokens, decoder_kept = _named(tokenizer, decoder, given.inputs.get("decoder_attention_mask"))
    return Frame(
        batch, tokens, kept, int(ids.shape[1]) if ids is not None and ids.ndim == 2 else 0,
        decoder_tokens, decoder_kept, int(decoder.shape[1]) if decoder is not None else 0,
        tuple(pixels.shape) if pixels is not None else (), getattr(model, "config", None),
        grid_of(given.inputs), virtual_tokens(model), masks_of(given.inputs),
    )  # fmt: skip


def _named(
    tokenizer: Any, ids: torch.Tensor | None, mask: torch.Tensor | None
) -> tuple[tuple[Tokens, ...], tuple[tuple[int, ...], ...]]:
    if ids is None or ids.ndim != 2:
        return (), ()
    width = ids.shape[1]
    kept = []
    for row in range(ids.shape[0]):
        if mask is not None and mask.ndim == 2 and mask.shape[1] >= width and mask.shape[0] == ids.shape[0]:
            kept.append(tuple(torch.nonzero(mask[row, :width] != 0).flatten().tolist()))
        else:
            kept.append(tuple(range(width)))
    names = [name_ids(tokenizer, ids[i, list(p)].tolist(), None, i, p)[0] for i, p in enumerate(kept)]
    return tuple(names), tuple(kept)
