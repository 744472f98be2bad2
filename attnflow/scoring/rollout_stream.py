"""Rollout while the model runs, for inputs that are too long to keep every layer's matrix.

:func:`rollout_matrix` carries the running product, n² numbers whatever the depth. :func:`rollout_row` gives one
output position without any n × n matrix: it keeps the queries and keys of each layer and goes from the top layer
down, computing weights in blocks of rows. Both give what ``rollout(capture(...))`` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from attnflow.attention import with_sink
from attnflow.capturing import plain
from attnflow.capturing.capture import run
from attnflow.capturing.notes import name_of
from attnflow.capturing.reduce import Reduction
from attnflow.capturing.rows import weights_of
from attnflow.capturing.session import Call, Lazy, Record, Session
from attnflow.capturing.survey import Survey, is_plain, survey
from attnflow.capturing.towers import beside_text
from attnflow.errors import CaptureError, SelectionError, ShapeError
from attnflow.heads import Heads, check_heads
from attnflow.inputs.encode import Inputs, encode
from attnflow.inputs.running import unwrap
from attnflow.numbers import whole
from attnflow.reprs import one_line
from attnflow.row_sums import check_sinks, divided, slack_of
from attnflow.scoring.network import check_shares
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Tokens

STORED_BYTES = 1 << 28
"""Above this size (256 MiB) of all layers' matrices, rollout of one layer is streamed."""


@one_line
@dataclass(frozen=True, eq=False)
class Streamed:
    """Rollout of one example.

    Attributes:
        scores: ``[queries, keys]``, or ``[keys]`` for one position: how much each output position draws on each input.
        tokens: names of the columns; the last is the sink's where the model has one and it was kept.
        queries: names of the rows.
        layers: numbers of the layers that were multiplied.
        model, route, notes, settings: as in :class:`attnflow.Attention`.
        heads, residual, start_layer, position: as in :class:`attnflow.Relevance`.
    """

    scores: npt.NDArray[np.float32]
    tokens: Tokens
    queries: Tokens
    layers: tuple[int, ...]
    model: str
    route: str
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    heads: Heads
    residual: float | Sequence[float]
    start_layer: int
    position: int | None = None


def too_long(model: Any, tokenizer: Any = None, text: Any = None, inputs: Mapping[str, Any] | None = None) -> bool:
    """Whether keeping every layer's matrix would take more than ``STORED_BYTES``, and streaming is possible."""
    module = unwrap(model)
    found = survey(module)
    towers = {s.tower for s in found.sites.values()}
    if len(towers) != 1 or getattr(getattr(module, "config", None), "is_encoder_decoder", False):
        return False
    given = encode(module, tokenizer, text, inputs=inputs)
    return len(found.sites) * len(given) * given.length**2 * 4 > STORED_BYTES


def rollout_matrix(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    residual: float | Sequence[float] = 0.5,
    start_layer: int = 0,
    layer: int | None = None,
    heads: Heads = "mean",
    sinks: str = "keep",
    block: int | None = None,
) -> Streamed | list[Streamed]:
    """Rollout of all positions at ``layer`` (the last by default), multiplied while the model runs.

    ``scores[i, j]`` is how much output position *i* draws on input position *j*; rows sum to one.

    >>> from transformers import BertConfig, BertModel
    >>> small = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=30)
    >>> rollout_matrix(BertModel(BertConfig(**small)), None, [5, 6, 7]).scores.sum(-1).round(5)
    array([1., 1., 1.], dtype=float32)
    """
    job = _job(model, tokenizer, text, inputs, residual, start_layer, layer, heads, sinks, block)
    running = _Running(job)
    job.session.consume = running.take
    _, notes = run(job.model, job.given, job.session, None, {})
    stop = job.settle(running.numbers)
    if stop != running.stop:
        raise SelectionError(
            f"layer={layer} counts from the top, but {type(job.model).__name__} calls one module for several layers, "
            f"so that the top is known only after the run. Give the layer's own number:  layer={stop}"
        )
    assert running.product is not None
    return _results(job, running.layers, running.product, notes, running.sink)


def rollout_row(
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    position: int | str,
    inputs: Mapping[str, Any] | None = None,
    residual: float | Sequence[float] = 0.5,
    start_layer: int = 0,
    layer: int | None = None,
    heads: Heads = "mean",
    sinks: str = "keep",
    block: int | None = None,
) -> Streamed | list[Streamed]:
    """Rollout of one output position, with n · width numbers per layer and no n × n matrix.

    Models must call attention through transformers' interface for this; others carry the whole product, of which
    this is one row, and ``settings["stream"]`` says so.
    """
    job = _job(model, tokenizer, text, inputs, residual, start_layer, layer, heads, sinks, block)
    rows = [pick_position(position, tokens) for tokens in job.given.tokens]
    if any(s.eager is None for s in job.session.survey.sites.values()):
        found = rollout_matrix(
            model, tokenizer, text, inputs=inputs, residual=residual, start_layer=start_layer, layer=layer,
            heads=heads, sinks=sinks, block=block,
        )  # fmt: skip
        each = found if isinstance(found, list) else [found]
        cut = [_row_of(one, row, "product") for one, row in zip(each, rows, strict=True)]
        return cut if isinstance(found, list) else cut[0]
    carried, layers, sink, notes = _carried(job, [[row] for row in rows])
    return _results(job, layers, carried, notes, sink, rows)


def rollout_rows(
    model: Any,
    tokenizer: Any = None,
    *,
    rows: Sequence[int],
    inputs: Mapping[str, Any],
    residual: float | Sequence[float] = 0.5,
    heads: Heads = "mean",
) -> Streamed:
    """Rollout of some output positions of one input at the last layer, all carried down together.

    ``scores[r, j]`` is how much output position ``rows[r]`` draws on input position *j*. Nothing of n × n is held: the
    queries and keys of each layer are kept, and its weights are computed in blocks of rows. In a model with several
    towers (vision and text), it is the tower whose positions are those of the text.
    """
    job = _job(model, tokenizer, None, inputs, residual, 0, None, heads, "keep", None, several=True)
    if any(s.eager is None for s in job.session.survey.sites.values()):
        whole = rollout_matrix(model, tokenizer, inputs=inputs, residual=residual, heads=heads)
        assert isinstance(whole, Streamed)
        chosen = list(rows)
        return replace(whole, scores=whole.scores[chosen], queries=whole.queries.take(chosen))
    carried, layers, sink, notes = _carried(job, [rows])
    found = _results(job, layers, carried, notes, sink, rows=[0])
    one = found[0] if isinstance(found, list) else found
    scores = carried[0][:, list(job.given.positions[0])].cpu().numpy()
    if sink:
        scores = np.concatenate([scores, np.clip(1 - scores.sum(-1, keepdims=True), 0, None)], -1)
    return replace(one, scores=scores, queries=job.given.tokens[0].take(list(rows)), position=None)


def _carried(job: _Job, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, list[int], bool, Sequence[str]]:
    """Run the model once by its own kernel, and carry ``rows`` of each example down: ``[batch, rows, n]``."""
    job.session.lazy = []
    job.session.rows, job.session.row_length = (), job.given.length
    _, notes = run(job.model, job.given, job.session, None, {})
    return *_descend(job, rows), notes


@dataclass(eq=False)
class _Job:
    """What was asked for: the layers from ``start`` to ``layer``, of which negative ones count from the top."""

    model: nn.Module
    given: Inputs
    session: Session
    reduction: Reduction
    residual: float | Sequence[float]
    shares: npt.NDArray[np.float64]
    start: int
    layer: int | None
    sinks: str
    settings: dict[str, Any]

    def share(self, order: int) -> float:
        """The residual share of the layer that comes as number ``order``."""
        if self.shares.ndim > 0 and order >= len(self.shares):
            raise ShapeError(f"residual has shares for {len(self.shares)} layers, but there are more.")
        return float(self.shares if self.shares.ndim == 0 else self.shares[order])

    def settle(self, numbers: Sequence[int]) -> int:
        """The last layer to multiply, once the numbers of all layers that attended are known."""
        if self.shares.ndim and len(self.shares) != len(numbers):
            raise ShapeError(f"residual has shares for {len(self.shares)} layers, but there are {len(numbers)}.")
        stop = numbers[pick_layer(-1 if self.layer is None else self.layer, numbers)]
        if not any(self.start <= number <= stop for number in numbers):
            raise SelectionError(f"start_layer={self.start} is above layer {stop}, so that no layer is left.")
        return stop


def _numbered(call: Call, before: Sequence[int]) -> int:
    """The number of a layer; a module that is called again is a further layer, in the order of the calls."""
    return len(before) if call.layer in before else call.layer


def _job(
    model: Any, tokenizer: Any, text: Any, inputs: Any, residual: Any, start: int, layer: int | None, heads: Heads,
    sinks: str, block: int | None, several: bool = False,
) -> _Job:  # fmt: skip
    module = unwrap(model)
    shares = check_shares(residual)
    check_sinks(sinks)
    if heads == "all":
        raise SelectionError("heads='all', and rollout needs one matrix per layer. Use 'mean', 'max', 'min' or a head.")
    found = survey(module)
    towers = {s.tower for s in found.sites.values()}
    if len(towers) > 1 and not (several and _one_of_text(towers)):
        raise SelectionError(
            f"{type(module).__name__} has {len(towers)} towers ({', '.join(sorted(towers))}), and only one can be "
            "streamed. Keep the layers:  rollout(capture(model, tokenizer, text))"
        )
    depth = _depth(module, found)
    if not 0 <= whole(start, "start_layer") < depth:
        raise SelectionError(f"start_layer={start}, but the model has layers 0 to {depth - 1}.")
    if layer is not None and not -depth <= whole(layer, "layer") < depth:
        raise SelectionError(f"layer={layer}, but the model has layers 0 to {depth - 1}.")
    given = encode(module, tokenizer, text, inputs=inputs)
    reduction = Reduction(check_heads(heads))
    session = Session(found, reduction, block=block)
    settings = {"heads": heads, "sinks": sinks, "residual": residual, "start_layer": start, "layer": layer}
    settings |= given.settings
    return _Job(module, given, session, reduction, residual, shares, start, layer, sinks, settings)


def _depth(model: nn.Module, found: Survey) -> int:
    """How many layers a model has; those that share one module are known to its config alone."""
    said = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    return max([said if isinstance(said, int) else 0, *(s.depth for s in found.sites.values())])


def _one_of_text(towers: set[str]) -> bool:
    """True if one tower reads text and the others are beside it, as in models of images and text."""
    return len([t for t in towers if not beside_text(t, False)]) == 1


def _settled(weights: torch.Tensor, keys: int, sinks: str) -> tuple[torch.Tensor, bool]:
    """(weights whose rows sum to one, or to one less what a sink took; whether there is a sink)."""
    slack = slack_of(weights.dtype)
    if weights.shape[-1] == keys + 1:
        sink = bool((weights[..., -1] > slack).any()) and sinks == "keep"
        return divided(weights if sink else weights[..., :keys])[..., :keys], sink
    sums = weights.sum(-1)
    sink = bool((sums < 1 - slack).any())
    if sink and sinks == "error":
        raise CaptureError(f"Rows sum to {float(sums.min()):.3f}: a learned sink takes the rest. Pass sinks='keep'.")
    return (weights, True) if sink and sinks == "keep" else (divided(weights, sums), False)


def _last(job: _Job) -> int | None:
    """The number of the last layer as far as it is known before the run; None for the top."""
    sites = job.session.survey.sites.values()
    known = sorted({number for site in sites for number in (site.shared or (site.layer,))})
    if job.layer is None or job.layer == -1 or -job.layer > len(known):
        return None
    return job.layer if job.layer >= 0 else known[job.layer]


class _Running:
    """The product of all layers so far; ``numbers`` are those of all layers that were seen, multiplied or not."""

    def __init__(self, job: _Job) -> None:
        self.job = job
        self.product: torch.Tensor | None = None
        self.numbers: list[int] = []
        self.layers: list[int] = []
        self.sink = False
        self.last = _last(job)

    @property
    def stop(self) -> int:
        """The last layer that was multiplied in."""
        return self.layers[-1] if self.layers else -1

    def take(self, record: Record) -> None:
        """Multiply one layer in."""
        if record.call.kind == "cross" or record.queries != record.keys:
            raise CaptureError(
                f"{record.call.name} attends to {record.keys} positions from {record.queries}: only layers that look "
                "at their own sequence can be streamed. Keep the layers:  rollout(capture(model, tokenizer, text))"
            )
        order, layer = len(self.numbers), _numbered(record.call, self.numbers)
        self.numbers.append(layer)
        if layer < self.job.start or (self.last is not None and layer > self.last):
            return
        share = self.job.share(order)
        settled, sink = _settled(record.weights, record.keys, self.job.sinks)
        self.sink = self.sink or sink
        adjusted = settled.mul(1 - share)
        if self.product is None:
            adjusted.diagonal(dim1=-2, dim2=-1).add_(share)
            self.product = adjusted
        else:
            self.product = torch.baddbmm(self.product, adjusted, self.product, beta=share)
        self.layers.append(layer)


def _descend(job: _Job, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, list[int], bool]:
    """Carry vectors ``[batch, rows, n]`` from the top layer down to the inputs."""
    lazy = [one for one in job.session.lazy or [] if not beside_text(one.call.tower, False)]
    numbers: list[int] = []
    for one in lazy:
        numbers.append(_numbered(one.call, numbers))
    stop = job.settle(numbers)
    chosen = [(i, one) for i, one in enumerate(lazy) if job.start <= numbers[i] <= stop]
    first = chosen[0][1]
    batch, n = first.query.shape[0], first.query.shape[-2]
    carried = torch.zeros(batch, max(map(len, rows)), n, device=first.query.device)
    for example, wanted in enumerate(rows):
        for number, row in enumerate(wanted):
            carried[example, number, job.given.positions[example][row]] = 1
    sink = False
    with torch.no_grad():
        for order, one in reversed(chosen):
            share = job.share(order)
            mixed, found = _mixed(job, one, carried)
            sink = sink or found
            carried = carried * share + mixed * (1 - share)
    return carried, [numbers[i] for i, _ in chosen], sink


def _mixed(job: _Job, one: Lazy, carried: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """``carried @ weights`` of one layer, in blocks of the rows in which there is something to carry."""
    n = carried.shape[-1]
    size = plain.block_rows(one.query, one.key, job.session.block)
    out = torch.zeros_like(carried)
    sink = False
    # The output of the function is not needed, so a value of width one will do where it is nothing but mixed.
    value = one.value[..., :1] if is_plain(one.eager) else one.value
    for start in range(0, n, size):
        stop = min(n, start + size)
        part = carried[..., start:stop]
        if not bool(part.any()):
            continue
        # Without a mask no row of the block sees a key behind its last one.
        last = min(stop, one.key.shape[-2]) if one.causal else one.key.shape[-2]
        weights = weights_of(
            one.eager, one.module, one.query, one.key[:, :, :last], value[:, :, :last], one.mask, one.options,
            range(start, stop), one.causal,
        )  # fmt: skip
        settled, found = _settled(job.reduction.whole(weights), last, job.sinks)
        sink = sink or found
        out[..., :last] += torch.bmm(part, settled)
    return out, sink


def _results(
    job: _Job, layers: Sequence[int], product: torch.Tensor, notes: Sequence[str], sink: bool,
    rows: Sequence[int] | None = None,
) -> Streamed | list[Streamed]:  # fmt: skip
    out = []
    for example in range(len(job.given)):
        known = job.given.length == product.shape[-1]
        kept = list(job.given.positions[example]) if known else list(range(product.shape[-1]))
        tokens = job.given.tokens[example] if known else Tokens.numbered(product.shape[-1])
        scores = product[example][:, kept] if rows is not None else product[example][kept][:, kept]
        matrix = scores.cpu().numpy()
        queries = tokens
        if sink:
            matrix = np.concatenate([matrix, np.clip(1 - matrix.sum(-1, keepdims=True), 0, None)], -1)
            tokens = with_sink(tokens)
        one = Streamed(
            matrix, tokens, queries, tuple(layers), name_of(job.model),
            "interface" if job.session.survey.interface else "tap", (*job.given.notes, *notes),
            {**job.settings, "stream": "product" if rows is None else "row"}, job.reduction.heads, job.residual,
            job.start,
        )  # fmt: skip
        out.append(one if rows is None else _row_of(one, rows[example], "row", 0))
    return out[0] if job.given.single and len(out) == 1 else out


def _row_of(one: Streamed, row: int, how: str, at: int | None = None) -> Streamed:
    settings = {**one.settings, "stream": how, "position": row}
    return replace(one, scores=one.scores[row if at is None else at], settings=settings, position=row)
