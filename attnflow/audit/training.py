"""One plain training loop for all experiments that train: checkpoints, early stopping, the best epoch at the end.

An epoch's order and dropout come from the seed and the epoch's number alone, so a run that was stopped and resumed
gives the same model as one that was not.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnflow.audit.outcomes import plain_logits, quality, row_of
from attnflow.audit.splits import Batch, Progress, Split, Splits
from attnflow.digests import digest_of, weights_digest
from attnflow.errors import FileError, InputError, SelectionError
from attnflow.files import as_path, reading, write_bytes, writing
from attnflow.inputs.encode import device_of
from attnflow.models.factories import Factory
from attnflow.numbers import at_least, check_kind, real, whole

Loss = Callable[[Any, Batch], Tensor]
Score = Callable[[Any, Split], float]
Folder = str | os.PathLike[str] | None
CHECKPOINT = "checkpoint.pt"
# Behind the checkpoint, so that a file that was cut short has lost it.
_MARK = b"attnflow sha256\n"
_TAIL = len(_MARK) + hashlib.sha256().digest_size
_GO_ON = "The checkpoint of the epoch before is as it was: make room, and start the same run again to go on from it."


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: Adam (amsgrad), as in the code of both papers.

    Attributes:
        epochs: the largest number of epochs.
        patience: stop after this many epochs in a row without improvement on the validation set.
        batch: instances in a step.
        rate: learning rate.
        decay: weight decay (L2).
        clip: largest norm of the gradient.
        balanced: weigh the classes so that each counts the same.
    """

    epochs: int = 8
    patience: int = 3
    batch: int = 32
    rate: float = 1e-3
    decay: float = 1e-5
    clip: float = 5.0
    balanced: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch"):
            at_least(getattr(self, name), 1, name, f":  Recipe({name}=1)")
        if not 0 < real(self.rate, "rate") < math.inf:
            raise SelectionError(f"rate={self.rate}, and a learning rate is above 0:  Recipe(rate=0.001)")


@dataclass(frozen=True, eq=False)
class Trained:
    """A model at its best epoch.

    Attributes:
        model: the model, in evaluation mode.
        epoch: the best epoch, from 1.
        score: its validation score.
        history: of each epoch the mean loss of a training step and the validation score.
        identity: a digest of everything that led to it: data, first weights, recipe, seed.
    """

    model: Any
    epoch: int
    score: float
    history: tuple[Mapping[str, float], ...]
    identity: str


def cross_entropy(data: Splits, balanced: bool, forward: Loss = plain_logits) -> Loss:
    """The usual loss of a classifier, its classes weighed by ``balanced``; ``forward`` gives the logits."""
    weights = data.weights() if balanced else None

    def loss(model: Any, batch: Batch) -> Tensor:
        logits = forward(model, batch)
        return F.cross_entropy(logits, batch.labels, None if weights is None else weights.to(logits.device))

    return loss


def fit(
    model: Any,
    data: Splits,
    recipe: Recipe | None = None,
    *,
    loss: Loss | None = None,
    score: Score | None = None,
    folder: Folder = None,
    name: str = "classifier",
    seed: int = 0,
    progress: Progress | None = None,
) -> Trained:
    """Train ``model`` in place, and leave it at the epoch that was best on the validation set.

    Args:
        model: a classifier: called with ``input_ids`` and ``attention_mask``, it returns ``logits`` [batch, classes].
        data: its parts; ``data.test`` is not looked at.
        recipe: how long and how fast.
        loss: ``loss(model, batch)`` of one step; by default cross-entropy with the labels.
        score: ``score(model, data.valid)``, larger is better, once per epoch; by default the area under the ROC curve
            for two classes (the choice of Jain & Wallace's code) and the accuracy for more.
        folder: a checkpoint is written here after every epoch; a run that was stopped goes on from it, and one that was
            finished is read from it.
        name: what is trained, for the checkpoint: two runs with other losses must have other names.
        seed: the seed of the order of the batches and of dropout.
        progress: called with (steps done, largest number of steps).

    >>> from attnflow.models.lstm import LSTMClassifier, LSTMConfig
    >>> from attnflow.models.tokenizers import word_tokenizer
    >>> part = (["good film", "bad film"] * 8, [1, 0] * 8)
    >>> data = Splits.of(word_tokenizer(["good", "bad", "film"]), part, part, part)
    >>> model = LSTMClassifier(LSTMConfig(data.vocabulary, 4, 4))
    >>> trained = fit(model, data, Recipe(epochs=12, batch=4, rate=0.05))
    >>> trained.score
    1.0
    """
    _check(model, data, recipe)
    recipe, seed = recipe or Recipe(), whole(seed, "seed")
    valued = score or (lambda model, split: quality(model, split, data.pad))
    run = _Run(model, data, recipe, loss or cross_entropy(data, recipe.balanced), valued, name, seed)
    path = None if folder is None else as_path(folder, "folder") / CHECKPOINT
    if path is not None:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        run.resume(path)
    with _own_chance():
        while not run.finished:
            run.epoch(progress)
            run.measure()
            if path is not None:
                run.save(path)
    return run.result()


@dataclass(eq=False)
class _Run:
    """Where a run stands."""

    model: Any
    data: Splits
    recipe: Recipe
    loss: Loss
    score: Score
    name: str
    seed: int
    best: dict[str, Tensor] = field(default_factory=dict)
    best_epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.identity = _identity(self.model, self.data, self.recipe, self.name, self.seed)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(
            trained, lr=self.recipe.rate, weight_decay=self.recipe.decay, amsgrad=True, fused=_fused(trained)
        )

    @property
    def finished(self) -> bool:
        """True if all epochs are done, or the last ones brought no improvement."""
        done = len(self.history)
        return done >= self.recipe.epochs or done - self.best_epoch >= self.recipe.patience

    def epoch(self, progress: Progress | None) -> None:
        """Go once through the training set."""
        number, recipe = len(self.history), self.recipe
        torch.manual_seed((self.seed * 1_000_003 + number) % 2**63)
        order = np.random.default_rng([self.seed % 2**32, number])
        steps = max(1, len(self.data.train) // recipe.batch)
        device = device_of(self.model)
        self.model.train()
        losses = []
        for batch in self.data.train.batches(recipe.batch, self.data.pad, order):
            loss = self.loss(self.model, batch.to(device))
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
            self.optimiser.step()
            losses.append(float(loss.detach()))
            if progress is not None:
                progress(number * steps + min(len(losses), steps), recipe.epochs * steps)
        self.history.append({"loss": float(np.mean(losses))})

    def measure(self) -> None:
        """Score the epoch on the validation set, and keep its weights if none was better."""
        self.model.eval()
        with torch.no_grad():
            reached = self.score(self.model, self.data.valid)
        self.history[-1]["score"] = float(reached)
        if not self.best or reached > self.history[self.best_epoch - 1]["score"]:
            self.best_epoch = len(self.history)
            self.best = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}

    def save(self, path: Path) -> None:
        """Write the checkpoint, whole or not at all; a finished run needs nothing but its best weights."""
        state: dict[str, Any] = {
            "identity": self.identity, "name": self.name, "history": self.history, "best_epoch": self.best_epoch,
            "best": self.best,
        }  # fmt: skip
        if not self.finished:
            state |= {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        data = io.BytesIO()
        torch.save(state, data)
        whole = data.getvalue()
        write_bytes(path, whole + _MARK + hashlib.sha256(whole).digest(), overwrite=True, advice=_GO_ON)

    def resume(self, path: Path) -> None:
        """Take up a run where its checkpoint left it."""
        if not path.is_file():
            return
        state = _read_checkpoint(path)
        if state.get("identity") != self.identity:
            raise FileError(
                f"{path} is of another run ({state.get('name')!r}) than {self.name!r} with these data, first weights, "
                "recipe and seed. Give another folder=, or delete this one."
            )
        with reading(path):
            self.history, self.best, self.best_epoch = state["history"], state["best"], state["best_epoch"]
            if not self.finished:
                self.model.load_state_dict(state["model"])
                self.optimiser.load_state_dict(state["optimiser"])

    def result(self) -> Trained:
        """The model at its best epoch."""
        self.model.load_state_dict(self.best)
        self.model.eval()
        score = self.history[self.best_epoch - 1]["score"]
        return Trained(self.model, self.best_epoch, score, tuple(self.history), self.identity)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """What :meth:`_Run.save` wrote; anything else, and anything that has changed since, is refused."""
    with reading(path):
        data = path.read_bytes()
    whole, mark, digest = data[:-_TAIL], data[-_TAIL : -_TAIL + len(_MARK)], data[-_TAIL + len(_MARK) :]
    if mark != _MARK or hashlib.sha256(whole).digest() != digest:
        raise FileError(f"{path} is not a whole checkpoint: its digest is missing or wrong. To begin again, delete it.")
    try:
        state = torch.load(io.BytesIO(whole), weights_only=True, map_location="cpu")
    except Exception as error:  # whatever the reader makes of bytes that may be anything
        raise FileError(
            f"{path} is not a whole checkpoint ({type(error).__name__}): delete it to begin again."
        ) from error
    if not isinstance(state, dict):
        raise FileError(f"{path} holds a {type(state).__name__}, not a checkpoint: delete it to begin again.")
    return state


def _check(model: Any, data: Any, recipe: Any) -> None:
    """Refuse wrong types, and a causal classifier that does not know the padding of the data.

    Such a model answers at the last token that is not padding, and would read the padding itself.
    """
    check_kind(nn.Module, model, "model")
    check_kind(Splits, data, "data")
    if recipe is not None:
        check_kind(Recipe, recipe, "recipe")
    own = getattr(getattr(model, "config", None), "pad_token_id", data.pad)
    if own != data.pad and row_of(None, model, data).position == "last":
        raise InputError(
            f"{type(model).__name__} is causal and answers at the last token that is not its padding (pad_token_id="
            f"{own}), and the texts are padded with {data.pad}. Say so in the factory:  "
            f"model.config.pad_token_id = {data.pad}"
        )


def build(factory: Factory, seed: int) -> Any:
    """A new model of the factory; its first weights come from ``seed`` also where the factory does not look at it."""
    seed = whole(seed, "seed")
    if not callable(factory):
        raise TypeError(f"factory={factory!r} is a {type(factory).__name__}, and a function of a seed is needed.")
    with _own_chance():
        torch.manual_seed(seed % 2**63)
        return factory(seed)


def trained(
    factory: Factory,
    data: Splits,
    *,
    seed: int = 0,
    folder: Folder = None,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Trained:
    """The model of ``factory`` trained on ``data``: the base of every experiment that trains.

    In ``folder`` it is kept as ``seed-<seed>``, so that the experiments that are given the same folder share it.
    """
    model = build(factory, seed)
    return fit(model, data, recipe, folder=inside(folder, f"seed-{seed}"), seed=seed, progress=progress)


def inside(folder: Folder, *parts: str) -> Path | None:
    """A folder in ``folder``, where there is one."""
    return None if folder is None else as_path(folder, "folder").joinpath(*parts)


@contextmanager
def _own_chance() -> Iterator[None]:
    """Random numbers in here leave the caller's as they were."""
    with torch.random.fork_rng():
        yield


def _fused(parameters: list[nn.Parameter]) -> bool:
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


def _identity(model: nn.Module, data: Splits, recipe: Recipe, name: str, seed: int) -> str:
    parts = [[part.ids, part.labels] for part in (data.train, data.valid)]
    given = [asdict(recipe), name, seed, type(model).__name__]
    return digest_of([given, parts, weights_digest(model)])
