"""The function ``capture``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, overload

import torch
from torch import nn

from attnflow.attention import Attention, check_edges
from attnflow.capturing import gradient_edges
from attnflow.capturing import gradients as grads
from attnflow.capturing import outputs as returned
from attnflow.capturing import rows as some
from attnflow.capturing.axes import Frame, grid_of, masks_of, virtual_tokens
from attnflow.capturing.bands import FAMILIES, REPLACING
from attnflow.capturing.blocks import assemble
from attnflow.capturing.context import Taken, assemble_runs
from attnflow.capturing.edges.watch import watch, watched
from attnflow.capturing.notes import model_type, name_of, nothing, uncalled
from attnflow.capturing.reduce import Reduction, storage_dtype
from attnflow.capturing.session import Record, Replace, Session
from attnflow.capturing.state import grad_mode, implementations, listening, prepared
from attnflow.capturing.survey import Survey, survey
from attnflow.capturing.tap import tapped
from attnflow.errors import CaptureError, InputError, SelectionError
from attnflow.heads import Heads, check_heads
from attnflow.inputs.encode import MAX_NEW_TOKENS, Inputs, encode
from attnflow.inputs.running import arguments, generates, model_errors, unpack
from attnflow.numbers import at_least, wholes, word
from attnflow.row_sums import check_sinks

# Whether FSMT masks its decoder depends on use_cache; elsewhere a cache that nobody reads is only memory.
_CACHE_MATTERS = {"fsmt"}

Route = Literal["auto", "interface", "tap", "output_attentions"]
ROUTES = get_args(Route)
# Tried in this order, by a run of their own, where neither the interface nor the tap has shown anything.
_LATE: dict[str, Callable[[nn.Module, dict[str, Any], Session], Any]] = {"output_attentions": returned.run}


@overload
def capture(model: Any, tokenizer: Any = ..., text: None = ..., *, inputs: None = ..., **options: Any) -> Taken: ...
@overload
def capture(model: Any, tokenizer: Any, text: list[str], **options: Any) -> list[Attention]: ...
@overload
def capture(model: Any, tokenizer: Any = ..., text: Any = ..., **options: Any) -> Attention: ...
def capture(  # type: ignore[misc]  # the overloads leave the options to this signature
    model: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    text_target: str | Sequence[str] | None = None,
    heads: Heads = "mean",
    layers: int | Sequence[int] | None = None,
    dtype: Any = "float32",
    device: str | torch.device | None = None,
    sinks: Literal["keep", "renormalise", "error"] = "keep",
    gradients: grads.Target | None = None,
    edges: str = "attention",
    target: Any = None,
    position: int | str | None = None,
    replace: Replace | None = None,
    route: Route = "auto",
    block: int | None = None,
    mixing: bool = False,
    rows: int | Sequence[int] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    text_pair: str | Sequence[str] | None = None,
    max_length: int | None = None,
    truncation: bool = False,
) -> Attention | list[Attention] | Taken:
    """The attention of ``model`` on ``text``: the model is run once and left exactly as it was.

    In every matrix the rows are queries and the columns keys: ``weights[l][i, j]`` is how much position *i* of
    layer *l* attends to position *j*.

    Args:
        model: a Hugging Face model, however it was loaded (sdpa, flash, eager; any dtype; train mode); a pipeline; or
            the name of a model or of the folder that it was saved to, which is loaded.
        tokenizer: its tokenizer or processor; a pipeline and a name have their own.
        text: a str (one result), a list of str (a list of results), a ``BatchEncoding`` or dict of tensors, or ids.
            Without text and inputs, a context manager for running the model yourself: see :class:`Taken`.
        inputs: anything that is not text, as for ``model(**inputs)``.
        text_target: the decoder's text of an encoder-decoder model; by default its own greedy output.
        heads: "mean" (default), "max", "min", one head, the mean of a list of heads, or "all" to keep them. The heads
            are brought down while the model runs, so that heads × n² numbers are never held unless "all".
        layers: only these layers, by the model's own numbers; negative numbers count from the end of each tower.
        dtype: "float32" (default), "float16" or "float64" for the stored weights.
        device: where weights are kept while the model runs; "cpu" off-loads each layer at once.
        sinks: what a learned sink took is kept as a column of its own ("keep"), or rows are divided by their sums
            ("renormalise"), or it is an error ("error").
        gradients: also keep the gradient of a target with respect to each weight of each head: True (what the model
            predicted), a class or token id, a list with one per text, or a function of the model's outputs.
        edges: what each layer's matrix holds: "attention" (the weights) or "gradient": E_h[(A ⊙ ∂y/∂A)⁺], what each
            weight gave to the target y (Chefer et al. 2021, equation 5); its rows have any sum. ``heads`` then says how
            the products are brought down. Or what the layer really mixes, with its residual: "norm" (Kobayashi et al.
            2021), "alti" (Ferrando et al. 2022) or "value_zeroing" (Mohebbi et al. 2023); rows are output positions,
            columns input positions. For norm and ALTI the parts of each layer are added up, for value zeroing the layer
            is run again, and the sum or the output is compared with what the model computed: ``certificate`` holds the
            error, and a layer with an error above 1e-3 (more in half precision) is refused.
        target: with edges="gradient", the number y that is explained: None (what the model predicted), a class or
            token, a pair (a, b) for a minus b, a list with one for each text, or a function of the model's outputs, as
            for :func:`attnflow.gradient`.
        position: with edges="gradient", the output position at which the target is read, where there are several.
        replace: ``function(call, weights) → weights or None``: changes the weights ``[batch, heads, queries, keys]``
            inside the run; the output is computed from them by the model's own code. ``call`` has the ``name``,
            ``layer``, ``kind`` and ``tower`` of the module.
        route: "auto", or only one of "interface", "tap", "output_attentions".
        block: how many query rows are computed at a time; by default as many as a processor's cache takes.
        mixing: also keep the mixing ratio of each output position (Kobayashi et al. 2021).
        rows: only these output positions (negative numbers count from the end; the decoder's, where there is one). The
            model's own kernel computes the output and no matrix of n × n is made where the model attends by sdpa
            through transformers' interface: for inputs too long to keep, or compute, all rows. ``raw`` and ``direct``
            read such an attention; other towers (an encoder, vision) are kept whole. A list of texts is run one by one.
        text_pair: the second text, for models that read two; a list of pairs as ``text`` is the same.
        max_length, truncation: cut a text to so many tokens, or to as many as the model has positions for.

    >>> from transformers import BertConfig, BertModel
    >>> small = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=30)
    >>> model = BertModel(BertConfig(**small))
    >>> att = capture(model, None, [5, 6, 7])
    >>> att
    Attention(2 layers × 3 tokens, heads=mean, route=interface, model=BertModel)
    >>> att.weights.shape, att.weights.sum(-1).round(4).min()
    ((2, 3, 3), np.float32(1.0))
    """
    module, tokenizer, text = arguments(model, tokenizer, text, "capture")
    module, tokenizer = unpack(module, tokenizer)
    differentiates = gradients is not None and gradients is not False
    if rows is not None:
        some.refuse(1, text is None and inputs is None, differentiates, replace is not None)
        if isinstance(text, list) and text and all(isinstance(t, str) for t in text):
            chosen: dict[str, Any] = {
                "inputs": inputs, "heads": heads, "layers": layers, "dtype": dtype, "device": device, "sinks": sinks,
                "edges": edges, "position": position, "route": route, "block": block, "mixing": mixing, "rows": rows,
                "max_new_tokens": max_new_tokens, "max_length": max_length, "truncation": truncation,
            }  # fmt: skip
            pairs = text_pair if text_pair is None else [text_pair] if isinstance(text_pair, str) else list(text_pair)
            goal = list(text_target) if isinstance(text_target, tuple) else text_target
            own = _one_each(len(text), text_target=goal, text_pair=pairs, target=target)
            return [capture(module, tokenizer, t, **chosen, **options) for t, options in zip(text, own, strict=True)]
    if differentiates:
        heads = "all"
    _check(sinks, route, block)
    _check_edges(edges, differentiates, text is None and inputs is None, target, position)
    by_gradient = edges == "gradient"
    kept_on = None if device is None else torch.device(device)
    reduction = Reduction(check_heads(heads), storage_dtype(dtype), kept_on, stochastic=not by_gradient)
    found = _survey(module, route)
    session = Session(
        found, reduction, layers=_layers(layers, found), block=block, replace=replace,
        gradients=differentiates or by_gradient, route=route, whole_rows=edges in ("gradient", "value_zeroing"),
    )  # fmt: skip
    session.watch = watch(module, session, edges, mixing)
    settings = _settings(module, reduction, sinks, edges)
    if text is None and inputs is None:
        return Taken(module, tokenizer, session, sinks, settings, edges)
    given = encode(
        module, tokenizer, text, inputs=inputs, text_target=text_target, max_new_tokens=max_new_tokens,
        text_pair=text_pair, max_length=max_length, truncation=truncation,
    )  # fmt: skip
    settings |= given.settings
    if rows is not None:
        settings["rows"] = _limit(session, given, rows)
    said: list[dict[str, Any]] = []
    if by_gradient:
        session.explains = gradient_edges.explained(module, tokenizer, given, target, position, said)
    records, notes = run(module, given, session, gradients, settings)
    if len({r.call.run for r in records}) > 1:
        # A wrapper ran the model more than once: what each of these runs was given names its positions.
        return assemble_runs(module, tokenizer, session, sinks, settings, [*given.notes, *notes], edges)
    frame = dataclasses.replace(
        frame_of(module, given), survey=None if session.layers is None else found,
        rows=None if rows is None else tuple(settings["rows"]),
    )  # fmt: skip
    taken = assemble(
        records, frame, sinks=sinks, heads=reduction.heads, model=name_of(module), settings=settings,
        notes=[*given.notes, *notes], edges=edges, generates=generates(module),
    )  # fmt: skip
    if len(said) == len(taken):
        taken = [dataclasses.replace(a, settings={**a.settings, **one}) for a, one in zip(taken, said, strict=True)]
    one = given.single or text is None or isinstance(text, Mapping)
    return taken[0] if one and len(taken) == 1 else taken


def _one_each(count: int, **options: Any) -> list[dict[str, Any]]:
    """The options of each of ``count`` texts; a list has one entry per text, anything else is for all of them."""
    for name, value in options.items():
        if isinstance(value, list) and len(value) != count:
            raise InputError(f"{count} texts and {len(value)} in {name}: give one for each.")
    return [{n: v[i] if isinstance(v, list) else v for n, v in options.items()} for i in range(count)]


def _settings(model: nn.Module, reduction: Reduction, sinks: str, edges: str) -> dict[str, Any]:
    """What was chosen, as a result tells it."""
    kind = str(reduction.dtype).removeprefix("torch.")
    chosen = {"heads": reduction.heads, "dtype": kind, "sinks": sinks, "implementation": implementations(model)}
    return chosen if edges == "attention" else {**chosen, "edges": edges}


def _outputs(given: Inputs) -> int:
    """How many output positions there are: the decoder's, where there is one."""
    named = given.decoder_tokens if given.decoder_tokens else given.tokens
    return len(named[0])


def _limit(session: Session, given: Inputs, rows: int | Sequence[int]) -> list[int]:
    """Tell the session where the rows that were asked for are in the padded row of one text; the rows."""
    some.refuse(len(given), False, False, False)
    two = bool(given.decoder_tokens)
    places = (given.decoder_positions if two else given.positions) or ()
    length = int(given.batch["decoder_input_ids"].shape[1]) if two else given.length or len(given.tokens[0])
    wanted = some.row_numbers(rows, _outputs(given))
    session.rows, session.row_length, session.two_towers = tuple(places[0][r] for r in wanted), length, two
    return list(wanted)


def run(
    model: nn.Module, given: Inputs, session: Session, target: Any, settings: dict[str, Any]
) -> tuple[list[Record], list[str]]:
    """Run the model once along the first route that shows its attention."""
    batch = dict(given.batch)
    if session.gradients:
        _refuse_inference(model)
    if _takes(model, "use_cache") and "use_cache" not in batch and model_type(model) not in _CACHE_MATTERS:
        batch["use_cache"] = False
    first = session.route in ("auto", "interface", "tap") and model_type(model) not in FAMILIES
    outputs: Any = None
    if first and session.survey.sites:
        with prepared(model, session), grad_mode(session.gradients), watched(session), tapped(session):
            with model_errors(model, batch):
                outputs = model(**_in_graph(batch, session))
            replaced = model_type(model) in REPLACING and survey(model)
            if replaced and set(replaced.sites) != set(session.survey.sites):
                outputs = _again(model, batch, session, replaced)
            _differentiate(session, outputs, target, settings)
    if session.refused:
        raise session.refused[0]
    refused: TypeError | None = None
    for name, late in _LATE.items():
        if session.count or session.route not in ("auto", name):
            continue
        _refuse_late(model, session)
        with prepared(model, session, hooks=False), grad_mode(session.gradients):
            try:
                outputs = late(model, _in_graph(batch, session), session)
            except TypeError as error:
                refused = error
            else:
                _differentiate(session, outputs, target, settings)
    if not session.count:
        raise nothing(model, session, ROUTES[1:]) from refused
    return session.records, uncalled(session)


def _again(model: nn.Module, batch: dict[str, Any], session: Session, found: Survey) -> Any:
    """Run the model once more, with the modules that it has put in place of its own."""
    session.survey, session.watched = found, session.watched | set(found.sites)
    session.records.clear()
    session.heard.clear()
    session.count = 0
    with listening(model, session):
        return model(**_in_graph(batch, session))


def _in_graph(batch: dict[str, Any], session: Session) -> dict[str, Any]:
    """The batch, of which autograd refuses tensors that were made in inference mode."""
    if not session.gradients:
        return batch
    return {n: v.clone() if isinstance(v, torch.Tensor) and v.is_inference() else v for n, v in batch.items()}


def _differentiate(session: Session, outputs: Any, target: Any, settings: dict[str, Any]) -> None:
    if not session.gradients or not session.records:
        return
    if session.explains is not None:
        gradient_edges.fill(session, session.explains(outputs))
    else:
        grads.fill(session.records, outputs, target, settings)


def _refuse_inference(model: nn.Module) -> None:
    if any(p.is_inference() for p in model.parameters()):
        raise CaptureError(
            f"gradients= was given, and the parameters of {type(model).__name__} were made inside "
            "torch.inference_mode(), where autograd cannot use them. Load the model outside of it."
        )


def _refuse_late(model: nn.Module, session: Session) -> None:
    if session.watch is not None:
        raise CaptureError(
            f"The attention of {type(model).__name__} can only be read from its outputs, where the values with which "
            "its weights are multiplied are not seen. Use edges='attention'."
        )
    if session.replace is not None:
        raise CaptureError(
            f"replace= was given, and the attention of {type(model).__name__} can only be read from its outputs, "
            "where it is too late to change it."
        )


def frame_of(model: nn.Module, given: Inputs) -> Frame:
    """What the inputs say about positions."""
    pixels = given.batch.get("pixel_values")
    decoder = given.batch.get("decoder_input_ids")
    return Frame(
        batch=len(given), tokens=given.tokens, positions=given.positions, length=given.length,
        decoder_tokens=given.decoder_tokens or (), decoder_positions=given.decoder_positions or (),
        decoder_length=int(decoder.shape[1]) if isinstance(decoder, torch.Tensor) and given.decoder_tokens else 0,
        pixels=tuple(pixels.shape) if isinstance(pixels, torch.Tensor) else (),
        config=getattr(model, "config", None), grid=grid_of(given.batch), prompts=virtual_tokens(model),
        masks=masks_of(given.batch),
    )  # fmt: skip


def _takes(model: nn.Module, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _survey(model: nn.Module, route: str) -> Survey:
    found = survey(model)
    if not found.sites and not _offers_attention(model):
        kind = model_type(model) or "no model type"
        raise CaptureError(
            f"{type(model).__name__} ({kind}) has no attention module: "
            "rollout and flow need softmax attention, which state-space and convolutional models do not have."
        )
    if route == "interface" and not found.interface:
        raise CaptureError(
            f"route='interface', and no module of {type(model).__name__} uses transformers' attention interface. "
            "Use route='auto'."
        )
    return found


def _offers_attention(model: nn.Module) -> bool:
    return "attentions" in (getattr(model, "_can_record_outputs", None) or {}) or _takes(model, "output_attentions")


def _check(sinks: str, route: str, block: int | None) -> None:
    check_sinks(sinks)
    if word(route, "route") not in ROUTES:
        *most, last = map(repr, ROUTES)
        raise SelectionError(f"route={route!r} is not known. Use {', '.join(most)} or {last}.")
    if block is not None:
        at_least(block, 1, "block", ": a block has at least 1 row")


def _check_edges(edges: str, differentiates: bool, alone: bool, target: Any, position: int | str | None) -> None:
    check_edges(edges)
    if edges == "gradient":
        gradient_edges.refuse(differentiates, alone)
    elif target is not None or position is not None:
        name = "target" if target is not None else "position"
        raise SelectionError(
            f"{name}= belongs to edges='gradient', but these are {edges} edges, which explain no target. Leave it out."
        )


def _layers(layers: int | Sequence[int] | None, found: Survey) -> frozenset[int] | None:
    """The numbers that were asked for; negative ones count from the end of each tower, so they stay as they are."""
    if layers is None:
        return None
    listed = wholes(layers, "layers")
    have = sorted({s.layer for s in found.sites.values()})
    ends = {s.layer - s.depth for s in found.sites.values()}
    wrong = [n for n in listed if n not in have and n not in ends]
    if wrong or not listed:
        raise SelectionError(f"layers={layers!r}, but the layers with attention are {', '.join(map(str, have))}.")
    return frozenset(listed)
