"""The short tables of docs/reproduction.md beside the first one, each made from a CSV file between marks of its own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from report import insert, markdown
from tables_page import AUTHORS, METHODS, PAPER, SENTIMENT, TABLES, of_seeds, read

PLAIN = "as in the paper: UNK, right class, CLS and EOS kept"
# What stands for a variant of Table 1 in the table of choices.
CHOICES = {
    PLAIN: "as in the paper",
    "CLS and EOS left out of the vectors": "CLS and EOS left out",
    "dense ranks (the published code's formula)": "dense ranks, as in the published code",
    "the word deleted instead of UNK": "the word deleted instead of UNK",
}
# What stands for a variant of Table 2 in the demonstration.
MEASURES = {
    "Σ abs(gradient) of the right class's logit": "Σ\\|gradient\\|{}",
    "length of the gradient": "‖gradient‖₂{}",
    "rounding error: abs(Σ gradient of p₀ − p₁), as in the paper": "\\|Σ gradient\\|{}: rounding error",
}
SENTENCES = {"valid": "natural sentences", "test": "test sentences", "sst2": "sentences of SST-2"}
SEED = "seed 0"
RUN_NAMES = {"seed1": "seed 1", "seed2": "seed 2", "authors": AUTHORS, "authors-masked": f"{AUTHORS}, padding hidden"}


def draw(docs: Path) -> None:
    """Put the tables on the page."""
    correlations, accuracy, noise = read(docs)
    made = {
        "noise": noise_table(noise),
        "measures": gradient_table(correlations),
        "choices": choice_table(correlations),
        "accuracy": accuracy_table(accuracy),
    }
    for mark, table in made.items():
        insert(docs / "reproduction.md", mark, table)


def number(value: float) -> str:
    """Two digits and a real minus; a dash where there is no value.

    >>> number(-0.123), number(float("nan"))
    ('−0.12', '–')
    """
    return "–" if value != value else f"{value:.2f}".replace("-", "−")


def noise_table(noise: pd.DataFrame) -> str:
    """How much of Σ|g| is left in |Σg|, by model and sentences."""

    def power(value: float) -> str:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits} · 10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"

    rows = noise.sort_values(["model", "set"], kind="stable", key=lambda c: c.map(_place))
    lines = []
    for r in rows.itertuples():
        title = SENTIMENT.get(r.model, f"verb number, {r.model}")
        lines.append([f"{title}, {r.n:,} {SENTENCES[r.set]}", power(r.median), power(r.largest)])
    return markdown(["model, sentences", "median of Σ\\|g\\| that is left in \\|Σg\\|", "largest"], lines)


def _place(name: str) -> tuple[int, str]:
    """Verb-number models before classifiers of sentiment, the rest by name."""
    return (list(SENTIMENT).index(name) + 1 if name in SENTIMENT else 0, name)


def gradient_table(correlations: pd.DataFrame) -> str:
    """The last layer of seed 0 beside both measures of the gradient and beside rounding error, and the paper's row."""
    rows = correlations[correlations["table"] == "Table 2"]
    last = rows[rows["layer"] == rows["layer"].max()]
    own = last[last["model"] == SEED]
    lines = [
        [shown.format(f", {SENTENCES[part]}"), *_by_method(own[(own["variant"] == variant) & (own["set"] == part)])]
        for part in ("valid", "test")
        for variant, shown in MEASURES.items()
    ]
    paper = ["paper, from \\|Σ gradient\\|", *_by_method(last[last["model"] == PAPER])]
    return markdown(["compared with", *METHODS], [*lines, paper])


def _by_method(rows: pd.DataFrame) -> list[str]:
    return [number(float(rows.loc[rows["method"] == method, "mean"].iloc[0])) for method in METHODS]


def choice_table(correlations: pd.DataFrame) -> str:
    """What choices change in Table 1: seed 0 on natural sentences, layers 1 and the last."""
    rows = correlations[(correlations["table"] == "Table 1") & (correlations["set"] == "valid")]
    own = rows[rows["model"] == SEED].set_index(["variant", "method", "layer"])["mean"]
    places = [(method, layer) for method in ("rollout", "flow") for layer in (1, int(rows["layer"].max()))]
    lines = [[shown, *(number(own[variant, m, layer]) for m, layer in places)] for variant, shown in CHOICES.items()]
    return markdown(["choice", *(f"{method}, layer {layer}" for method, layer in places)], lines)


def accuracy_table(accuracy: pd.DataFrame) -> str:
    """Accuracy on the test sentences by number of attractors, a column for each model."""
    rows = accuracy[accuracy["set"] == "test"]
    models = sorted(rows["model"].unique(), key=lambda name: (not of_seeds([name])[0], name))
    shown = rows.pivot(index="attractors", columns="model", values="accuracy")
    frequent = rows.groupby("attractors")["majority"].first()
    order = ["all", *sorted(set(shown.index) - {"all"}, key=int)]
    lines = [[at, *(f"{shown.loc[at, m]:.3f}" for m in models), f"{frequent[at]:.3f}"] for at in order]
    return markdown(["attractors", *models, "always the more frequent number"], lines)


def training_table(training: pd.DataFrame) -> str:
    """The first, second and last model of every training: accuracy and the correlations of two layers."""
    last = int(training["layer"].max())
    values = training.set_index(["run", "sentences", "table", "method", "layer"])["mean"]
    lines = []
    order = {run: place for place, run in enumerate(RUN_NAMES)}
    runs = training.groupby("run", sort=False)
    for run, of_run in sorted(runs, key=lambda group: order.get(str(group[0]), len(order))):
        seen = sorted(of_run["sentences"].unique())
        for at in dict.fromkeys(seen[i] for i in (0, min(1, len(seen) - 1), -1)):
            found = [
                values.get((run, at, table, method, layer), float("nan"))
                for table in TABLES
                for method, layer in (("raw", 0), ("rollout", last), ("flow", last))
            ]
            accuracy = of_run.loc[of_run["sentences"] == at, "accuracy"].iloc[0]
            lines.append([f"{RUN_NAMES.get(str(run), run)}, {at:,}", f"{accuracy:.3f}", *map(number, found)])
    head = [f"{m}, {against}" for against in TABLES.values() for m in ("raw at layer 0", "rollout", "flow")]
    return markdown(["training, sentences seen", "accuracy", *head], lines)
