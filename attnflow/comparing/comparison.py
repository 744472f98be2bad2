"""The result of a comparison: a table of correlations, layer by layer, with how sure they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.comparing.records import COMPARE, failures, read_result, write_result
from attnflow.errors import FileError, SelectionError
from attnflow.formats import as_written
from attnflow.informative import rounding_note
from attnflow.numbers import at_least, check_kind, seed_of, truth, word

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

KEYS = ("method", "reference", "correlation", "special", "layer")
FORMAT = 2  # files of format 1 have no digest
# Where records say of which scores only rounding error is left: the column of their name, and that of the share.
ROUNDING = {"reference": "reference_rounding", "method": "rounding"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Correlations of methods with references, over a data set.

    Attributes:
        table: one record for each example, method, reference, correlation, layer, with and without special tokens
            (an Arrow table; :attr:`records` gives a pandas frame).
        settings: everything that was chosen.
        costs: seconds by part: "capture", each method, each reference, "correlate".
        bootstrap: how many resamples of the examples the confidence intervals are from.
        seed: the seed of these resamples.

    >>> import pyarrow as pa
    >>> rows = [{"example": i, "method": "raw", "reference": "gradient", "correlation": "spearman", "special": False,
    ...          "layer": 0, "value": v, "ties": 0.0} for i, v in enumerate([0.2, 0.4, float("nan")])]
    >>> c = Comparison(pa.Table.from_pylist(rows))
    >>> c.to_frame()[["mean", "n", "nan"]].round(2).values.tolist()
    [[0.3, 2.0, 1.0]]
    """

    table: pa.Table
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        import pyarrow as pa

        check_kind(pa.Table, self.table, "table")
        at_least(self.bootstrap, 0, "bootstrap")
        seed_of(self.seed)

    @property
    def records(self) -> pd.DataFrame:
        """One row for each example, method, reference, correlation and layer; failed examples left out."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame[frame["method"].notna()].reset_index(drop=True)

    @property
    def examples(self) -> int:
        """How many examples have records."""
        return len(set(self.records["example"]))

    @property
    def failed(self) -> dict[int, str]:
        """Examples that could not be scored, with the reason."""
        return failures(self.table)

    def __repr__(self) -> str:
        frame = self.records
        parts = [f"{frame[k].nunique()} {k}s" for k in ("method", "reference", "layer")]
        bad = f", {len(self.failed)} failed" if self.failed else ""
        return f"Comparison({self.examples} examples{bad} × {' × '.join(parts)}{careful(rounding_notes(frame))})"

    def to_frame(self) -> pd.DataFrame:
        """One row for each method, reference, correlation, special and layer.

        ``mean`` and ``std`` are over examples; ``low`` and ``high`` the 95 % bootstrap interval of the mean; ``n`` the
        examples that it is from; ``nan`` those left out because a scoring was constant; ``ties`` the mean share of
        pairs of inputs to which the method gives equal scores.
        """
        import pandas as pd

        rows = []
        for keys, group in self.records.groupby(list(KEYS), sort=False):
            values = group["value"].to_numpy(np.float64)
            kept = values[~np.isnan(values)]
            low, high = interval(kept, self.bootstrap, self.seed)
            found = {
                "mean": kept.mean() if len(kept) else np.nan,
                "std": kept.std(ddof=1) if len(kept) > 1 else np.nan,
                "low": low,
                "high": high,
                "n": len(kept),
                "nan": len(values) - len(kept),
                "ties": float(group["ties"].mean()),
            }
            rows.append({**dict(zip(KEYS, keys, strict=True)), **found})
        return pd.DataFrame(rows, columns=[*KEYS, "mean", "std", "low", "high", "n", "nan", "ties"])

    def _chosen(self, correlation: str | None, special: bool | None) -> pd.DataFrame:
        """The part of the summary that one table or plot shows."""
        frame = self.to_frame()
        if correlation is not None:
            word(correlation, "correlation")
        if special is not None:
            truth(special, "special")
        for name, value in (("correlation", correlation), ("special", special)):
            have = list(frame[name].unique())
            # Without special tokens by default: they take most of the attention and would decide the ranking.
            wanted = (sorted(have)[0] if name == "special" else have[0]) if value is None else value
            if wanted not in have:
                raise SelectionError(f"{name}={value!r} was not computed. There is: {', '.join(map(str, have))}.")
            frame = frame[frame[name] == wanted]
        return frame

    def plot(
        self,
        ax: Axes | None = None,
        *,
        reference: str | None = None,
        correlation: str | None = None,
        special: bool | None = None,
    ) -> Axes:
        """Layer curves, one for each method, with the bootstrap interval as a band.

        ``reference`` chooses one (the first by default); draw the others on axes of their own. What is rounding error
        is named below the axes.
        """
        from attnflow.figures import footnote, new_axes, new_figure

        frame = self._chosen(correlation, special)
        have = list(frame["reference"].unique())
        wanted = have[0] if reference is None else reference
        if wanted not in have:
            raise SelectionError(f"reference={reference!r} was not computed. There is: {', '.join(have)}.")
        frame = frame[frame["reference"] == wanted]
        axes = ax
        if axes is None:
            axes = new_axes(new_figure(5, 3.5))
        for method, curve in frame.groupby("method", sort=False):
            line = curve.sort_values("layer")
            (drawn,) = axes.plot(line["layer"], line["mean"], marker="o", label=str(method))
            axes.fill_between(line["layer"], line["low"], line["high"], alpha=0.2, color=drawn.get_color())
        axes.axhline(0, color="grey", linewidth=0.5)
        axes.set(xlabel="layer", ylabel=f"{frame['correlation'].iloc[0]} with {wanted}")
        axes.set_xticks(sorted(frame["layer"].unique()))
        axes.legend()
        records = self.records
        footnote(axes, rounding_notes(records[records["reference"] == wanted]))
        return as_written(axes)  # type: ignore[no-any-return]

    def _cells(self, correlation: str | None, special: bool | None) -> tuple[list[str], list[list[str]]]:
        frame = self._chosen(correlation, special)
        layers = sorted(frame["layer"].unique())
        lines = []
        for (reference, method), group in frame.groupby(["reference", "method"], sort=False):
            by_layer = group.set_index("layer")
            cells = [_cell(by_layer, layer) for layer in layers]
            counts = [f"{int(group['n'].max())}", f"{int(group['nan'].max())}", f"{group['ties'].mean():.2f}"]
            lines.append([str(reference), str(method), *cells, *counts])
        return ["reference", "method", *(f"layer {i}" for i in layers), "n", "NaN", "ties"], lines

    def to_markdown(self, correlation: str | None = None, special: bool | None = None) -> str:
        """Mean ± standard deviation per layer; n, NaN (the most over layers) and ties (mean over layers).

        A line below the table names each reference or method whose scores are rounding error.
        """
        head, lines = self._cells(correlation, special)
        return pipes(head, lines, rounding_notes(self.records))

    def to_latex(self, correlation: str | None = None, special: bool | None = None) -> str:
        """The same as a booktabs table."""
        head, lines = self._cells(correlation, special)
        return booktabs(f"ll{'c' * (len(head) - 5)}rrr", head, lines, rounding_notes(self.records))

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write records, settings and costs to one Parquet file."""
        write_result(path, self, FORMAT, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read what :meth:`save` wrote, or the folder of a run (also of one that is not finished)."""
        kept = read_result(path, "Comparison.save", first_sealed=2)
        with files.reading(files.as_path(path)):
            return cls(**{**kept, "table": _checked(kept["table"])})


def _checked(table: pa.Table) -> pa.Table:
    """The table, if its columns are of the kinds that a comparison has."""
    missing = [name for name in (*KEYS, "example", "value", "ties") if name not in table.column_names]
    if missing:
        raise FileError(
            f"A comparison has the column {missing[0]}, and this table has {', '.join(table.column_names)}."
        )
    for column in COMPARE.schema():
        if column.name in table.column_names:
            table.column(column.name).cast(column.type)  # raises where it cannot be done
    return table


def interval(
    values: npt.NDArray[np.float64], resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """The bootstrap interval of the mean: quantiles of the means of samples drawn with replacement.

    >>> low, high = interval(np.array([0.0, 1.0] * 50))
    >>> bool(0.35 < low < 0.45 and 0.55 < high < 0.65)
    True
    """
    if len(values) < 2 or resamples < 1:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    # How often each example is drawn; a part at a time, so that large data need little memory.
    part = max(1, 2_000_000 // len(values))
    means: list[npt.NDArray[np.float64]] = []
    for start in range(0, resamples, part):
        drawn = rng.integers(0, len(values), (min(part, resamples - start), len(values)))
        means.append(values[drawn].mean(1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rounding_shares(records: pd.DataFrame, name: str) -> dict[str, list[float]]:
    """For each of what the column ``name`` names and of which some scores are rounding error: one share per example."""
    column = ROUNDING[name]
    if not {name, column} <= set(records.columns):  # records of earlier versions
        return {}
    known = records[["example", name, column]].dropna().drop_duplicates(["example", name])
    return {str(one): found[column].tolist() for one, found in known.groupby(name, sort=False)}


def rounding_notes(records: pd.DataFrame) -> list[str]:
    """One sentence for each reference or method of which some scores are rounding error."""
    found = [shares for name in ROUNDING for shares in rounding_shares(records, name).items()]
    return [rounding_note(name, shares, records["example"].nunique()) for name, shares in found]


def careful(notes: Sequence[str]) -> str:
    """The notes at the end of a repr."""
    return f"; careful: {'; '.join(notes)}" if notes else ""


def _cell(by_layer: Any, layer: int) -> str:
    if layer not in by_layer.index:
        return ""
    row = by_layer.loc[layer]
    return f"{row['mean']:.2f} ± {row['std']:.2f}"


# The last two are other signs, or none, in LaTeX's text fonts.
_SPECIAL_SIGNS = {
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "|": r"\textbar{}",
    "Σ": r"\ensuremath{\Sigma}",
}  # fmt: skip


def pipes(head: list[str], lines: list[list[str]], notes: Sequence[str] = ()) -> str:
    """A table in Markdown, and a paragraph below it for each note."""
    table = "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])
    return "\n\n".join([table, *notes])


def booktabs(columns: str, head: list[str], lines: list[list[str]], notes: Sequence[str] = ()) -> str:
    """A table in LaTeX, and small text below it for each note; ``columns`` says how each column is set ("lcr")."""
    rows = [" & ".join(map(_latex, line)) + r" \\" for line in [head, *lines]]
    rule = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
    # Paragraphs, because a row as long as a note would widen the last column.
    below = [rf"\par{{\footnotesize {_latex(note)}\par}}" for note in notes]
    return "\n".join([*rule, r"\end{tabular}", *below])


def _latex(text: str) -> str:
    plain = "".join(_SPECIAL_SIGNS.get(c, c) for c in text)
    plain = plain.replace(" ± ", r" $\pm$ ").replace("↑", r"$\uparrow$").replace("↓", r"$\downarrow$")
    return f"${plain.split(' ')[0]}$ {' '.join(plain.split(' ')[1:])}" if plain.startswith("-") else plain
