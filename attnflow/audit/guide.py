"""Do token weights carry anything to a model without context? (Wiegreffe & Pinter 2019, section 3.3)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnflow import files
from attnflow.audit.finding import Finding
from attnflow.audit.imposter import CONVENTIONS, BaseOutcomes, train_imposter
from attnflow.audit.outcomes import (
    AttentionRow,
    grades,
    outcome,
    over_seeds,
    pad_rows,
    predictions,
    rank_quality,
    row_of,
)
from attnflow.audit.registry import experiment
from attnflow.audit.splits import PARTS, Batch, Progress, Split, Splits
from attnflow.audit.training import Folder, Recipe, Trained, build, cross_entropy, fit, inside, trained
from attnflow.capturing.capture import capture
from attnflow.errors import FileError, SelectionError, ShapeError
from attnflow.inputs.encode import device_of
from attnflow.inputs.example import one_example
from attnflow.inputs.running import undisturbed
from attnflow.models.factories import Factory
from attnflow.scoring.registry import MethodCall, find, names
from attnflow.significance import LEVEL, holm, of_seeds

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Weights = dict[str, tuple[Tensor, ...]]
"""For each part of the data one vector per text: a weight for each token, summing to one, zero at special tokens."""
UNIFORM, OWN, ADVERSARY = "uniform", "own trained", "adversary"
_BATCH = 32
_LIMITS = (
    "A guide that helps carries something that a model of single tokens can use; that may be what the base drew on, or "
    "only which words matter to the task in general.",
    "The token-wise models have several seeds, the base and the split have one: another base may guide otherwise.",
    "The base has seen the training texts with their labels, and its weights on them may carry these labels.",
)


def _options(run: Mapping[str, Any], findings: Mapping[str, Finding]) -> dict[str, Any]:
    """The first λ above 0 of those that the imposters are trained with, and the methods of the run as guides."""
    adversary = next((penalty for penalty in run.get("penalties", ()) if penalty > 0), None)
    return {"adversary": adversary} | ({"guides": run["methods"]} if "methods" in run else {})


@experiment(
    "3",
    "Do the weights help a model that sees each token by itself?",
    trains=True,
    options=_options,
)
def guide(
    factory: Factory,
    data: Splits,
    *,
    guides: Sequence[str] | None = None,
    adversary: float | None = None,
    width: int = 128,
    vectors: Tensor | None = None,
    folder: Folder = None,
    seed: int = 0,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    recipe: Recipe | None = None,
    training: Recipe | None = None,
    imposters: Recipe | None = None,
    attention_row: AttentionRow | None = None,
    convention: str = "exact",
    progress: Progress | None = None,
) -> Finding:
    """A token-wise model without context whose token weights are frozen to those of a guide, trained for each guide.

    Test 3 of Wiegreffe & Pinter (2019, section 3.3, table 3): the weights that help a model which sees each word by
    itself carry something about the words. The guides are uniform weights, those that the model learns by itself, the
    base's raw attention, its rollout and its flow, and the attention of an imposter. Special tokens get no weight.

    Args:
        guides: names of :func:`attnflow.methods`; by default raw attention, rollout and flow; of a model with one row
            of attention (a pooling layer, where rollout and flow are raw attention) the first.
        adversary: the λ of an imposter whose attention guides too (see :func:`imposter`); None for none.
        width: the size of the embedding and of the states of the token-wise model.
        vectors: trained word vectors ``[words, size]`` for the token-wise model to begin with; random by default.
        seeds: of the token-wise models, one training for each guide and seed; ``seed`` is the base's.
        training: how the token-wise models are trained; by default like the base.
        imposters: how the imposter is trained; by default like the base.
        attention_row: the layer and row of "raw", and the row of "rollout" and "flow", which are read at the top layer.
        convention: see :func:`imposter`.
        factory, data, folder, seed, recipe, progress: as for :func:`uniform`. The weights are kept in ``folder`` too.

    Returns:
        A :class:`Finding`; a record has the ``guide``, the ``seed``, the ``instance`` (the number of a test text), its
        ``label``, the ``predicted`` class and whether it is ``right``.

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 4, [1, 0] * 4)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> make = lambda s: LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4))
    >>> guide(make, data, width=4, recipe=Recipe(epochs=1)).table["guide"].tolist()
    ['uniform', 'own trained', 'raw']
    """
    import pandas as pd

    wanted = _check(guides, adversary, convention)
    _check_vectors(vectors, data)
    base = trained(factory, data, seed=seed, folder=folder, recipe=recipe, progress=progress)
    attention_row = row_of(attention_row, base.model, data)
    names = wanted if wanted is not None else _default(base.model, data)
    weights: dict[str, Weights | None] = {UNIFORM: uniform_rows(data), OWN: None}
    for name in names:
        place = inside(folder, f"guides-{seed}", f"{_file(name)}.safetensors")
        weights[name] = guide_weights(name, base.model, data, attention_row, place, base.identity, progress)
    if adversary is not None:
        other = train_imposter(
            factory, data, base, BaseOutcomes.of(base.model, data, attention_row), adversary, seed=seed, folder=folder,
            recipe=imposters or recipe, attention_row=attention_row, convention=convention, progress=progress,
        )  # fmt: skip
        weights[ADVERSARY] = guide_weights("raw", other.model, data, attention_row)
    rows, parts = [], []
    for name, given in weights.items():
        runs = []
        for one in seeds:
            place = inside(folder, f"guided-{seed}", f"{_file(name)}-{one}")
            model = _token_wise(given is None, data, width, vectors, one)
            run = _guided(
                model, name, given, data, one, place, training or recipe, base.identity, attention_row, progress
            )
            said = predictions(data.test, data.pad, _forward(run.model, given, "test"), device_of(run.model))
            runs.append({**grades(said, data.test), "best epoch": run.epoch, "validation": run.score})
            parts.append(_records(name, one, said, data))
        rows.append({"guide": name, **over_seeds(runs)})
    table, records = pd.DataFrame(rows), pd.concat(parts, ignore_index=True)
    verdict, tests = judged(table, records)
    settings = {
        "seed": seed, "seeds": list(seeds), "guides": list(weights), "adversary": adversary, "width": width,
        "vectors": "random" if vectors is None else f"given, {vectors.shape[1]} numbers per word",
        "recipe": recipe or Recipe(),
        "training": training or recipe or Recipe(), "data": repr(data), "attention": attention_row.describe(),
        "rollout and flow": "top layer, residual ½; special tokens dropped, divided by the sum",
    }  # fmt: skip
    return Finding("guide", table, records, verdict, _LIMITS, settings, lambda ax: _draw(ax, table), tests=tests)


def guide_weights(
    method: str,
    model: Any,
    data: Splits,
    attention_row: AttentionRow,
    path: Path | None = None,
    identity: str = "",
    progress: Progress | None = None,
) -> Weights:
    """How ``model`` weighs the tokens of every text by ``method``; read from ``path`` if they are there.

    ``method``: "raw" (the attention row), or another method of :func:`attnflow.methods`: one that needs
    attention is read at the top layer, in the row of the same position.
    """
    call = MethodCall(method, find(method, argument="guide"))
    name = f"{method} {attention_row} of {identity}"
    if path is not None and path.is_file():
        return _read(path, name, data)
    found: Weights = {}
    for part in PARTS:
        split: Split = getattr(data, part)
        if method == "raw":
            rows: Sequence[Tensor] = outcome(model, split, data.pad, attention_row).attention
        else:
            rows = _scored(call, model, split, data, attention_row, progress)
        found[part] = settled(rows, split, data)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {part: torch.cat(rows).numpy() for part, rows in found.items()}
        files.save(path, "guide", arrays, {"name": name}, overwrite=True)
    return found


def uniform_rows(data: Splits) -> Weights:
    """The same weight for every word of a text."""
    return {
        part: settled([torch.ones(len(x)) for x in getattr(data, part).ids], getattr(data, part), data)
        for part in PARTS
    }


def settled(rows: Sequence[Tensor], split: Split, data: Splits) -> tuple[Tensor, ...]:
    """Special tokens dropped and the rest divided by its sum; uniform over the words where nothing is left of it."""
    out = []
    for row, ids in zip(rows, split.ids, strict=True):
        tokens = torch.tensor([ids])
        words = data.text_tokens(tokens, torch.ones_like(tokens))[0]
        kept = torch.where(words, row.clamp(min=0), 0.0)
        total = float(kept.sum())
        out.append(kept / total if total > 0 else words.float() / words.sum())
    return tuple(out)


def _scored(
    call: MethodCall, model: Any, split: Split, data: Splits, attention_row: AttentionRow, progress: Progress | None
) -> Sequence[Tensor]:
    rows: list[Tensor] = [torch.empty(0)] * len(split)
    done = 0
    for batch in split.batches(_BATCH, data.pad):
        found = _batch_scores(call, model, batch.to(device_of(model)), attention_row)
        for i, scores in zip(batch.index, found, strict=True):
            rows[i] = torch.from_numpy(np.ascontiguousarray(scores)).float()
        done += len(batch.index)
        if progress is not None:
            progress(done, len(split))
    return rows


def _batch_scores(call: MethodCall, model: Any, batch: Batch, attention_row: AttentionRow) -> list[Any]:
    """Scores of the top layer (one vector per text) of a batch."""
    if call.method.needs == "model":
        lengths = batch.mask.sum(1).tolist()
        return [_alone(call, model, batch.ids[i, :n].tolist()) for i, n in enumerate(lengths)]
    given = {"input_ids": batch.ids, "attention_mask": batch.mask}
    found: Any = capture(model, None, given, **call.captured)
    place = {"cls": 0, "last": -1}.get(str(attention_row.position), attention_row.position)
    listed = found if isinstance(found, list) else [found]
    return [call.run(None, None, one, place).scores[-1] for one in listed]


def _alone(call: MethodCall, model: Any, ids: list[int]) -> Any:
    with undisturbed(model) as module:
        example = one_example(module, None, ids)
        goal, _ = example.goal(None, None, None)
        return call.run(example, goal).scores[-1]


def _read(path: Path, name: str, data: Splits) -> Weights:
    arrays, header = files.load(path, "guide")
    lengths = {part: [len(x) for x in getattr(data, part).ids] for part in PARTS}
    if header.get("name") != name or any(len(arrays[part]) != sum(lengths[part]) for part in PARTS):
        raise FileError(
            f"{path} holds the weights {header.get('name')!r}, and {name!r} were asked for, on these data. Give "
            "another folder=, or delete this file."
        )
    return {part: torch.split(torch.from_numpy(arrays[part]), lengths[part]) for part in PARTS}


def _token_wise(own: bool, data: Splits, width: int, vectors: Tensor | None, seed: int) -> Any:
    """The model that sees each word by itself, with attention of its own or for given weights."""
    from attnflow.models.lstm import LSTMClassifier, LSTMConfig

    config = LSTMConfig(
        data.vocabulary, width if vectors is None else vectors.shape[1], width, encoder="average",
        attention="tanh" if own else "given", skip_edges=data.edges, pad_token_id=data.pad, num_labels=data.classes,
    )  # fmt: skip
    return build(lambda _: LSTMClassifier(config, vectors), seed)


def _guided(
    model: Any, name: str, given: Weights | None, data: Splits, seed: int, folder: Folder, recipe: Recipe | None,
    identity: str, attention_row: AttentionRow, progress: Progress | None,
) -> Trained:  # fmt: skip
    """The token-wise model trained under one guide; its own attention is trained where ``given`` is None."""
    recipe = recipe or Recipe()
    forward = _forward(model, given, "train")
    plain = cross_entropy(data, recipe.balanced, lambda model, batch: forward(batch))

    def score(model: Any, split: Split) -> float:
        return rank_quality(
            predictions(split, data.pad, _forward(model, given, "valid"), device_of(model)), split.labels
        )

    full = f"guide {name} {attention_row} of {identity[:16]}"
    return fit(model, data, recipe, loss=plain, score=score, folder=folder, name=full, seed=seed, progress=progress)


def _forward(model: Any, given: Weights | None, part: str) -> Any:
    """Logits of a batch of one part, under the guide."""

    def forward(batch: Batch) -> Tensor:
        weights = None
        if given is not None:
            weights = pad_rows([given[part][i] for i in batch.index], batch.ids.shape[1]).to(batch.ids.device)
        logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask, token_weights=weights).logits
        return logits

    return forward


def _check(guides: Sequence[str] | None, adversary: float | None, convention: str) -> tuple[str, ...] | None:
    if adversary is not None and adversary < 0:
        raise SelectionError(f"adversary={adversary}, and it is a λ of 0 or more:  adversary=0.0005")
    if convention not in CONVENTIONS:
        raise SelectionError(f"convention={convention!r} is not known. Use {' or '.join(map(repr, CONVENTIONS))}.")
    for name in guides or ():
        find(name, argument="guide")
    return None if guides is None else tuple(dict.fromkeys(guides))


def _default(model: Any, data: Splits) -> tuple[str, ...]:
    only = capture(model, None, list(data.train.ids[0])).only
    shown = names("attention", shown=True)
    return shown[:1] if len(only.queries) == 1 < len(only.keys) else shown


def _check_vectors(vectors: Tensor | None, data: Splits) -> None:
    if vectors is not None and (vectors.ndim != 2 or len(vectors) != data.vocabulary):
        raise ShapeError(
            f"vectors have shape {tuple(vectors.shape)}, and the texts have {data.vocabulary} words: one row each,  "
            f"torch.zeros({data.vocabulary}, 100)"
        )


def _file(name: str) -> str:
    """The name of a guide as that of a file, on any system: "rollout:alti" has a sign that some do not take."""
    return name.replace(" ", "-").replace(":", "-")


def _records(name: str, seed: int, said: Tensor, data: Splits) -> pd.DataFrame:
    import pandas as pd

    predicted = said.argmax(-1).numpy()
    return pd.DataFrame(
        {
            "guide": name,
            "seed": seed,
            "instance": np.arange(len(predicted)),
            "label": data.test.labels,
            "predicted": predicted,
            "right": predicted == data.test.labels,
        }
    )


def judged(table: pd.DataFrame, records: pd.DataFrame) -> tuple[str, dict[str, float]]:
    """The verdict in words, and the p-value of every comparison, uncorrected.

    Each guide is compared with uniform weights, and rollout, flow and their like with raw attention: by the texts that
    are answered rightly under one and not under the other, where the seeds show the difference too (see
    :func:`attnflow.significance.of_seeds`). In words a difference is called one where it holds after Holm's correction
    for all comparisons here.
    """
    found = dict(zip(table["guide"], table["F1"], strict=True))
    others = [name for name in found if name not in (UNIFORM, OWN, ADVERSARY)]
    figures = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    right = {
        name: part.pivot(index="seed", columns="instance", values="right").astype(int)
        for name, part in records.groupby("guide")
    }
    first = names("attention", shown=True)[0]
    pairs = [(name, UNIFORM) for name in others]
    pairs += [(name, first) for name in others if name != first and first in found and find(name).needs == "attention"]
    p_values = [of_seeds(right[one] - right[two]) for one, two in pairs]
    said = [
        _compared(one, two, records, corrected) for (one, two), corrected in zip(pairs, holm(p_values), strict=True)
    ]
    count = records["seed"].nunique()
    text = f"F1 under each guide, mean of {count} seed{'s' if count > 1 else ''}: {figures}. " + "; ".join(said) + "."
    return text, {f"guide: {one} against {two}": p for (one, two), p in zip(pairs, p_values, strict=True)}


def _compared(one: str, two: str, records: pd.DataFrame, corrected: float) -> str:
    """Whether one guide is better than another on the same texts."""
    right = records.groupby(["guide", "seed"])["right"].mean()
    apart = right[one] - right[two]
    how = f"better in {int((apart > 0).sum())} of {len(apart)} seeds, corrected p = {corrected:.2g}"
    if corrected >= LEVEL:
        return f"{one} does not differ significantly from {two} ({how})"
    return f"{one} carries {'more' if apart.mean() > 0 else 'less'} than {two} ({how})"


def _draw(ax: Axes, table: pd.DataFrame) -> None:
    ax.bar(table["guide"].tolist(), table["F1"].to_numpy(), yerr=table["F1 std"].to_numpy(), capsize=3)
    ax.set_ylabel("F1 on the test set (± std over seeds)")
    ax.set_ylim(0, 1)
    ax.tick_params(axis="x", rotation=20)
