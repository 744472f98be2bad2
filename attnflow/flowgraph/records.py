"""What a page of attention flow is made of."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.errors import SelectionError
from attnflow.relevance import Relevance
from attnflow.reprs import one_line
from attnflow.scoring.network import F64, Network
from attnflow.select import pick_layer, pick_position
from attnflow.tokens import Grouping

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """What lies between two levels of nodes: one attention layer of one tower."""

    tower: str
    layer: int


FLOW = "flow"
"""The row of bars that belongs to the graph."""


@one_line
@dataclass(frozen=True, eq=False)
class PairFlow:
    """One maximum flow, from an output to one input, pruned to its strongest edges.

    Attributes:
        value: the flow, which is also the capacity of each cut.
        edges: ``[m, 3]`` rows (h, i, k): from node *i* at height *h* + 1 to node *k* at height *h*; strongest first.
        flow: ``[m]`` what they carry.
        count: how many edges carry flow, with those left out.
        share: the share that the kept edges have of the sum over all edges.
        cuts: for "source" and "sink" the edges (h, i, k) of the minimum cut nearest to it.
        bound: what the value is equal to: "output" (all that leaves the output), "input" (all that enters the
            input at the first layer), or "between".
    """

    value: float
    edges: Ints
    flow: F64
    count: int
    share: float
    cuts: Mapping[str, tuple[tuple[int, int, int], ...]]
    bound: str


@one_line
@dataclass(frozen=True, eq=False)
class Output:
    """An output position (number ``row`` of the output positions) at a layer (``layer`` is its true number).

    ``scores[method]`` is one number per input, ``words[method]`` one per input word; ``special[method]`` the share that
    special tokens have of it. Methods without a score for this output are left out.
    """

    layer: int
    row: int
    scores: Mapping[str, F64]
    words: Mapping[str, F64]
    special: Mapping[str, float]


@one_line
@dataclass(frozen=True)
class Curve:
    """Rank correlation of one method with one reference, layer by layer."""

    method: str
    reference: str
    kind: str
    layers: tuple[int, ...]
    values: tuple[float, ...]


@one_line
@dataclass(frozen=True, eq=False)
class FlowGraph:
    """The network of one run, outputs with their scores, and the flows of chosen pairs: all that a page shows.

    Attributes:
        net: the network.
        capacities: ``[steps, n, n]``: rows are the upper nodes, columns the lower ones.
        residual: ``[steps, n]`` the part of the capacity from node *i* to itself that is residual connection.
        levels: which layer each step is.
        outputs: what can be selected; the first is the one asked for.
        pairs: flows by (index of the output, input).
        methods: name and a line of settings for each row of bars.
        of_inputs: those of them that score the inputs as such, whatever the output.
        words: which inputs make up which word.
        curves: correlations with other methods.
        notes: what else a reader must know.
        model: name of the model.
        image: the input image, ``[height, width, 3]`` bytes, where there was one.
        grid: rows and columns of its patches.
        patches: the input position of each patch, in reading order.
        heads: how the heads were brought down to one matrix: "mean", "max", "min", "head 3"; "together" for edges that
            hold what all heads gave.
        edges: what the matrices hold: "attention", "alti", …
        fusions: graphs of the same input with other heads, or with other edges.
        head_count: how many heads the attention had; 0 where they were one matrix already.
        as_words: the page opens with words in place of tokens.
        with_special: the page opens with special tokens shown.
        predicted: what the model predicted, in a sentence; "" where it was not asked.
        informative: for each method, whether its scores of the first output say something about this text.
        rounding: those of the methods whose scores are rounding error; see :class:`attnflow.Relevance`.
        predicts: for each output of a model that generates, the token that follows it; None for other models.
    """

    net: Network
    capacities: F64
    residual: F64
    levels: tuple[Level, ...]
    outputs: tuple[Output, ...]
    pairs: Mapping[tuple[int, int], PairFlow]
    methods: Mapping[str, str]
    of_inputs: frozenset[str]
    words: Grouping
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    model: str = ""
    image: npt.NDArray[np.uint8] | None = None
    grid: tuple[int, int] = (0, 0)
    patches: tuple[int, ...] = ()
    heads: str = "mean"
    edges: str = "attention"
    fusions: tuple[FlowGraph, ...] = ()
    head_count: int = 0
    as_words: bool = False
    with_special: bool = True
    predicted: str = ""
    informative: Mapping[str, str] = field(default_factory=dict)
    rounding: frozenset[str] = frozenset()
    predicts: tuple[str, ...] | None = None

    @property
    def complete(self) -> bool:
        """True if every output at every layer is there, with the flows to all inputs."""
        everything = len(self.net.layers) * len(self.net.rows)
        return len(self.outputs) == everything and len(self.pairs) == everything * self.net.size

    def plot(
        self,
        layer: int = -1,
        position: int | str | None = None,
        source: int | str | None = None,
        ax: Axes | None = None,
    ) -> Axes:
        """One flow as a graph for a paper; see :func:`attnflow.views.plot.plot_flow`."""
        from attnflow.views.plot import plot_flow

        return plot_flow(self, layer, position, source, ax)

    def to_html(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False) -> str:
        """The self-contained page; also written to ``path`` where one is given."""
        from attnflow.views.html import flow_page

        text = flow_page(self)
        if path is not None:
            files.write_bytes(files.as_path(path), text.encode(), overwrite)
        return text

    def _repr_html_(self) -> str:
        from attnflow.formats import frame
        from attnflow.views.html import flow_page

        return frame(flow_page(self), 900)

    def find(self, layer: int = -1, position: int | str | None = None) -> int:
        """The index of an output; ``position=None`` takes that of the first output."""
        number = self.net.layers[pick_layer(layer, self.net.layers)]
        row = self.outputs[0].row if position is None else pick_position(position, self.net.queries)
        for t, output in enumerate(self.outputs):
            if (output.layer, output.row) == (number, row):
                return t
        raise SelectionError(
            f"Layer {number}, position {row} is not one of the {len(self.outputs)} outputs of this graph. "
            f"Ask for it:  flow_graph(attention, layer={number}, position={row})"
        )


def settings_line(r: Relevance) -> str:
    """The choices behind a result in one line."""
    hidden = ("notes", "report", "position", "position_token", "certificate", "upper")
    chosen = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.settings.items() if k not in hidden}
    return ", ".join(f"{k}={v}" for k, v in chosen.items() if np.ndim(v) == 0)
