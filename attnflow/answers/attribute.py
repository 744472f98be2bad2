"""``attribute``: from a prompt and its answer to the record of what the answer drew on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from attnflow.answers import leave_one_out, patches
from attnflow.answers.attribution import ANSWER, Attribution, Unit, on_a_grid
from attnflow.answers.gradients import gradients
from attnflow.answers.leave_one_out import Other, Without, check_ways
from attnflow.answers.patches import Seen
from attnflow.answers.prompt import (
    Prompt,
    Reading,
    check_length,
    encoded,
    read_answer,
    read_generated,
    read_prompt,
    room,
)
from attnflow.answers.reading import GRADIENTS, Run, check_methods, make_run, plain_run, read
from attnflow.answers.sources import Source, find_sources, owners_of, sentences
from attnflow.capturing.notes import name_of
from attnflow.errors import CaptureError, InputError, SelectionError
from attnflow.inputs.encode import device_of
from attnflow.inputs.naming import plain_tokenizer
from attnflow.inputs.running import arguments, generates, model_errors, undisturbed, unpack
from attnflow.numbers import at_least, is_whole, word

F64 = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
RECOMMENDED = ("direct:alti", "direct")
"""What is computed where nothing is named: see docs/answers.md for what follows from the needle questions."""

UNITS = ("whole", "sentences", "tokens")
CHECKED = 5
MAX_NEW_TOKENS = 256


def attribute(
    model: Any,
    tokenizer: Any,
    prompt: Any,
    answer: str | None = None,
    *,
    sources: Any = None,
    methods: str | Sequence[str] | None = None,
    units: str = "sentences",
    check: int | str | None = CHECKED,
    check_by: str | Sequence[str] = "mask",
    instead: str | None = None,
    images: Any = None,
    max_new_tokens: int | None = None,
    show_progress: bool = False,
) -> Attribution | list[Attribution]:
    """Which parts of its context an answer drew on.

    The model reads prompt and answer once per kind of edges. Of its attention only the rows exist that predicted the
    answer: token *t* was predicted at the position before it. ``scores[u, j]`` of the result says how much unit *u*
    of the answer draws on position *j*, and sums over the tokens of a source say what the source gave.

    Args:
        model, tokenizer: a causal language model, an encoder-decoder model, or a model of images and text with its
            processor. The model may be a name or folder, with None for its tokenizer.
        prompt: a str, as the model is to read it; chat messages, which go through the tokenizer's chat template and
            may end with the answer; or a dict with "context" (a text, documents in a list or by name) and "question",
            which becomes one message where the tokenizer has a chat template. A list of these gives a list of results.
        answer: the finished answer, also of a model that is served elsewhere; None lets the model write it, by its own
            generation config.
        sources: "messages", "paragraphs", "sentences", "words"; a list of strings or of spans (start, end) of the text
            that was given; a dict of names and texts. By default documents, messages or sentences, as the prompt is.
        methods: "direct" (the rows of the answer, summed over layers), "raw" (the last layer), "rollout", "flow", each
            with other edges by name, such as "direct:alti"; "gradient" and "input_x_gradient" of the answer's
            log-probability.
        units: into what the answer is split: "whole", "sentences" or "tokens".
        check: for how many of the greatest sources the answer is scored again without them; "all", or 0 for none.
        check_by: "mask" (nobody attends to the source), "removal" (it is taken out of the text), or both.
        instead: another answer: scores then say why this one and not that one.
        images: for a model of images and text, one image (or the name of its file) or a list of them; with
            sources="patches" the sources are their patches.
        max_new_tokens: how much the model may write; by default what its generation config says, else 256.
        show_progress: show a bar on the error stream.

    >>> from attnflow import demo
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> tokenizer = demo.tokenizer()
    >>> config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
    ...                      vocab_size=len(tokenizer))
    >>> found = attribute(LlamaForCausalLM(config), tokenizer, "the key to the doors\\nthe author", " of the books")
    >>> found
    Attribution(2 units × 2 sources, direct:alti, direct, 2 checked by mask)
    >>> bool(abs(found.shares().sum(1) - 1).max() < 1e-9)
    True
    """
    module, tokenizer, _ = arguments(model, tokenizer, None, "attribute")
    if not isinstance(module, nn.Module):
        module, tokenizer = unpack(module, tokenizer)
    if isinstance(prompt, list) and prompt and not all(isinstance(p, Mapping) and "role" in p for p in prompt):
        return _each(module, tokenizer, prompt, answer, {
            "sources": sources, "methods": methods, "units": units, "check": check, "check_by": check_by,
            "instead": instead, "images": images, "max_new_tokens": max_new_tokens, "show_progress": show_progress,
        })  # fmt: skip
    if max_new_tokens is not None:
        max_new_tokens = at_least(max_new_tokens, 1, "max_new_tokens")
    wanted = _Wanted(
        check_methods(RECOMMENDED if methods is None else methods), methods is None, _units(units),
        checked_count(check), check_ways(check_by), instead, max_new_tokens,
    )  # fmt: skip
    _refuse_model(module)
    with _progress(show_progress) as advance:
        job = _read(module, tokenizer, prompt, answer, sources, images, wanted, advance)
        return job.attribution(wanted, advance)


def _each(
    model: Any, tokenizer: Any, prompts: Sequence[Any], answer: Any, options: dict[str, Any]
) -> list[Attribution]:
    """One after the other: each is as if it had been given alone."""
    answers = list(answer) if isinstance(answer, list | tuple) else [answer] * len(prompts)
    if len(answers) != len(prompts):
        raise InputError(f"{len(answers)} answers for {len(prompts)} prompts: give one for each.")
    found = [attribute(model, tokenizer, p, a, **options) for p, a in zip(prompts, answers, strict=True)]
    return [one for one in found if isinstance(one, Attribution)]


@dataclass(frozen=True)
class _Wanted:
    """What was asked for, checked."""

    methods: tuple[str, ...]
    by_default: bool
    units: str
    check: int | None
    ways: tuple[str, ...]
    instead: str | None
    max_new_tokens: int | None

    def settings(self) -> dict[str, Any]:
        return {
            "methods": list(self.methods), "units": self.units, "check_by": list(self.ways), "instead": self.instead,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Job:
    """A prompt with its sources, and an answer behind it."""

    run: Run
    prompt: Prompt
    reading: Reading
    sources: tuple[Source, ...]
    owners: npt.NDArray[np.int64]
    seen: Seen | None
    notes: tuple[str, ...]

    @property
    def device(self) -> torch.device:
        """Where the model's inputs are."""
        found: torch.device = self.run.inputs["input_ids"].device
        return found

    def attribution(self, wanted: _Wanted, advance: Progress) -> Attribution:
        units = _split(self.reading, wanted.units)
        other = None if wanted.instead is None else self._other(wanted.instead)
        if other is not None:
            units = units[:1]
        scores, notes = self._scores(wanted, units, other, advance)
        logprobs = plain_run(self.run).cpu().numpy() if not wanted.check else None
        tokens = plain_tokenizer(self.run.tokenizer).convert_ids_to_tokens(list(self.reading.ids))
        tokens += plain_tokenizer(self.run.tokenizer).convert_ids_to_tokens(list(self.reading.answer_ids))
        if self.run.apart:
            tokens.insert(self.run.prompt, "⟨start⟩")
        pictures = () if self.seen is None else self.seen.pictures
        found = Attribution(
            self.prompt.text, self.reading.answer, self.sources, units, tuple(map(str, tokens))[: self.run.positions],
            self.owners, scores, {}, () if logprobs is None else tuple(map(float, logprobs)),
            wanted.methods[0] if wanted.methods[0] in scores else next(iter(scores)), name_of(self.run.model),
            wanted.instead, pictures, wanted.settings(), (*self.notes, *notes), None if self.run.apart else 0,
        )  # fmt: skip
        return self._checked(found, wanted, other, advance) if wanted.check else found

    def _other(self, instead: str) -> Run:
        """The other answer behind the same prompt."""
        ids = self.reading.ids
        again = _answered(self.run.tokenizer, self.prompt, self.seen, ids, instead, self.run.apart)
        check_length(self.run.model, len(ids), len(again.answer_ids), self.run.apart)
        return make_run(self.run.model, self.run.tokenizer, ids, again.answer_ids, _pixels(self.seen), self.device)

    def _scores(
        self, wanted: _Wanted, units: Sequence[Unit], other: Run | None, advance: Progress
    ) -> tuple[dict[str, F64], list[str]]:
        out: dict[str, F64] = {}
        notes: list[str] = []
        for number, method in enumerate(wanted.methods):
            advance(f"reading by {method}", number, len(wanted.methods))
            if method in GRADIENTS:
                out[method] = self._gradient(method, units, other)
                continue
            try:
                rows, said = read(self.run, method)
            except CaptureError as error:
                if not wanted.by_default or number + 1 == len(wanted.methods):
                    raise
                notes.append(f"{method} was left out: {error}")
                continue
            notes += [n for n in said if n not in notes]
            found = np.stack([rows[u.first : u.last].mean(0) for u in units])
            if other is not None:
                found = _contrast(found, read(other, method)[0].mean(0)[None], self.run.prompt)
            out[method] = found
        return out, notes

    def _gradient(self, method: str, units: Sequence[Unit], other: Run | None) -> F64:
        found, embeddings = gradients(self.run, [(u.first, u.last) for u in units])
        if other is not None:
            theirs = gradients(other, [(0, len(other.answer))])[0][0]
            found = [found[0][: self.run.prompt] - theirs[: self.run.prompt]]
        out = np.zeros((len(units), self.run.positions))
        for row, slope in zip(out, found, strict=True):
            slope = slope * embeddings[: len(slope)] if method == "input_x_gradient" else slope
            sizes = slope.abs().sum(-1).double().cpu().numpy()[: self.run.positions]
            row[: len(sizes)] = sizes
        return out

    def _checked(self, found: Attribution, wanted: _Wanted, other: Run | None, advance: Progress) -> Attribution:
        """The greatest sources of each unit, tried by leaving them out."""
        tried = _tried(found, wanted.check or 0)
        positions = [np.flatnonzero(self.owners == i).tolist() for i in tried]
        prompts = [self._without(self.sources[i]) for i in tried]
        without = Without(self.run)
        against = None if other is None else Without(other)
        checks: dict[str, F64] = {}
        for way in wanted.ways:
            if way == "removal" and any(self.sources[i].kind == "patch" for i in tried):
                raise SelectionError("check_by='removal' takes characters out, and patches have none. Use 'mask'.")
            step = lambda done, total, way=way: advance(f"without a source, by {way}", done, total)  # noqa: E731
            lost = leave_one_out.drops(without, positions, prompts, way, step)
            table = np.full((len(found.units), len(self.sources)), np.nan)
            for u, unit in enumerate(found.units):
                table[u, tried] = lost[:, unit.first : unit.last].sum(1)
            if against is not None:
                table[0, tried] -= leave_one_out.drops(against, positions, prompts, way).sum(1)
            checks[way] = on_a_grid(table) if np.isfinite(table).all() else table
        settings = {**found.settings, "checked": len(tried), "forwards": round(without.forwards, 2)}
        logprobs = tuple(map(float, without.logprobs))
        return replace(found, checks=checks, logprobs=logprobs, settings=settings)

    def _without(self, source: Source) -> Callable[[], Other]:
        """The prompt without a source, made when it is asked for."""
        left = self.prompt.text[: source.start] + self.prompt.text[source.end :]

        def made() -> Other:
            if self.seen is None:
                return encoded(self.run.tokenizer, left, self.prompt.special, self.run.apart)[0], {}
            try:
                again = patches.read_images(self.run.model, self.run.tokenizer, left, self.seen.given, self.device)
            except InputError as error:
                raise SelectionError(
                    f"check_by='removal' cannot take the source {source.name!r} out of a prompt with images: {error} "
                    "Use check_by='mask'."
                ) from error
            return ([], {}) if again is None else (again.ids, again.batch)

        return made


def _contrast(mine: F64, theirs: F64, prompt: int) -> F64:
    """Scores of this answer minus those of the other; zero behind the prompt, where the two have other words."""
    out = np.zeros_like(mine)
    out[:, :prompt] = mine[:, :prompt] - theirs[:, :prompt]
    return out


def _tried(found: Attribution, count: int) -> list[int]:
    """The greatest sources of the whole answer, by the method that ranks them, in the order of the prompt."""
    return sorted(found.ranked(0)[:count])


def _read(
    model: nn.Module, tokenizer: Any, prompt: Any, answer: str | None, sources: Any, images: Any, wanted: _Wanted,
    advance: Progress,
) -> _Job:  # fmt: skip
    apart = bool(getattr(model.config, "is_encoder_decoder", False))
    given = read_prompt(tokenizer, prompt)
    device = device_of(model)
    seen = patches.read_images(model, tokenizer, given.text, images, device)
    ids, offsets = encoded(tokenizer, given.text, given.special, apart) if seen is None else (seen.ids, seen.offsets)
    check_length(model, len(ids), 1, apart)
    split = given.split if sources is None else sources
    if seen is not None and isinstance(split, str) and split == "patches":
        found: tuple[Source, ...] = seen.sources
        owners = seen.owners
    else:
        found = find_sources(given.text, given.pieces, split)
        owners = owners_of(offsets, given.text, found)
    more = _pixels(seen)
    text = given.answer if answer is None else answer
    if text is None:
        made = _generated(model, ids, more, apart, wanted.max_new_tokens, advance)
        reading = read_generated(tokenizer, ids, made)
    else:
        reading = _answered(tokenizer, given, seen, ids, text, apart)
    check_length(model, len(ids), len(reading.answer_ids), apart)
    run = make_run(model, tokenizer, ids, reading.answer_ids, more, device)
    whole = np.full(run.positions, ANSWER, np.int64)
    whole[: len(ids)] = owners
    _refuse_empty(found, owners)
    notes: tuple[str, ...] = () if text is not None else ("The answer is the model's own.",)
    if seen is not None and found is seen.sources:
        notes += seen.notes
    return _Job(run, given, reading, found, whole, seen, notes)


def _answered(
    tokenizer: Any, prompt: Prompt, seen: Seen | None, ids: Sequence[int], answer: str, apart: bool
) -> Reading:
    """An answer that was given, behind the prompt and its images."""
    return read_answer(tokenizer, prompt, ids, answer, apart) if seen is None else seen.answered(tokenizer, answer)


def _pixels(seen: Seen | None) -> dict[str, Any]:
    return {} if seen is None else seen.batch


def _refuse_empty(found: Sequence[Source], owners: Sequence[int]) -> None:
    held = set(owners)
    for number, source in enumerate(found):
        if number not in held and source.kind != "question":
            raise InputError(
                f"The source {source.name!r} ({source.text[:20]!r}) has no token of its own: the tokenizer joins it "
                "with what stands before it. Make it longer, or leave it to its neighbour."
            )


def _generated(
    model: nn.Module, ids: Sequence[int], more: Mapping[str, Any], apart: bool, most: int | None, advance: Progress
) -> list[int]:
    """What the model writes after the prompt, by its own generation config."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    config: Any = getattr(model, "generation_config", None)
    if config is None or not generates(model):
        raise InputError(
            f"answer=None, and {type(model).__name__} cannot generate. Give the answer, or load the model with a "
            "language head:  AutoModelForCausalLM.from_pretrained(name)"
        )
    limit = _most(model, config, most, len(ids), apart)
    batch = {**more, "input_ids": torch.tensor([list(ids)], device=device_of(model))}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    begun: list[int] = []

    class Counted(StoppingCriteria):
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
            begun.append(1)
            advance("writing the answer", len(begun), limit)
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    options: dict[str, Any] = {"max_new_tokens": limit, "stopping_criteria": StoppingCriteriaList([Counted()])}
    if config.pad_token_id is None:
        end = config.eos_token_id
        options["pad_token_id"] = end[0] if isinstance(end, list) else end
    with undisturbed(model) as module, torch.no_grad(), model_errors(module, batch):
        made = module.generate(**batch, **options)  # type: ignore[operator]
    row: list[int] = made[0].tolist()
    return row if apart else row[len(ids) :]


def _most(model: nn.Module, config: Any, most: int | None, tokens: int, apart: bool) -> int:
    """How many tokens the model writes at most: no more than it has positions for."""
    whole = (getattr(config, "max_length", None) or 0) - (1 if apart else tokens)
    wanted = most or config.max_new_tokens or (whole if whole > 0 else MAX_NEW_TOKENS)
    left = room(model, tokens, apart)
    return int(wanted) if left is None else min(int(wanted), left)


def _split(reading: Reading, units: str) -> tuple[Unit, ...]:
    """The whole answer, and its sentences or tokens; a token belongs to the part in which its first letter stands."""
    text, spans = reading.answer, reading.answer_offsets
    whole = Unit(text, 0, len(text), 0, len(spans), "whole")
    if units == "whole":
        return (whole,)
    if units == "tokens":
        return (whole, *(Unit(text[a:b], a, b, i, i + 1, "token") for i, (a, b) in enumerate(spans)))
    parts = sentences(text)
    found = [Source("", text[a:b], a, b) for a, b in parts]
    owner = owners_of(spans, text, found)
    out = [whole]
    for number, (a, b) in enumerate(parts):
        mine = [i for i, o in enumerate(owner) if o == number]
        if mine:
            out.append(Unit(text[a:b], a, b, mine[0], mine[-1] + 1, "sentence"))
    return tuple(out)


def _units(units: str) -> str:
    if word(units, "units") not in UNITS:
        raise SelectionError(f"units={units!r} is not known. Use {', '.join(map(repr, UNITS))}.")
    return units


def checked_count(check: int | str | None) -> int | None:
    """How many sources are left out, one by one; None for none."""
    if check is None:
        return None
    if isinstance(check, str) and check == "all":
        return 1 << 30
    if not is_whole(check):
        raise SelectionError(f"check={check!r} is not known. Use a number of sources, or 'all'.")
    return at_least(check, 0, "check") or None


def _refuse_model(model: nn.Module) -> None:
    if not hasattr(model, "config") or not getattr(model, "get_output_embeddings", lambda: None)():
        raise InputError(
            f"{type(model).__name__} has no language head, so it gives an answer no probability. Load it with one:  "
            "AutoModelForCausalLM.from_pretrained(name)"
        )


@contextmanager
def _progress(show: bool) -> Iterator[Progress]:
    if not show:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
