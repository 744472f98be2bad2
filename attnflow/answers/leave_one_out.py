"""Leave-one-source-out: how much less likely the answer is without a source.

"mask": nobody attends to the source, everything else keeps its position. A causal model then need not compute the
source at all: what stands before it is in the cache, what stands behind it is run with the positions that it has. No
mask of n × n is made. "removal": the source's characters are taken out of the text, which is tokenized anew.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attnflow.answers.reading import Run, make_run, plain_run, takes
from attnflow.errors import SelectionError
from attnflow.inputs.limits import text_config
from attnflow.inputs.running import model_errors, undisturbed
from attnflow.numbers import listed, word

WAYS = ("mask", "removal")
Other = tuple[Sequence[int], Mapping[str, Any]]
"""Another prompt: its ids, and what else the model is given."""

_TEXT = {"input_ids", "attention_mask"}


class Without:
    """Log-probabilities of one answer with some of its prompt left out; what is shared is computed once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.forwards = 0.0
        self.cache = self._cache()
        if self.cache is None:
            self.logprobs = plain_run(run).cpu().numpy()

    def _cache(self) -> Any:
        """The keys and values of the whole run, where a later run may start from a part of them."""
        run = self.run
        names = ("past_key_values", "position_ids", "use_cache")
        if run.apart or not all(takes(run.model, n) for n in names) or set(run.inputs) - _TEXT:
            return None
        given = {**run.lean(), "use_cache": True}
        with undisturbed(run.model) as model, torch.no_grad(), model_errors(model, given):
            outputs = model(**given)
        self.forwards += 1
        self.logprobs = run.logprobs(outputs).cpu().numpy()
        layers = getattr(outputs.past_key_values, "layers", None)
        n = run.inputs["input_ids"].shape[1]
        plain = layers and all(
            not getattr(x, "is_sliding", False) and getattr(getattr(x, "keys", None), "ndim", 0) == 4
            and x.keys.shape[2] == n and x.values.shape[2] == n for x in layers
        )  # fmt: skip
        chunks = getattr(text_config(run.model), "attention_chunk_size", None)
        return layers if plain and not chunks else None

    def positions(self, left_out: Sequence[int]) -> npt.NDArray[np.float64]:
        """``[tokens]``: log p without attention to these positions of the prompt."""
        gone = sorted(left_out)
        n = int(self.run.inputs["input_ids"].shape[1])
        behind = n - gone[-1] - 1
        if self.cache is None or not gone or gone[-1] - gone[0] + 1 != len(gone) or behind < len(self.run.answer):
            return self._masked(gone)
        kept = range(gone[-1] + 1, n)
        return self._from_cache(gone[0], self.run.inputs["input_ids"][:, kept.start :], list(kept))

    def _masked(self, gone: Sequence[int]) -> npt.NDArray[np.float64]:
        mask = self.run.inputs["attention_mask"].clone()
        mask[:, list(gone)] = 0
        return self._run({**self.run.lean(), "attention_mask": mask, **self._counted()}, 1.0)

    def _counted(self) -> dict[str, torch.Tensor]:
        """The positions of the whole run: some models count only those that a mask lets through."""
        run, ids = self.run, self.run.inputs["input_ids"]
        if run.apart or not takes(run.model, "position_ids"):
            return {}
        own: Any = next((m.get_rope_index for m in run.model.modules() if hasattr(m, "get_rope_index")), None)
        if own is not None and set(run.inputs) - _TEXT:
            named = inspect.signature(own).parameters
            return {"position_ids": own(**{name: v for name, v in run.inputs.items() if name in named})[0]}
        if "pixel_values" in run.inputs:
            return {}  # counted in ways of its own, none of which asks the mask
        return {"position_ids": torch.arange(ids.shape[1], device=ids.device)[None]}

    def _from_cache(self, prefix: int, ids: torch.Tensor, places: list[int]) -> npt.NDArray[np.float64]:
        """The rest of a run whose first ``prefix`` positions are in the cache."""
        from transformers import DynamicCache

        past = DynamicCache()
        for number, layer in enumerate(self.cache):
            past.update(layer.keys[:, :, :prefix], layer.values[:, :, :prefix], number)
        given: dict[str, Any] = {"input_ids": ids, "past_key_values": past, "use_cache": True}
        given["position_ids"] = torch.tensor([places], device=ids.device)
        given["attention_mask"] = torch.ones(1, prefix + ids.shape[1], dtype=torch.long, device=ids.device)
        if "logits_to_keep" in self.run.lean():
            given["logits_to_keep"] = len(self.run.answer)
        return self._run(given, ids.shape[1] / max(self.run.inputs["input_ids"].shape[1], 1))

    def prompt(self, ids: Sequence[int], more: Mapping[str, Any]) -> npt.NDArray[np.float64]:
        """``[tokens]``: log p of the answer behind another prompt, of which the beginning may be shared."""
        run = self.run
        if not ids:
            raise SelectionError(
                "check_by='removal' takes a source out of the text, and without this one the prompt has no token left. "
                "Use check_by='mask', or split the prompt into more sources."
            )
        made = make_run(run.model, run.tokenizer, ids, run.answer, more, run.inputs["input_ids"].device)
        if self.cache is None:
            self.forwards += len(ids) / run.prompt
            return np.asarray(plain_run(made).cpu().numpy())
        mine, theirs = run.inputs["input_ids"][0].tolist(), made.inputs["input_ids"][0]
        alike = zip(mine, theirs.tolist(), strict=False)
        shared = next((i for i, (a, b) in enumerate(alike) if a != b), min(len(mine), len(theirs)))
        shared = min(shared, len(theirs) - len(run.answer))
        return self._from_cache(shared, theirs[None, shared:], list(range(shared, len(theirs))))

    def _run(self, given: dict[str, Any], cost: float) -> npt.NDArray[np.float64]:
        self.forwards += cost
        with undisturbed(self.run.model) as model, torch.no_grad(), model_errors(model, given):
            return np.asarray(self.run.logprobs(model(**given)).cpu().numpy())


def check_ways(ways: str | Sequence[str]) -> tuple[str, ...]:
    """ "mask", "removal" or both."""
    chosen = (ways,) if isinstance(ways, str) else tuple(word(way, "check_by") for way in listed(ways, "check_by"))
    for way in chosen:
        if way not in WAYS:
            raise SelectionError(f"check_by={way!r} is not known. Use 'mask', 'removal' or both.")
    return chosen


def drops(
    without: Without,
    positions: Sequence[Sequence[int]],
    prompts: Sequence[Callable[[], Other]],
    way: str,
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.float64]:
    """``[sources, tokens]``: log p of each token minus that without each source, by positions or other prompts."""
    out = []
    for number, (gone, other) in enumerate(zip(positions, prompts, strict=True)):
        if way == "mask":
            found = without.positions(gone) if gone else without.logprobs
        else:
            found = without.prompt(*other())
        out.append(np.asarray(without.logprobs, np.float64) - found)
        advance(number + 1, len(positions))
    return np.array(out).reshape(len(positions), len(without.run.answer))
