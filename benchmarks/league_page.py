"""What docs/league.md shows of the leagues: numbers as CSV files, one figure, one short table for each league.

The figure and the tables are drawn from the CSV files alone, so that they can be drawn again without a computation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from report import insert, markdown, save

from attnflow.faithfulness import League
from attnflow.faithfulness.reading import verdict

TITLES = {
    "verb-shipped": "verb number, the model in the package",
    "verb-smollm2": "verb number, SmolLM2-135M",
    "sst2-minilm": "SST-2, MiniLM",
    "sst2-minilm-twelve": "SST-2, MiniLM, twelve methods",
    "sst2-distilbert": "SST-2, DistilBERT",
    "agnews-minilm": "AG News, MiniLM",
}
FAMILIES = {
    "attention weights": "#0072b2",
    "better edges": "#009e73",
    "gradients": "#cc79a7",
    "blank-out (ceiling)": "#d55e00",
    "baseline": "#888888",
}
SHOWN = (
    "raw", "rollout", "flow", "direct", "rollout:norm", "rollout:alti", "flow:alti", "direct:alti",
    "rollout:value_zeroing", "direct:value_zeroing", "rollout:gradient", "flow:gradient", "chefer", "gradient",
    "input_x_gradient", "integrated_gradients", "integrated_gradients-signed", "blankout", "blankout-signed",
)  # fmt: skip
PAPER = ("raw", "rollout", "flow")
BY_LAYER = (*PAPER, "direct", "rollout:alti", "flow:alti", "direct:alti", "rollout:gradient", "chefer")


def write_page(work: Path, docs: Path) -> None:
    """Write the CSV files of every league in ``work``, then the page from the CSV files."""
    (docs / "data").mkdir(parents=True, exist_ok=True)
    for folder in sorted(p for p in work.iterdir() if (p / "settings.json").is_file()):
        league = League.load(folder)
        if not league.examples:
            continue
        short = {"float_format": "%.4f", "index": False}
        by_registry(league.to_frame()).to_csv(docs / "data" / f"league-{folder.name}.csv", **short)  # type: ignore[call-overload]
        if not folder.name.endswith(("-layers", "-random")):
            table = by_registry(league.standings()).assign(league=folder.name, examples=league.examples)
            table.to_csv(docs / "data" / f"league-{folder.name}-standings.csv", **short)  # type: ignore[call-overload]
    draw(docs)


def by_registry(frame: pd.DataFrame) -> pd.DataFrame:
    """Methods under the names of the registry, also those that an older run called otherwise."""
    texts = [c for c in ("method", "name") if c in frame]
    return frame.assign(**{c: frame[c].str.replace(" signed", "-signed", regex=False) for c in texts})


def draw(docs: Path) -> None:
    """The figure and the tables, from the CSV files."""
    leagues = {
        name: pd.read_csv(docs / "data" / f"league-{name}-standings.csv")
        for name in TITLES
        if (docs / "data" / f"league-{name}-standings.csv").is_file()
    }
    save(figure(leagues), docs / "images" / "league.svg")
    picture = "![Share of the other methods that each method beats, with 95 % intervals](images/league.svg)"
    insert(docs / "league.md", "figure", picture)
    parts = []
    for name, table in leagues.items():
        said = verdict(table, int(table["examples"].iloc[0]))
        link = f"[All numbers](data/league-{name}.csv), [all standings](data/league-{name}-standings.csv)."
        parts.append(
            f"### {TITLES[name][0].upper()}{TITLES[name][1:]}\n\n{said}\n\n{short_table(docs, name, table)}\n\n{link}"
        )
    insert(docs / "league.md", "tables", "\n\n".join(parts))
    insert(docs / "league.md", "depth", depth(docs))
    insert(docs / "league.md", "random", randomised(docs))


def titled(name: str) -> str:
    """The name of a league at the beginning of a sentence."""
    return TITLES[name][0].upper() + TITLES[name][1:]


def family(row: Any) -> str:
    """The colour of a line."""
    if row.role == "ceiling":
        return "blank-out (ceiling)"
    if row.method in ("random", "length"):
        return "baseline"
    if row.layer == -1:
        return "gradients"
    return "better edges" if ":" in row.method or row.method == "chefer" else "attention weights"


def figure(leagues: dict[str, pd.DataFrame]) -> Any:
    """One panel for each league; methods in one order, by their mean over the leagues."""
    from matplotlib.figure import Figure

    means = pd.concat(leagues.values()).groupby("method")["wins"].mean()
    order = [m for m in means.sort_values().index if m in SHOWN]
    drawn = Figure(figsize=(1.9 + 3.2 * len(leagues), 0.9 + 0.26 * len(order)), layout="constrained")
    panels = drawn.subplots(1, len(leagues), sharey=True, squeeze=False)[0]
    for panel, (name, table) in zip(panels, leagues.items(), strict=True):
        rows: Any = table[table["method"].isin(order)].itertuples()
        for row in rows:
            y, colour = order.index(row.method), FAMILIES[family(row)]
            panel.plot([row.low, row.high], [y, y], color=colour, linewidth=2)
            panel.plot([row.wins], [y], "o", color=colour, markersize=5)
        random = float(table[table["method"] == "random"]["wins"].iloc[0])
        panel.axvline(random, color=FAMILIES["baseline"], linestyle="--", linewidth=1)
        panel.set(xlim=(0, 1), title=f"{TITLES[name]}\n{int(table['examples'].iloc[0])} texts")
        panel.title.set_fontsize(9)
        panel.set_xlabel("share of other methods beaten\n(dashed: a random ranking)", fontsize=8)
    panels[0].set_yticks(range(len(order)), order, fontsize=8)
    used = [f for f in FAMILIES if f != "baseline"]
    handles = [panels[0].plot([], [], "o", color=FAMILIES[f], label=f)[0] for f in used]
    drawn.legend(handles=handles, loc="outside lower center", ncols=len(used), fontsize=8, frameon=False)
    return drawn


def short_table(docs: Path, name: str, table: pd.DataFrame) -> str:
    """The best five, the paper's three, the baselines and the best ceiling: wins, and the means of some measures."""
    frame = pd.read_csv(docs / "data" / f"league-{name}.csv", keep_default_na=False, na_values=["nan"])
    wanted = [
        m for m in ("pointing", "comprehensiveness", "sufficiency", "leave_one_out") if m in set(frame["measure"])
    ]
    columns = [(m, k) for m in wanted for k in dict.fromkeys(frame[frame["measure"] == m]["kind"])]
    methods = table[~table["role"].isin(["ceiling"])]["method"].tolist()
    top = [*methods[:5], *PAPER, "random", *table[table["role"] == "ceiling"]["method"].tolist()[:1]]
    rows: list[list[object]] = []
    for row in [r for r in table.itertuples() if r.method in top]:
        line: list[object] = [row.name if row.role == "method" else f"{row.name} ({row.role})"]
        line.append(f"{row.wins:.2f} ({row.low:.2f}–{row.high:.2f})")
        for m, k in columns:
            cell = frame[(frame["method"] == row.method) & (frame["measure"] == m) & (frame["kind"] == k)]
            line.append("–" if cell.empty else f"{float(cell['mean'].iloc[0]):.3f}")
        # What blank-out runs is shared with leaving one out, so that its time is nobody's alone.
        rows.append([*line, f"{row.ties:.2f}", "–" if row.role == "ceiling" else f"{row.seconds:.2f}"])
    head = ["method", "wins (95 %)", *(f"{m.replace('_', ' ')} {k}".strip() for m, k in columns), "ties", "s per text"]
    return markdown(head, rows)


def depth(docs: Path) -> str:
    """For each league with all layers, the mean of one measure by layer."""
    parts = []
    for name in TITLES:
        path = docs / "data" / f"league-{name}-layers.csv"
        if not path.is_file():
            continue
        frame = pd.read_csv(path, keep_default_na=False, na_values=["nan"])
        measure = "reciprocal_rank" if "reciprocal_rank" in set(frame["measure"]) else "leave_one_out"
        kept = frame[(frame["measure"] == measure)]
        kind = kept["kind"].iloc[0]
        wide = kept[kept["kind"] == kind].pivot_table(index="method", columns="layer", values="mean", sort=False)
        layers = [c for c in wide.columns if c >= 0]
        rows = [[m, *(f"{wide.loc[m, c]:.2f}" for c in layers)] for m in BY_LAYER if m in wide.index]
        chance = f"; a random ranking has {wide.loc['random', -1]:.2f}" if "random" in wide.index else ""
        shown = measure.replace("_", " ")
        said = f"{titled(name)}, {int(kept['n'].max())} texts: {shown}{' ' + kind if kind else ''}{chance}."
        parts.append(f"{said}\n\n{markdown(['method', *(f'layer {c}' for c in layers)], rows)}")
    return "\n\n".join(parts) or "No league with all layers is recorded."


def randomised(docs: Path) -> str:
    """Which scores survive when every weight is random."""
    parts = []
    for name in TITLES:
        path = docs / "data" / f"league-{name}-random.csv"
        if not path.is_file():
            continue
        frame = pd.read_csv(path)
        kept = frame[frame["measure"] == "randomisation"].sort_values("mean", ascending=False)
        rows = [[r.method, f"{r.mean:.2f}", f"{r.low:.2f}–{r.high:.2f}"] for r in kept.itertuples()]
        count = int(kept["n"].max())
        said = f"{titled(name)}, {count} texts: rank correlation with the scores on random weights."
        ends = [*rows[:5], ["…", "", ""], *rows[-4:]] if len(rows) > 10 else rows
        parts.append(f"{said}\n\n{markdown(['method', 'correlation', '95 %'], ends)}")
    return "\n\n".join(parts) or "Nothing is recorded."
