"""What a method may be called on, brought to one form: a list of :class:`Attention`.

rollout(model, tokenizer, text)      the model is run once
rollout(pipeline, text)              so is that of a pipeline, which knows its tokenizer
rollout("bert-base-uncased", text)   or of a name, which is loaded
rollout(attention)                   what capture gave
rollout(outputs.attentions)          what Hugging Face gave: a tuple of [batch, heads, n, n]
rollout(array)                       [layers, n, n] or [layers, heads, n, n]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from attnflow.attention import Attention, Block, check_edges, check_weights, is_causal
from attnflow.errors import InputError, SelectionError, ShapeError
from attnflow.heads import Heads, reduce_heads
from attnflow.numbers import heads_of, to_numpy
from attnflow.relevance import Relevance
from attnflow.row_sums import check_sinks
from attnflow.tokens import Tokens

_TOWERS = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


def each(
    source: Any,
    tokenizer: Any,
    text: Any,
    method: Callable[[Attention], Relevance],
    *,
    heads: Heads | None = None,
    sinks: str | None = None,
    tokens: Sequence[str] | None = None,
    block: str | None = None,
    edges: str | None = None,
    **options: Any,
) -> Relevance | list[Relevance]:
    """Apply ``method`` to every example of ``source``: one example gives one result, a list gives a list."""
    found, single = attentions(source, tokenizer, text, heads=heads, sinks=sinks, tokens=tokens, edges=edges, **options)
    if block is not None:
        found = [a.block(block) for a in found]
    results = [scored(a, heads, method) for a in found]
    return results[0] if single else results


def scored(attention: Attention, heads: Heads | None, method: Callable[[Attention], Relevance]) -> Relevance:
    """The result of ``method`` on one example, with what it was computed from."""
    used = reduced(attention, heads)
    found = method(used)
    notes = tuple(dict.fromkeys((*notes_of(used), *found.notes)))
    # The result keeps the heads where they are there: a page can show each of them.
    target = found.target or used.settings.get("target_label")
    facts = {"attention": attention, "heads": used.heads, "edges": used.edges, "notes": notes, "target": target}
    # Not dataclasses.replace: it would check the scores once more, which takes as long as raw attention does.
    told = copy(found)
    vars(told).update(facts)
    return told


def notes_of(attention: Attention) -> tuple[str, ...]:
    """What a reader of any score should know of the attention that it was computed from."""
    cross = attention.blocks.get("cross")
    if not attention.residual_inside or cross is None or cross.mixing is not None:
        return attention.notes
    half = f"cross: {attention.edges} edges do not weigh the decoder's own position there, so it has half"
    return (*attention.notes, half)


def attentions(
    source: Any,
    tokenizer: Any = None,
    text: Any = None,
    *,
    heads: Heads | None = None,
    sinks: str | None = None,
    tokens: Sequence[str] | None = None,
    edges: str | None = None,
    **options: Any,
) -> tuple[list[Attention], bool]:
    """(attention of every example, whether one example was meant)."""
    if edges is not None:
        check_edges(edges)
    heads = None if heads is None else heads_of(heads)
    if is_model(source):
        from attnflow.capturing.capture import capture

        chosen = {name: value for name, value in (("sinks", sinks), ("edges", edges)) if value is not None}
        if text is None and options.get("inputs") is None:
            raise InputError("Neither text nor inputs were given:  rollout(model, tokenizer, 'a text')")
        taken = capture(source, tokenizer, text, heads="mean" if heads is None else heads, **chosen, **options)
        return (taken, False) if isinstance(taken, list) else ([taken], True)
    _refuse_text(source, tokenizer, text, options)
    if isinstance(source, Attention):
        return [_with_edges(source, edges)], True
    if isinstance(source, list) and source and all(isinstance(a, Attention) for a in source):
        return [_with_edges(a, edges) for a in source], False
    ready: dict[str, Any] = {
        "tokens": tokens,
        "heads": "mean" if heads is None else heads,
        "sinks": "error" if sinks is None else check_sinks(sinks),
    }
    if edges is not None and edges != "attention":
        raise InputError(
            f"edges={edges!r} are computed from a model, but the first argument is {_kind(source)}. Pass the model:  "
            f"rollout(model, tokenizer, text, edges={edges!r})  or say what the matrices hold:  "
            f"Attention.of(matrices, edges={edges!r}, residual_inside=…)"
        )
    fields = _output_fields(source)
    if fields:
        return _from_outputs(fields, **ready)
    if source is None or (isinstance(source, tuple | list) and not source):
        raise InputError(
            f"No attention in {type(source).__name__!r}: transformers returns an empty tuple where the model runs "
            "with sdpa or flash attention. Give the model itself:  rollout(model, tokenizer, text)"
        )
    return _from_arrays(source, **ready)


def _with_edges(attention: Attention, edges: str | None) -> Attention:
    if edges is not None and edges != attention.edges:
        raise SelectionError(
            f"edges={edges!r}, but this attention holds {attention.edges!r} edges. Capture them:  "
            f"capture(model, tokenizer, text, edges={edges!r})"
        )
    return attention


def ready(source: Any, tokenizer: Any, text: Any, call: str) -> tuple[Any, Any, Any]:
    """The first three arguments of a method: a pipeline or a name becomes the model, with its tokenizer."""
    from attnflow.inputs.running import arguments

    return arguments(source, tokenizer, text, call)


def is_model(source: Any) -> bool:
    """Whether ``source`` is a model that has to be run first."""
    import torch

    return isinstance(source, torch.nn.Module)


def _refuse_text(source: Any, tokenizer: Any, text: Any, options: Mapping[str, Any]) -> None:
    given = [name for name, value in (("tokenizer", tokenizer), ("text", text)) if value is not None]
    given += list(options)
    if given:
        raise InputError(
            f"{', '.join(given)} belong to a model, but the first argument is {_kind(source)}. "
            "Pass the model:  rollout(model, tokenizer, text)  or the attention alone:  rollout(attention)"
        )


def _kind(source: Any) -> str:
    name = type(source).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def reduced(attention: Attention, heads: Heads | None) -> Attention:
    """One matrix per layer; asking for heads that are no longer there is an error."""
    if attention.heads == "all":
        kept = chosen = "mean" if heads is None else heads_of(heads)
        # Maxima and minima are divided by their row sums where rows have a sum to keep to.
        rows = attention.edges != "gradient"
        blocks = {name: b.reduced(chosen, rows) for name, b in attention.blocks.items()}
        return replace(attention, blocks=blocks, heads=kept)
    asked = None if heads is None else heads_of(heads)
    if asked is not None and asked != attention.heads:
        raise SelectionError(
            f"heads={heads!r}, but this attention was captured with heads={attention.heads!r}. "
            "Keep them all:  capture(model, tokenizer, text, heads='all')"
        )
    return attention


def _output_fields(source: Any) -> dict[str, Any]:
    """The attention fields of a Hugging Face output, if it is one."""
    if not isinstance(source, Mapping):
        return {}
    towers = {name: source[key] for name, key in _TOWERS.items() if len(source.get(key) or ())}
    if len(towers) == len(_TOWERS):
        return towers
    if len(source.get("attentions") or ()):
        return {"self": source["attentions"]}
    raise InputError(
        f"{type(source).__name__} has no attention in it (keys: {', '.join(map(str, source))}). "
        "Give the model itself:  rollout(model, tokenizer, text)"
    )


def _from_outputs(fields: Mapping[str, Any], tokens: Any, heads: Heads, sinks: str) -> tuple[list[Attention], bool]:
    if set(fields) == {"self"}:
        return _from_arrays(fields["self"], tokens, heads, sinks)
    layers = {name: [to_numpy(w) for w in value] for name, value in fields.items()}
    batch = _batch_of([w for ws in layers.values() for w in ws])
    out = []
    for b in range(batch):
        blocks = {name: _block(name, [w[b] for w in ws], heads, sinks) for name, ws in layers.items()}
        out.append(Attention(blocks, heads=heads_of(heads)))
    return out, batch == 1


def _batch_of(layers: Sequence[npt.NDArray[Any]]) -> int:
    """How many examples the layers hold; they must agree, or one would be lost."""
    wrong = [w.shape for w in layers if w.ndim != 4]
    if wrong:
        raise ShapeError(f"A layer has shape {wrong[0]}, and Hugging Face gives [batch, heads, n, n] for each.")
    counts = {int(w.shape[0]) for w in layers}
    if len(counts) > 1 or 0 in counts:
        have = " and ".join(map(str, sorted(counts)))
        raise ShapeError(f"The layers hold {have} examples: give the same batch for each.")
    return counts.pop()


def _block(name: str, weights: Sequence[npt.NDArray[Any]], heads: Heads, sinks: str) -> Block:
    checked = [reduce_heads(check_weights(w, f"{name} layer {i}", sinks), heads) for i, w in enumerate(weights)]
    q, k = checked[0].shape[-2:]
    prefix = "" if name == "encoder" else "output "
    queries = Tokens.numbered(q, prefix)
    keys = Tokens.numbered(k) if name == "cross" else queries
    block = Block(tuple(checked), tuple(range(len(checked))), queries, keys)
    return replace(block, causal=name != "cross" and is_causal(block))


def _from_arrays(source: Any, tokens: Any, heads: Heads, sinks: str) -> tuple[list[Attention], bool]:
    if isinstance(source, tuple | list):
        layers = [to_numpy(w) for w in source]
        ranks = {w.ndim for w in layers}
        if len(ranks) > 1:
            raise ShapeError(f"Layers of different rank: {sorted(ranks)} axes. Give the same for each layer.")
        if ranks == {4}:
            batch = _batch_of(layers)
            return [
                Attention.of([w[b] for w in layers], tokens, heads=heads, sinks=sinks) for b in range(batch)
            ], batch == 1
        return [Attention.of(layers, tokens, heads=heads, sinks=sinks)], True
    array = to_numpy(source)
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise ShapeError(
            f"Attention of shape {array.shape} has {array.ndim} axes; use [layers, n, n] or [layers, heads, n, n]. "
            "One layer alone is given as array[None]."
        )
    return [Attention.of(array, tokens, heads=heads, sinks=sinks)], True
