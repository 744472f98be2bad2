"""One example, ready to be explained: what the model is given, the names of its positions, and its outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attnflow.errors import InputError, SelectionError, ShapeError, WeightsError
from attnflow.inputs.embedding import run
from attnflow.inputs.limits import word_embeddings
from attnflow.inputs.naming import plain_tokenizer
from attnflow.inputs.running import generates
from attnflow.inputs.target import Goal, Target, full_output, settle
from attnflow.numbers import check_max_length
from attnflow.reprs import one_line
from attnflow.select import read_position
from attnflow.tokens import Tokens, join

if TYPE_CHECKING:
    from attnflow.inputs.encode import Inputs


@one_line
@dataclass(frozen=True, eq=False)
class Example:
    """One example of one model.

    Attributes:
        inputs: what the model is called with: tensors of batch 1, without padding.
        tokens: names of the input positions; for an encoder-decoder model the encoder's, then the decoder's.
        queries: names of the output positions: the decoder's where there is one.
        patches: for images ``[height, width]``: the column of ``tokens`` to which each pixel belongs.
        name: name or class of the model.
        mirrored: the model makes its decoder's input from its encoder's, and reads it at the same places.
        notes: what a reader should know of the input and the model.
    """

    model: nn.Module
    tokenizer: Any
    inputs: dict[str, Any]
    tokens: Tokens
    queries: Tokens
    patches: Tensor | None = None
    name: str = ""
    mirrored: bool = False
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def outputs(self) -> Any:
        """The model's outputs for the inputs as they are, computed once."""
        if "outputs" not in self.cache:
            with torch.inference_mode(False), torch.no_grad():
                self.cache["outputs"] = run(self.model, self.inputs)
        return self.cache["outputs"]

    def goal(self, target: Target, position: int | str | None, score: str | None) -> tuple[Goal, Any]:
        """What is explained, and the outputs that it was settled from."""
        goal = settle(self.model, self.tokenizer, self.outputs, self.queries, target, position, score)
        value = float(goal.values(self.outputs).detach()[0])
        if not math.isfinite(value):
            raise WeightsError(
                f"{self.name} gives {value} for {goal.label!r} on the input as it is, so no change can be measured: "
                "the model overflowed (try it in float32), or its weights are damaged."
            )
        return goal, self.outputs

    def predicted(self, position: int | str | None = None) -> Goal:
        """What the model predicted; ``position`` counts only where the model has an output for each position."""
        several = full_output(self.outputs).ndim == 3
        return self.goal(None, position if several else None, None)[0]

    def lean(self, goal: Goal) -> dict[str, Any]:
        """The inputs, asking for no logits that nothing reads: those of a batch are larger than everything else."""
        last = goal.position is not None and goal.position == len(self.queries) - 1
        if goal.kind == "token" and last and "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            return {**self.inputs, "logits_to_keep": 1}
        return self.inputs

    def place(self, goal: Goal, position: int | str | None = None, causal: bool = False) -> int | str:
        """The output position whose attention is read: the one that is explained, else [CLS], else the last.

        In a causal model it is the last in place of [CLS], which sees nothing but itself there.
        """
        if goal.position is not None:
            return goal.position
        if position is not None:
            return position
        return "last" if self.mirrored else read_position(self.queries, causal)

    def mirror(self, members: Sequence[int], blank: int | None) -> dict[str, Any] | None:
        """The inputs of a mirrored example with some positions blanked (or, for None, deleted), in both its halves.

        None where that cannot be done: in the decoder alone, or at the end token, where the head reads.
        """
        ids = self.inputs["input_ids"]
        count = ids.shape[1]
        end = getattr(getattr(self.model, "config", None), "eos_token_id", None)
        if blank is not None and blank == end:
            raise SelectionError(
                f"blank={blank} is the end token, where {type(self.model).__name__} reads its answer:  blank='delete'"
            )
        if any(m >= count or int(ids[0, m]) == end for m in members):
            return None
        kept = {name: value for name, value in self.inputs.items() if not name.startswith("decoder")}
        if blank is None:
            keep = [i for i in range(count) if i not in members]
            sized = {k: v for k, v in kept.items() if isinstance(v, Tensor) and v.shape[1:2] == (count,)}
            return {**kept, **{name: value[:, keep] for name, value in sized.items()}}
        changed = ids.clone()
        changed[:, list(members)] = blank
        return {**kept, "input_ids": changed}

    @property
    def pixels(self) -> tuple[Tensor, ...]:
        """The image ``[1, channels, height, width]``."""
        return (self.inputs["pixel_values"],)

    @cached_property
    def vocabulary(self) -> int:
        """How many ids the model knows."""
        weight = getattr(word_embeddings(self.model), "weight", None)
        return int(getattr(getattr(self.model, "config", None), "vocab_size", 0)) if weight is None else len(weight)

    @property
    def reads_last(self) -> bool:
        """True where the model predicts what comes after its last position."""
        return generates(self.model)

    def token_id(self, name: str) -> int | None:
        """The id of the tokenizer's "mask", "unk", "pad" or "eos" token, if it has one that the model knows."""
        found = getattr(self.tokenizer, f"{name}_token_id", None)
        return int(found) if found is not None and int(found) < self.vocabulary else None

    def unknown_id(self) -> int | None:
        """The id of the "unk" token, if it stands for unknown words alone: GPT-2 and its kin call the end token so."""
        found = self.token_id("unk")
        return None if found in {self.token_id("eos"), self.token_id("bos")} else found

    def special_id(self, name: str, choices: Sequence[str], argument: str) -> int:
        """The id of a token that must be there; the error names what there is instead."""
        if name not in choices:
            raise SelectionError(
                f"{argument}={name!r} is not known. Use one of: {', '.join(choices)}, or the id of a token."
            )
        found = self.token_id(name)
        if found is None:
            who = (
                "no tokenizer is given"
                if self.tokenizer is None
                else f"{type(self.tokenizer).__name__} has no such token"
            )
            ways = [c for c in choices if c not in _NAMED or self.token_id(c) is not None]
            raise SelectionError(
                f"{argument}={name!r}, but {who}. Use {', '.join(map(repr, ways))} or the id of a token "
                f"(0 to {self.vocabulary - 1}):  {argument}={ways[0]!r}"
            )
        return found

    def token_name(self, token: str | int) -> str:
        """How a blank is written."""
        if isinstance(token, int) and self.tokenizer is not None:
            return str(self.tokenizer.convert_ids_to_tokens(token))
        return str(token)

    def by_patch(self, pixels: Tensor, reduce: Callable[[Tensor], Tensor]) -> npt.NDArray[np.float64]:
        """``[1, channels, height, width]`` → ``[positions]``: the pixels of a patch stand for its dimensions."""
        assert self.patches is not None
        out = np.full(len(self.tokens), np.nan)
        for column in torch.unique(self.patches).tolist():
            out[column] = float(reduce(pixels.detach()[0][:, self.patches == column].double().reshape(-1)))
        return out


_NAMED = ("mask", "unk", "pad", "eos")


def examples(model: nn.Module, tokenizer: Any, text: Any, **options: Any) -> tuple[list[Example], bool]:
    """(every example of ``text``, whether one was meant)."""
    from attnflow.inputs.encode import encode

    with torch.inference_mode(False):
        inputs = encode(model, tokenizer, text, **options)
        return [_example(model, tokenizer, inputs, i) for i in range(len(inputs))], inputs.single


def one_example(model: nn.Module, tokenizer: Any, text: Any, max_length: int | None = None) -> Example:
    """The example of one row of data: a text, ids, a dict of tensors or an image.

    Args:
        max_length: cut the text to this many tokens.
    """
    max_length = check_max_length(max_length)
    if isinstance(text, str) and max_length is not None and tokenizer is not None:
        text = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    if hasattr(text, "convert"):  # a PIL image
        text = dict(tokenizer(images=text, return_tensors="pt"))
    if isinstance(text, Mapping) and "pixel_values" in text:
        found, single = examples(model, tokenizer, None, inputs=text)
    else:
        found, single = examples(model, tokenizer, text)
    if not single:
        raise ShapeError(f"A row of the data holds {len(found)} texts, and one is expected.")
    return found[0]


def _example(model: nn.Module, tokenizer: Any, inputs: Inputs, row: int) -> Example:
    """Row ``row`` of a padded batch as an example of its own, without padding."""
    own = {name: _alone(name, value, inputs, row) for name, value in inputs.batch.items()}
    tokens, name = inputs.tokens[row], _name(model)
    if inputs.text_key == "pixel_values":
        patches = _patches(tokens, own["pixel_values"])
        return Example(model, tokenizer, own, tokens, tokens, patches, name, notes=inputs.notes)
    if "input_ids" not in own:
        raise InputError(
            f"Nothing to score in {', '.join(own)}: gradients and blank-out need input_ids (a text) or pixel_values "
            "(an image)."
        )
    if inputs.decoder_tokens is None:
        return Example(model, plain_tokenizer(tokenizer), own, tokens, tokens, None, name, notes=inputs.notes)
    queries = inputs.decoder_tokens[row]
    both = join(tokens, queries)
    held = plain_tokenizer(tokenizer)
    return Example(model, held, own, both, queries, None, name, inputs.mirrored, notes=inputs.notes)


def _alone(name: str, value: Any, inputs: Inputs, row: int) -> Any:
    if isinstance(value, Tensor) and value.is_inference():
        value = value.clone()  # autograd refuses tensors that were made in inference mode
    if not isinstance(value, Tensor) or value.shape[:1] != (len(inputs),):
        return value
    one = value[row : row + 1]
    decoder = name.startswith("decoder")
    kept = inputs.decoder_positions if decoder else inputs.positions
    width = inputs.batch["decoder_input_ids"].shape[1] if decoder else inputs.length
    if kept is None or one.ndim < 2 or one.shape[1] != width or len(kept[row]) == width:
        return one
    return one[:, list(kept[row])]


def _patches(tokens: Tokens, pixels: Tensor) -> Tensor:
    """``[height, width]``: the column of each pixel, from tokens named "patch row,column"."""
    where = {text: column for column, text in enumerate(tokens) if text.startswith("patch ")}
    if not where or pixels.ndim != 4:
        raise InputError(
            f"The model's config names no patch_size for pixel_values of shape {tuple(pixels.shape)}, so that its "
            "pixels cannot be told apart by patch. Use an image model with patches (ViT, DeiT, …)."
        )
    rows, columns = (1 + max(int(t[6:].split(",")[i]) for t in where) for i in (0, 1))
    grid = torch.tensor([[where[f"patch {r},{c}"] for c in range(columns)] for r in range(rows)])
    high, wide = pixels.shape[-2] // rows, pixels.shape[-1] // columns
    whole = grid.repeat_interleave(high, 0).repeat_interleave(wide, 1)
    if whole.shape != pixels.shape[-2:]:
        raise InputError(
            f"An image of {tuple(pixels.shape[-2:])} pixels is not a whole number of {rows} × {columns} patches."
        )
    return whole


def _name(model: Any) -> str:
    return str(getattr(model, "name_or_path", "") or type(model).__name__)
