"""What is explained: one number of the model's output, for each example of a batch.

=====================  =====================================  ===========================================
model                  ``target=None``                         also
=====================  =====================================  ===========================================
classifier             the class that it predicted             number or label, a pair (a, b): a minus b
masked language model  the token predicted at the mask         token or its id, a pair; ``position=``
causal, seq2seq        the next token, at the last position    the same
base model, no head    the size Σ|h| of the output vector h     the number of a coordinate
                       at [CLS], else at the last position
any                    —                                      ``target=lambda outputs: tensor_of_[batch]``
=====================  =====================================  ===========================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnflow.errors import SelectionError
from attnflow.inputs.running import generates
from attnflow.numbers import whole, word
from attnflow.select import pick_position, read_position
from attnflow.tokens import Tokens

Target = int | str | tuple[int | str, int | str] | Callable[[Any], Tensor] | None
SCORES = ("prob", "logit", "logprob")
_CALLABLE = "target=lambda outputs: outputs.logits[:, 0]"


@dataclass(frozen=True)
class Goal:
    """The number that is explained.

    Attributes:
        kind: "classification", "token" (a language model or tagger), "vector" (a model without a head)
            or "function" (the user's own).
        index: the class, token or coordinate; a pair means the first minus the second; None for Σ|h|.
        score: "prob", "logit" or "logprob"; "value" where there are no classes to choose from.
        position: the output position that is read; None where the output has none.
        label: the name of the class or token.
        independent: classes that do not exclude one another (a multi-label head).
        function: the user's own function of the outputs.
    """

    kind: str
    index: int | tuple[int, int] | None
    score: str
    position: int | None
    label: str
    independent: bool = False
    function: Callable[[Any], Tensor] | None = None

    def row(self, outputs: Any) -> Tensor:
        """``[batch, classes]`` (or coordinates): the output at the position that is read."""
        full = full_output(outputs)
        if self.position is None or full.ndim == 2:
            return full
        # One position alone is the last, where the model was asked for no more (Example.lean).
        return full[:, -1] if full.shape[1] == 1 else full[:, self.position]

    def values(self, outputs: Any) -> Tensor:
        """``[batch]``: the number that is explained."""
        if self.function is not None:
            return _checked(self.function(outputs), self.label)
        row = self.row(outputs)
        if self.index is None:
            return row.abs().sum(-1)
        scored = self.scored(row)
        if isinstance(self.index, tuple):
            return scored[:, self.index[0]] - scored[:, self.index[1]]
        return scored[:, self.index]

    def scored(self, row: Tensor) -> Tensor:
        """Logits turned into what the score says; float32 at least, so that a softmax keeps its digits."""
        row = row if row.dtype == torch.float64 else row.float()
        if self.score == "prob":
            return row.sigmoid() if self.independent else row.softmax(-1)
        if self.score == "logprob":
            return torch.nn.functional.logsigmoid(row) if self.independent else row.log_softmax(-1)
        return row

    def without(self, deleted: tuple[int, ...]) -> Goal | None:
        """The same goal after the input positions ``deleted`` are gone; None if its own position went with them."""
        if self.position is None or self.position < 0:
            return self
        if self.position in deleted:
            return None
        return replace(self, position=self.position - sum(d < self.position for d in deleted))

    def settings(self) -> dict[str, Any]:
        """What the result says about it."""
        return {
            "explains": self.kind,
            "target": list(self.index) if isinstance(self.index, tuple) else self.index,
            "target_label": self.label,
            "score": self.score,
            "position": self.position,
        }


def settle(
    model: Any,
    tokenizer: Any,
    outputs: Any,
    tokens: Tokens,
    target: Target = None,
    position: int | str | None = None,
    score: str | None = None,
) -> Goal:
    """The goal for one example, from the outputs of a first forward pass (batch 1).

    Args:
        tokens: names of the output positions.
        target: see the table above.
        position: the output position, where the output has one for each token.
        score: "prob", "logit" or "logprob"; None takes "prob" where there are classes.
    """
    if score is not None and word(score, "score") not in SCORES:
        raise SelectionError(f"score={score!r} is not known. Use one of: {', '.join(SCORES)}.")
    target = _plain(target)
    if callable(target):
        name = getattr(target, "__name__", type(target).__name__)
        return Goal("function", None, "value", None, name, function=target)
    full = full_output(outputs)
    headed = has_logits(outputs)
    goal = Goal("classification" if headed else "vector", None, "value", None, "Σ|h|")
    if full.ndim == 3:
        at = _position(model, tokens, position, headed)
        goal = replace(goal, kind="token" if headed else "vector", position=at)
    elif position is not None:
        raise SelectionError(f"position={position!r}, but this model's output has no positions. Leave it out.")
    if not headed:
        return _coordinate(goal, target, full.shape[-1])
    return _class(model, tokenizer, goal, full, target, score)


def _plain(target: Any) -> Any:
    """Numbers of numpy and of tensors as Python's own; what no target can be is a ``TypeError``."""
    if target is None or isinstance(target, str) or callable(target):
        return target
    if isinstance(target, tuple | list) and len(target) == 2:
        return tuple(_plain(one) for one in target)
    return whole(target, "target")


def _class(model: Any, tokenizer: Any, goal: Goal, full: Tensor, target: Target, score: str | None) -> Goal:
    count = full.shape[-1]
    several = _config(model, "problem_type") == "multi_label_classification"
    if count == 1 and score in ("prob", "logprob") and not several:
        raise SelectionError(
            f"score={score!r}, but the model has one output, which is no probability. Use score='logit'."
        )
    chosen = score or ("logit" if count == 1 and not several else "prob")
    goal = replace(goal, score=chosen, independent=several)
    if target is None:
        index: int | tuple[int, int] = int(goal.row(full)[0].argmax())
    elif isinstance(target, tuple):
        index = (_index(model, tokenizer, goal, target[0], count), _index(model, tokenizer, goal, target[1], count))
    else:
        assert not callable(target)
        index = _index(model, tokenizer, goal, target, count)
    return replace(goal, index=index, label=_label(model, tokenizer, count, index))


def runner_up(goal: Goal, outputs: Any) -> Goal:
    """The paper's contrast: p₀ − p₁ for two classes, else the target minus the best of the others."""
    row = goal.row(outputs)[0]
    if isinstance(goal.index, tuple) or goal.index is None:
        return goal
    if len(row) < 2:
        raise SelectionError("p₀ − p₁ needs two classes, and the model has one output. Use reduce='abs_of_sum'.")
    if len(row) == 2 and goal.kind == "classification":
        return replace(goal, index=(0, 1), score="prob", label=f"{goal.label} (p₀ − p₁)")
    others = row.clone()
    others[goal.index] = -torch.inf
    return replace(goal, index=(goal.index, int(others.argmax())), score="prob")


def full_output(outputs: Any) -> Tensor:
    """``[batch, classes]`` or ``[batch, positions, classes or coordinates]``."""
    if isinstance(outputs, Tensor):
        found: Any = outputs
    else:
        found = _field(outputs, "logits")
        found = _field(outputs, "last_hidden_state") if found is None else found
    if isinstance(found, Tensor) and found.ndim in (2, 3):
        return found
    have = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
    raise SelectionError(
        f"The model's output ({have}) has neither logits nor last_hidden_state of 2 or 3 axes, so there is nothing to "
        f"explain by default. Say what to explain:  {_CALLABLE}"
    )


def has_logits(outputs: Any) -> bool:
    """Whether the model has a head, so that its output are logits."""
    return _field(outputs, "logits") is not None or isinstance(outputs, Tensor)


def _field(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _config(model: Any, name: str) -> Any:
    return getattr(getattr(model, "config", None), name, None)


def _position(model: Any, tokens: Tokens, position: int | str | None, has_logits: bool) -> int:
    if position is not None:
        return pick_position(position, tokens)
    if not has_logits:
        return read_position(tokens)
    if "mask" in tokens.marks and not generates(model):
        return tokens.marks["mask"]
    if generates(model):
        return len(tokens) - 1
    shown = " ".join(tokens[:12]) + (" …" if len(tokens) > 12 else "")
    raise SelectionError(
        f"{type(model).__name__} predicts at each of {len(tokens)} positions, and the input has no mask token to "
        f"choose one: {shown}. Pass position=<0 to {len(tokens) - 1}>, or put the tokenizer's mask token into the text."
    )


def _coordinate(goal: Goal, target: Target, size: int) -> Goal:
    if target is None:
        return goal
    if not isinstance(target, int):
        raise SelectionError(
            f"target={target!r}, but the model has no head, so it predicts no class or token. Use the number of a "
            f"coordinate (0 to {size - 1}), None for the size Σ|h| of the output vector, or {_CALLABLE}"
        )
    index = _in_range(target, size, "coordinates")
    return replace(goal, index=index, label=f"h[{index}]")


def _index(model: Any, tokenizer: Any, goal: Goal, target: int | str, count: int) -> int:
    if isinstance(target, int):
        return _in_range(target, count, "classes" if goal.kind == "classification" else "entries")
    known: Mapping[str, int] = _config(model, "label2id") or {}
    tagger = goal.kind == "classification" or count == len(known)
    if tagger:
        if target not in known:
            raise SelectionError(f"target={target!r}, but the model's labels are {', '.join(map(str, known))}.")
        return int(known[target])
    return _token_id(tokenizer, target, count)


def check_target(model: Any, tokenizer: Any, target: Any) -> None:
    """Refuse a class or token that the model does not have, before it is run; None is what it predicts."""
    if target is None or callable(target):
        return
    labels: Mapping[int, str] = _config(model, "id2label") or {}
    kind = "token" if type(model).__name__.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")) else "classification"
    count = len(labels) if kind == "classification" else int(_config(model, "vocab_size") or 0)
    if count == 0:
        return
    goal = Goal(kind, None, "prob", None, "")
    plain = _plain(target)
    for one in plain if isinstance(plain, tuple) else (plain,):
        _index(model, tokenizer, goal, one, count)


def _token_id(tokenizer: Any, target: str, count: int) -> int:
    if tokenizer is None:
        raise SelectionError(f"target={target!r} is a token, but no tokenizer is given. Pass its id.")
    whole = tokenizer.get_vocab().get(target)
    ids = [whole] if whole is not None else tokenizer(target, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        pieces = tokenizer.convert_ids_to_tokens(ids)
        raise SelectionError(
            f"target={target!r} is {len(ids)} tokens {pieces}, and one is predicted at a time. "
            f"Use one of them, for instance target={pieces[0] if pieces else 'an id'!r}."
        )
    return _in_range(int(ids[0]), count, "entries")


def _in_range(index: int, count: int, what: str) -> int:
    if not 0 <= index < count:
        raise SelectionError(f"target={index}, but the model has {count} {what}: use 0 to {count - 1}.")
    return index


def _label(model: Any, tokenizer: Any, count: int, index: int | tuple[int, int]) -> str:
    if isinstance(index, tuple):
        return " − ".join(_label(model, tokenizer, count, i) for i in index)
    names: Mapping[int, str] = _config(model, "id2label") or {}
    if count == len(names):
        return str(names.get(index, index))
    return str(index) if tokenizer is None else str(tokenizer.convert_ids_to_tokens(index))


def _checked(values: Any, name: str) -> Tensor:
    if not isinstance(values, Tensor) or values.ndim != 1:
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise SelectionError(
            f"The target function {name} returned {shape}, and one number for each example is needed: {_CALLABLE}"
        )
    return values
