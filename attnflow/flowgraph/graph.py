"""From finished results and their attention to the graph of a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnflow.attention import Attention
from attnflow.flowgraph.bars import (
    Place,
    completed_bars,
    curves_of,
    given_bars,
    informative_lines,
    named,
    notes_of,
    of_inputs,
    output_of,
)
from attnflow.flowgraph.flows import pair_flows
from attnflow.flowgraph.heads import Room, head_count, name_of, ways
from attnflow.flowgraph.image import patches, pixels
from attnflow.flowgraph.records import FLOW, Curve, FlowGraph, Level, settings_line
from attnflow.heads import Heads
from attnflow.numbers import check_kind, check_kinds, truths
from attnflow.relevance import Relevance
from attnflow.scoring.network import F64, Network, Residual, Step, network, residual_of
from attnflow.scoring.registry import MethodCall, calls, names
from attnflow.scoring.source import reduced
from attnflow.select import pick_layer, pick_position, read_position
from attnflow.tokens import Tokens, group_words, join

# Weights for which a notebook cell may compute flows: 64 tokens × 12 layers, less than a second.
AT_ONCE = 12 * 64**2
PREVIEW_PAIRS = 64


def flow_graph(
    attention: Attention,
    results: Sequence[Relevance] = (),
    *,
    methods: Sequence[str] | None = None,
    position: int | str | None = None,
    layer: int | None = None,
    residual: Residual = None,
    start_layer: int | None = None,
    curves: Sequence[Curve] | None = None,
    image: Any = None,
    grid: tuple[int, int] | None = None,
    pairs: int | None = None,
    heads: Heads | Sequence[Heads] | None = None,
    words: bool = False,
    special: bool = True,
    room: Room | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FlowGraph:
    """What a page of attention flow shows: the network, its edge flows and cuts, and scores for every output.

    The scores of ``results`` are shown as they are. ``methods`` are computed only for outputs that no result is of,
    with the choices (residual, first layer) of the result of the same name, where there is one.

    Args:
        attention: what :func:`attnflow.capture` gave; with ``heads="all"`` a page can switch between heads.
        results: finished results on the same input, of any method.
        methods: methods of attention that the page has for every output: names of :func:`attnflow.methods`. By default
            those that are shown where none are named; flow is always there, as the graph is its network.
        position: the output position to start with; by default that of the results, else "cls" where there is one, else
            the last.
        layer: the layer to start with; by default that of the results where they are of one layer, else the last.
        residual, start_layer: as for :func:`attnflow.flow`; by default those of the results.
        curves: correlations to show, layer by layer; by default Spearman's, at ``position`` and without special
            tokens, of the methods of attention with those of ``results`` that score the inputs as such (gradients,
            blank-out).
        image: the input image (a PIL image or an array), where the tokens are its patches.
        grid: rows and columns of patches; by default from the names of the tokens, else a square.
        pairs: how many pairs of output and input get an edge flow; by default what takes a few seconds.
        heads: the ways to bring the heads down to one matrix: "mean", "max", "min" or the number of a head, or a list
            of these, the one to start with first; by default that of the results, and all others as far as a page has
            room.
        words, special: whether the page opens with words in place of tokens, and with special tokens shown; results
            that were brought to words, or that lost their special tokens, open it so.
        room: what the graph may hold; by default what one page has room for.
        progress: called with (flows done, flows to do), for each graph of the page.

    >>> g = flow_graph(Attention.of([[[0.2, 0.8], [0.5, 0.5]]] * 2, tokens=["a", "b"]), position=1)
    >>> g.outputs[0].scores["flow"].tolist(), g.pairs[0, 0].value, g.complete
    ([0.5, 1.0], 0.5, True)
    """
    check_kind(Attention, attention, "attention")
    truths(words=words, special=special)
    results = check_kinds(Relevance, results, "results")
    plan = _plan(attention, results, methods, position, layer, residual, start_layer, curves, pairs)
    plan = replace(plan, progress=progress)
    lead = _lead(results)
    kept = "mean" if lead is None or lead.heads is None else lead.heads
    listed = ways(attention, kept) if heads is None else [heads] if isinstance(heads, str | int) else list(heads)
    given = _by_way(results, listed, plan)
    room = Room() if room is None else room
    # The way that is shown first has half of the room, where there are others.
    made = _fused(attention, listed[0], given[0], plan, room if len(listed) == 1 else room.part(2))
    scores = sum(
        s.size for o in made.outputs for part in (o.scores, o.words) for m, s in part.items() if m not in made.of_inputs
    )
    rest = room.rest(scores, sum(len(pair.flow) for pair in made.pairs.values()), max(1, len(listed) - 1))
    fusions = tuple(_fused(attention, *one, plan, rest) for one in zip(listed[1:], given[1:], strict=True))
    size, where = ((0, 0), ()) if image is None else patches(made.net.tokens, grid)
    return replace(
        made,
        fusions=fusions,
        head_count=head_count(attention),
        image=None if image is None else pixels(image),
        grid=size,
        patches=where,
        as_words=words or (lead is not None and lead.unit == "word"),
        with_special=special and (lead is None or lead.dropped is None),
    )


def graph_of(results: Sequence[Relevance], **options: Any) -> FlowGraph | None:
    """The graph of results on one input; ``options`` as for :func:`flow_graph`.

    None where no result knows its attention, and where one that cannot be computed anew for every output was brought to
    words, or lost its special tokens: then there are scores to show, and no graph that they could be laid on.
    """
    kinds: dict[str, Attention] = {}
    results = check_kinds(Relevance, results, "results")
    for r in results:
        if r.attention is not None:
            kinds.setdefault(r.attention.edges, r.attention)
    if not kinds:
        return None
    attention = next(iter(kinds.values()))
    tokens = _inputs(attention)
    known = {call.name for call in _calls(options.get("methods"))}
    for r in results:
        reshaped = r.dropped is not None or (r.unit == "word" and tuple(r.tokens) != tokens[: len(r.tokens)])
        if reshaped and (_composed(r) not in known or r.attention is None):
            return None
    if len(kinds) == 1 and attention.edges == "attention":
        return flow_graph(attention, results, **options)
    made = [_of_kind(a, results, Room().part(len(kinds)), options) for a in kinds.values()]
    # All are graphs of one input, so that the page can go from one kind of edges to another.
    return replace(made[0], fusions=tuple(g for graph in made for g in (graph, *graph.fusions))[1:])


def _of_kind(attention: Attention, results: Sequence[Relevance], room: Room, options: dict[str, Any]) -> FlowGraph:
    """The graph of one kind of edges, with the results that came from it and those that score the inputs as such."""
    own = [r for r in results if of_inputs(r) or r.attention is None or r.attention.edges == attention.edges]
    plain = [replace(r, method=_composed(r)) for r in own]
    heads = {"heads": None if attention.residual_inside else options.get("heads")}
    return flow_graph(attention, plain, room=room, **{**options, **heads})


def _composed(r: Relevance) -> str:
    """The name of a result among those of its own edges, where "rollout:alti" is rollout."""
    return r.method.removesuffix(f":{r.edges}")


def graph_at_once(results: Sequence[Relevance]) -> FlowGraph | None:
    """The graph that a notebook shows: None where it would take more than a second."""
    attention = results[0].attention
    blocks = [] if attention is None else attention.blocks.values()
    work = sum(w.shape[-2] * w.shape[-1] for block in blocks for w in block.weights)
    if not 0 < work <= AT_ONCE:
        return None
    heads = results[0].heads
    return graph_of(results, pairs=PREVIEW_PAIRS, heads=["mean" if heads is None else heads])


@dataclass(frozen=True)
class _Plan:
    """What is the same for every way to bring the heads down."""

    methods: tuple[MethodCall, ...]
    position: int | str | None
    layer: int
    residual: Residual
    start_layer: int
    curves: Sequence[Curve] | None
    pairs: int | None
    progress: Callable[[int, int], None] | None = None


def _plan(
    attention: Attention,
    results: Sequence[Relevance],
    methods: Sequence[str] | None,
    position: int | str | None,
    layer: int | None,
    residual: Residual,
    start_layer: int | None,
    curves: Sequence[Curve] | None,
    pairs: int | None,
) -> _Plan:
    """What was asked for and, where nothing was, what the results were computed with."""
    lead = _lead(results)
    flows = [r for r in results if r.method == FLOW and r.edges in (None, attention.edges)]
    # The graph is that of the flow; rollout has the same network, raw attention has none.
    model = next((r for r in (*flows, *results) if r.residual is not None), None)
    if layer is None:
        layer = int(lead.layers[0]) if lead is not None and len(lead.layers) == 1 else -1
    if position is None and lead is not None:
        position = lead.position
    if residual is None and model is not None:
        residual = model.residual
    if start_layer is None:
        start_layer = 0 if model is None else model.start_layer or 0
    choices = {"residual": residual, "start_layer": start_layer}
    asked = tuple(_offered(call, results, attention, choices) for call in _calls(methods))
    return _Plan(asked, position, layer, residual, start_layer, curves, pairs)


def _offered(
    call: MethodCall, results: Sequence[Relevance], attention: Attention, choices: dict[str, Any]
) -> MethodCall:
    """The method with the choices of the result of that name, where there is one, else with those of the graph."""
    same = (r for r in results if r.method == call.name != FLOW and not r.rescaled)
    found = next((r for r in same if r.edges in (None, attention.edges)), None)
    own = {} if found is None else {"residual": found.residual, "start_layer": found.start_layer}
    return call.offered(**{name: value for name, value in {**choices, **own}.items() if value is not None})


def _calls(methods: Sequence[str] | None) -> tuple[MethodCall, ...]:
    """The methods that the page has for every output; that of the graph is always one of them."""
    wanted = names("attention", shown=True) if methods is None else tuple(methods)
    return calls("methods", tuple(dict.fromkeys([*wanted, FLOW])), "attention")


def _lead(results: Sequence[Relevance]) -> Relevance | None:
    """The first result that came from attention: the page opens where it is."""
    return next((r for r in results if not of_inputs(r)), None)


def _by_way(results: Sequence[Relevance], listed: Sequence[Heads], plan: _Plan) -> list[list[Relevance]]:
    """Results by the way to bring the heads down that they came from; scores of the inputs as such go with all."""
    heads = [way if isinstance(way, str | int) else tuple(way) for way in listed]
    known = {call.name for call in plan.methods}

    def belongs(r: Relevance, at: int) -> bool:
        if of_inputs(r) or r.heads == heads[at]:
            return True
        # What came from heads that are not shown stands beside the first way, unless it would pass for its scores.
        return at == 0 and r.heads not in heads and (r.heads is None or r.method not in known or r.rescaled)

    return [[r for r in results if belongs(r, at)] for at in range(len(heads))]


def _fused(attention: Attention, way: Heads, results: Sequence[Relevance], plan: _Plan, room: Room) -> FlowGraph:
    """The graph of one way to bring the heads down."""
    attention = reduced(attention, way)
    net = network(attention, plan.residual, plan.start_layer)
    causal = attention.blocks.get("decoder", net).causal
    row = read_position(net.queries, causal) if plan.position is None else pick_position(plan.position, net.queries)
    first = (net.layers[pick_layer(plan.layer, net.layers)], row)
    choices = {"residual": residual_of(attention, plan.residual), "start_layer": plan.start_layer}
    given = named(results, attention, choices)
    group = group_words(net.tokens)
    others = [n for n in given if n not in {call.name for call in plan.methods}]
    shown = [given_bars(n, given[n], net, row) for n in others]
    # Scores of the inputs as such are the same for every output and are kept once.
    rows = len(plan.methods) + sum(not b.of_inputs for b in shown)
    columns = net.size + (len(group.members) if len(group.members) < net.size else 0)
    places = _places(net, first, room.outputs(len(net.layers), net.size, columns * rows))
    found = [completed_bars(call, given.get(call.name, ()), attention, net, group, places) for call in plan.methods]
    bars = [*found, *shown]
    outputs = tuple(output_of(place, bars, net, group) for place in places)
    return FlowGraph(
        net, net.stack(), _residual(net.steps), _levels(attention, net), outputs,
        pair_flows(net, outputs, room, plan.pairs, plan.progress), {b.name: settings_line(b.sources[0]) for b in bars},
        frozenset(b.name for b in bars if b.of_inputs), group,
        tuple(curves_of(bars, net, row) if plan.curves is None else plan.curves), notes_of(bars), attention.model,
        heads="together" if attention.residual_inside else name_of(way), edges=attention.edges,
        predicted=next((r.predicted for r in results if r.predicted), ""), informative=informative_lines(bars, places),
        rounding=frozenset(b.name for b in bars if b.sources[0].rounding is not None),
        predicts=attention.predicts(net.queries),
    )  # fmt: skip


def _places(net: Network, first: Place, most: int) -> list[Place]:
    """At most ``most`` outputs, the most interesting first: one position at all layers, then all of the top layer."""
    layers, positions = net.layers, range(len(net.queries))
    order = [first, *((n, first[1]) for n in layers[::-1]), *((n, p) for n in layers[::-1] for p in positions)]
    order = list(dict.fromkeys(order))
    kept = order[: max(1, most)]
    return kept if kept == order else [(n, p) for n, p in kept if n == first[0] or p == first[1]]


def _inputs(attention: Attention) -> Tokens:
    """Names of the input positions: an encoder-decoder model has those of both towers."""
    if set(attention.blocks) == {"encoder", "decoder", "cross"}:
        return join(attention["encoder"].keys, attention["decoder"].keys)
    return attention.only.keys


def _residual(steps: Sequence[Step]) -> F64:
    out = np.zeros((len(steps), steps[0].size))
    for s, step in enumerate(steps):
        own = step.residual()
        out[s, step.row : step.row + len(own)] = own
    return out


def _levels(attention: Attention, net: Network) -> tuple[Level, ...]:
    if set(attention.blocks) != {"encoder", "decoder", "cross"}:
        return tuple(Level("self", n) for n in net.layers)
    out = [Level("encoder", n) for n in attention["encoder"].layers]
    for n in net.layers:
        out.append(Level("decoder", n))
        if n in attention["cross"].layers:
            out.append(Level("cross", n))
    return tuple(out)
