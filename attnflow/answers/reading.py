"""Scores of every method for the rows that predicted an answer.

For a causal model token *t* of the answer was predicted at the position before it; in an encoder-decoder model at
position *t* of the decoder. The columns are the positions of the prompt, then those of the answer (or the decoder).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from attnflow.attention import Attention
from attnflow.capturing.capture import capture
from attnflow.capturing.survey import survey
from attnflow.errors import SelectionError
from attnflow.inputs.decoder import start_token
from attnflow.inputs.running import model_errors, undisturbed
from attnflow.numbers import listed, word
from attnflow.scoring.registry import composed, find
from attnflow.scoring.rollout_stream import STORED_BYTES, rollout_rows

F64 = npt.NDArray[np.float64]
GRADIENTS = ("gradient", "input_x_gradient")
_BY_ROWS = ("attention", "norm", "alti")
"""Edges of which the rows that are needed can be had without the others."""


@dataclass(frozen=True, eq=False)
class Run:
    """One answer behind one prompt, ready for the model.

    Attributes:
        model: the model.
        tokenizer: its tokenizer.
        inputs: what the model is given; for an encoder-decoder model with ``decoder_input_ids``.
        answer: the ids that are predicted, in order.
        prompt: how many positions the prompt has.
        apart: True if the answer is in a decoder of its own.
        kept: what was captured, by kind; ``slopes``: gradients, by the spans of the answer.
    """

    model: nn.Module
    tokenizer: Any
    inputs: Mapping[str, Any]
    answer: tuple[int, ...]
    prompt: int
    apart: bool
    kept: dict[str, Attention] = field(default_factory=dict)
    slopes: dict[tuple[tuple[int, int], ...], Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[int]:
        """The output positions that predicted the answer's tokens."""
        first = 0 if self.apart else self.prompt - 1
        return list(range(first, first + len(self.answer)))

    @property
    def positions(self) -> int:
        """The columns: positions of the prompt and of the answer as far as it was read."""
        return self.prompt + len(self.answer) - (0 if self.apart else 1)

    def lean(self) -> dict[str, Any]:
        """The inputs, and logits of the last rows only where the model can leave the others out."""
        given = dict(self.inputs)
        if not self.apart and takes(self.model, "logits_to_keep"):
            given["logits_to_keep"] = len(self.answer)
        return given

    def logprobs(self, outputs: Any) -> torch.Tensor:
        """``[tokens]``: log p of each token of the answer."""
        logits = outputs.logits[0, -len(self.answer) :] if not self.apart else outputs.logits[0, : len(self.answer)]
        target = torch.tensor(self.answer, device=logits.device)
        found: torch.Tensor = logits.float().log_softmax(-1).gather(-1, target[:, None])[:, 0]
        return found


def make_run(
    model: nn.Module, tokenizer: Any, ids: Sequence[int], answer: Sequence[int], more: Mapping[str, Any], device: Any
) -> Run:
    """The inputs of one answer. The last token is predicted and not read, so it is not fed."""
    apart = bool(getattr(model.config, "is_encoder_decoder", False))
    fed = list(ids) if apart else [*ids, *answer[:-1]]
    inputs: dict[str, Any] = {**more, "input_ids": torch.tensor([fed], device=device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if apart:
        inputs["decoder_input_ids"] = torch.tensor([[start_token(model), *answer[:-1]]], device=device)
    for name in ("token_type_ids", "mm_token_type_ids"):
        kinds = inputs.get(name)
        if isinstance(kinds, torch.Tensor):  # those of the prompt; an answer is text
            inputs[name] = torch.nn.functional.pad(kinds, (0, len(fed) - kinds.shape[-1]))
    return Run(model, tokenizer, inputs, tuple(answer), len(ids), apart)


def takes(model: nn.Module, name: str) -> bool:
    """Whether the model's forward has such an argument."""
    return name in inspect.signature(model.forward).parameters


def plain_run(run: Run) -> torch.Tensor:
    """The log-probabilities alone, by one forward pass."""
    given = run.lean()
    if takes(run.model, "use_cache"):
        given["use_cache"] = False
    with undisturbed(run.model) as model, torch.no_grad(), model_errors(model, given):
        return run.logprobs(model(**given))


def check_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The names of methods that attribute an answer; others are an error before anything runs."""
    # Each also with other edges by name, such as "direct:alti".
    readable = (*composed(), *GRADIENTS)
    chosen = (methods,) if isinstance(methods, str) else tuple(word(m, "methods") for m in listed(methods, "methods"))
    for name in chosen:
        base, _, edges = name.partition(":")
        if name in GRADIENTS or (base in composed() and (not edges or find(name, "attention", "methods"))):
            continue
        raise SelectionError(
            f"methods: {name!r} does not attribute an answer. Use {', '.join(readable)}; with other edges, for "
            "instance direct:alti."
        )
    if not chosen:
        raise SelectionError(f"methods is empty: choose from {', '.join(readable)}.")
    return tuple(dict.fromkeys(chosen))


def read(run: Run, method: str) -> tuple[F64, tuple[str, ...]]:
    """(``[tokens, positions]``: how much each token of the answer drew on each position; notes)."""
    base, _, edges = method.partition(":")
    edges = edges or "attention"
    score = find(base).function
    if base == "rollout" and edges == "attention" and not run.apart:
        found = rollout_rows(run.model, None, rows=run.rows, inputs=run.lean())
        return np.asarray(found.scores[:, : run.positions], np.float64), found.notes
    if base in ("raw", "direct") and edges in _BY_ROWS:
        attention = _captured(run, edges, run.rows)
        result = score(_text_tower(attention), layer=-1)
        return np.asarray(result.scores[-1][:, : run.positions], np.float64), result.notes
    _refuse_long(run, method)
    attention = _text_tower(_captured(run, edges, None))
    if base in ("raw", "direct"):
        result = score(attention, layer=-1)
        return np.asarray(result.scores[-1][run.rows, : run.positions], np.float64), result.notes
    rows = [score(attention, layer=-1, position=row) for row in run.rows]
    scores = np.stack([r.scores[-1][: run.positions] for r in rows])
    return np.asarray(scores, np.float64), rows[0].notes


def _captured(run: Run, edges: str, rows: list[int] | None) -> Attention:
    key = f"{edges}, {'rows' if rows is not None else 'all'}"
    if key not in run.kept:
        options: dict[str, Any] = {"edges": edges} if edges != "attention" else {}
        if edges == "gradient":
            options["target"] = _whole_answer(run)
        if rows is not None:
            options["rows"] = rows
        run.kept[key] = capture(run.model, None, inputs=run.lean(), **options)
    return run.kept[key]


def _whole_answer(run: Run) -> Callable[[Any], torch.Tensor]:
    def log_probability_of_the_answer(outputs: Any) -> torch.Tensor:
        return run.logprobs(outputs).sum()[None]

    return log_probability_of_the_answer


def _text_tower(attention: Attention) -> Attention:
    """The attention over the text, of models that have other towers beside it."""
    if len(attention.blocks) == 1 or {"encoder", "decoder", "cross"} == set(attention.blocks):
        return attention
    limited = [name for name, b in attention.blocks.items() if b.rows is not None]
    name = limited[0] if limited else "text" if "text" in attention.blocks else next(iter(attention.blocks))
    return attention.block(name)


def _refuse_long(run: Run, method: str) -> None:
    """All rows of all layers, where the method needs them, have to fit."""
    layers, n = len(survey(run.model).sites), run.positions
    needed = 4 * layers * n * n
    if needed > 4 * STORED_BYTES:
        fits = int((4 * STORED_BYTES / (4 * max(layers, 1))) ** 0.5)
        raise SelectionError(
            f"{method} needs all rows of {layers} layers: {needed / 2**30:.1f} GiB for {n} tokens, and {fits} tokens "
            "are the most that it is computed for. Use a method that needs the answer's rows only:  "
            "methods=['direct:alti', 'rollout']"
        )
