"""The result of a league: methods × measures with how sure they are, and a verdict in one sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnflow import files
from attnflow.comparing.comparison import careful, interval, rounding_notes, rounding_shares
from attnflow.comparing.records import failures, read_result, write_result
from attnflow.errors import FileError
from attnflow.faithfulness import reading
from attnflow.faithfulness.plan import BASELINES, LAYOUT, RANDOM
from attnflow.faithfulness.registry import MEASURES, RANDOMISATION
from attnflow.formats import frame as framed
from attnflow.significance import duels, holm, paired

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
FORMAT = 1
LINE, COLUMN = ["method", "layer"], ["measure", "kind"]


@dataclass(frozen=True, eq=False)
class League:
    """Methods judged by measures of faithfulness over a data set.

    Attributes:
        table: one record for each example, method, layer, measure and kind of blank (an Arrow table; :attr:`records`
            gives a pandas frame).
        settings: everything that was chosen.
        costs: seconds by part.
        bootstrap: how many resamples of the examples the intervals are from.
        seed: the seed of these resamples.
    """

    table: pa.Table
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    bootstrap: int = 1000
    seed: int = 0

    @cached_property
    def records(self) -> pd.DataFrame:
        """One row for each example, method, layer, measure and kind; failed examples left out. Layer −1: no layers."""
        frame: pd.DataFrame = self.table.to_pandas()
        frame = frame[frame["method"].notna()].reset_index(drop=True)
        layer = frame["layer"].astype("float64").fillna(-1).astype(int)
        return frame.assign(layer=layer, kind=frame["kind"].fillna(""))

    @property
    def examples(self) -> int:
        """How many examples have records."""
        return int(self.records["example"].nunique())

    @property
    def failed(self) -> dict[int, str]:
        """Examples that could not be judged, with the reason."""
        return failures(self.table)

    def __repr__(self) -> str:
        bad = f", {len(self.failed)} failed" if self.failed else ""
        lines, measures = len(self.lines), self.records["measure"].nunique()
        said = careful(rounding_notes(self.records))
        return f"League({self.examples} examples{bad} × {lines} methods × {measures} measures{said})"

    @cached_property
    def lines(self) -> list[tuple[str, int]]:
        """(method, layer) of each line, in the order of the run; layer −1 where a method has none."""
        return list(dict.fromkeys(zip(self.records["method"], self.records["layer"], strict=True)))

    def name(self, line: tuple[str, int]) -> str:
        """How a line is called: with its layer where the league has several of the method."""
        several = sum(method == line[0] for method, _ in self.lines) > 1
        return f"{line[0]} (layer {line[1]})" if several else line[0]

    @cached_property
    def columns(self) -> list[tuple[str, str]]:
        """(measure, kind) of each column; of randomisation the last stage, where every weight is random."""
        found = dict.fromkeys(zip(self.records["measure"], self.records["kind"], strict=True))
        stages = [kind for measure, kind in found if measure == RANDOMISATION]
        return [c for c in found if c[0] != RANDOMISATION or c[1] == stages[-1]]

    @cached_property
    def _cube(self) -> Floats:
        """``[examples, lines, columns]``: the means over the draws, NaN where there is none."""
        return self._numbers("value")

    @cached_property
    def _drawn(self) -> Floats:
        """The same for the first draw alone: one ranking of each line, which is what lines are compared by."""
        return self._numbers("drawn")

    def _numbers(self, name: str) -> Floats:
        frame = self.records
        numbers = {e: i for i, e in enumerate(sorted(frame["example"].unique()))}
        lines = {line: i for i, line in enumerate(self.lines)}
        columns = {column: i for i, column in enumerate(self.columns)}
        out = np.full((len(numbers), len(lines), len(columns)), np.nan)
        for e, m, at, measure, kind, value in frame[["example", *LINE, *COLUMN, name]].itertuples(index=False):
            column = columns.get((measure, kind))
            if column is not None:
                out[numbers[e], lines[(m, at)], column] = value
        return out

    def to_frame(self) -> pd.DataFrame:
        """One row for each method, layer, measure and kind of blank.

        ``mean`` is over examples, ``low`` and ``high`` its 95 % bootstrap interval; ``difference`` is from the random
        ranking on the same texts, and ``p`` that of Wilcoxon's paired test, corrected by Holm over all rows; ``ties``
        is the mean share of pairs of inputs with equal scores.
        """
        import pandas as pd

        cube, rows = self._cube, []
        random = self.lines.index((RANDOM, -1))
        ties = self.records.groupby(LINE)["ties"].mean()
        for j, (measure, kind) in enumerate(self.columns):
            for i, line in enumerate(self.lines):
                values = cube[:, i, j]
                known = values[~np.isnan(values)]
                if not len(known):
                    continue
                low, high = interval(known, self.bootstrap, self.seed)
                judged = MEASURES[measure].judged and i != random
                p = paired(self._drawn[:, i, j], self._drawn[:, random, j]) if judged else np.nan
                apart = float(np.nanmean(values - cube[:, random, j])) if judged else np.nan
                rows.append([*line, measure, kind, known.mean(), low, high, len(known), apart, p, float(ties[line])])
        names = [*LINE, *COLUMN, "mean", "low", "high", "n", "difference", "p", "ties"]
        frame = pd.DataFrame(rows, columns=names)
        return frame.assign(p=holm(frame["p"].to_numpy(np.float64)))

    @cached_property
    def wins(self) -> Floats:
        """``[examples, lines]``: the share of other methods that a line beats, the mean over measures and kinds.

        Single rankings meet: of the random one, and of scores with ties, the first draw. Blank-out is no opponent: it
        asks what the measures ask, and stands beside as a ceiling.
        """
        opponents = np.array([not self.is_ceiling(method) for method, _ in self.lines])
        parts = []
        for j, (measure, _) in enumerate(self.columns):
            if MEASURES[measure].judged:
                values = self._drawn[:, :, j]
                parts.append(duels(values if MEASURES[measure].higher else -values, opponents))
        if not parts:  # stability and randomisation alone rank nothing
            return np.full(self._cube.shape[:2], np.nan)
        stacked = np.stack(parts)
        known = ~np.isnan(stacked)
        return np.where(known.any(0), np.where(known, stacked, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)

    def is_ceiling(self, method: str) -> bool:
        """True for blank-out, under whatever name."""
        function = self.settings.get("methods", {}).get(method, {}).get("function", method)
        return str(function).split("-")[0] == "blankout"

    def standings(self) -> pd.DataFrame:
        """One row for each line, best first.

        ``wins`` is the share of the other methods that it beats, over texts, measures and kinds, with its 95 % range;
        ``p`` is from the random ranking and ``p_best`` from the best line, both by Wilcoxon's paired test, corrected by
        Holm; ``role`` is "method", "baseline" or "ceiling"; ``seconds`` is the time per text that its scores take;
        ``randomised`` is the rank correlation with its scores on random weights; ``rounding`` the median of
        :attr:`attnflow.Relevance.rounding` where its scores are rounding error.
        """
        import pandas as pd

        wins, random = self.wins, self.lines.index((RANDOM, -1))
        means = np.array([np.nanmean(w) if (~np.isnan(w)).any() else np.nan for w in wins.T])
        rows = []
        for i, line in enumerate(self.lines):
            known = wins[~np.isnan(wins[:, i]), i]
            low, high = interval(known, self.bootstrap, self.seed)
            rows.append([*line, self.name(line), self._role(line), means[i], low, high, self._seconds(line[0])])
        frame = pd.DataFrame(rows, columns=[*LINE, "name", "role", "wins", "low", "high", "seconds"])
        ties = self.records.groupby(LINE)["ties"].mean()
        frame["ties"] = [float(ties[line]) for line in self.lines]
        frame["randomised"] = [self.survival(line) for line in self.lines]
        left = rounding_shares(self.records, "method")
        frame["rounding"] = [float(np.median(left.get(method, np.nan))) for method, _ in self.lines]
        p = [np.nan if i == random else paired(wins[:, i], wins[:, random]) for i in range(len(self.lines))]
        frame["p"] = holm(np.array(p))
        eligible = np.where(frame["role"] == "ceiling", -1.0, frame["wins"].fillna(-1.0))
        best = int(np.argmax(eligible))
        p = [np.nan if i == best else paired(wins[:, best], wins[:, i]) for i in range(len(self.lines))]
        frame["p_best"] = holm(np.array(p))
        return frame.sort_values("wins", ascending=False, ignore_index=True)

    def _role(self, line: tuple[str, int]) -> str:
        if self.is_ceiling(line[0]):
            return "ceiling"
        last = max((layer for method, layer in self.lines if method == line[0]), default=-1)
        return "baseline" if line[0] in BASELINES and line[1] == last else "method"

    def _seconds(self, method: str) -> float:
        """Seconds per text, as if the method were alone: its own, and those of the capture that it reads."""
        edges = self.settings.get("methods", {}).get(method, {}).get("edges", "attention")
        own = self.costs.get(method, 0.0)
        capture = self.costs.get("capture" if edges == "attention" else f"capture {edges}", 0.0)
        reads = method not in BASELINES[:2] and not self._asks_the_model(method)
        return (own + (capture if reads else 0.0)) / max(1, self.examples)

    def _asks_the_model(self, method: str) -> bool:
        return all(layer == -1 for name, layer in self.lines if name == method)

    def survival(self, line: tuple[str, int]) -> float:
        """The mean rank correlation of a line with its scores on random weights; NaN if that was not computed."""
        j = next((j for j, (measure, _) in enumerate(self.columns) if measure == RANDOMISATION), None)
        if j is None:
            return float("nan")
        values = self._cube[:, self.lines.index(line), j]
        known = values[~np.isnan(values)]
        return float(known.mean()) if len(known) else float("nan")

    def verdict(self) -> str:
        """Which method to use for this model, how sure that is, and whether any beats the random ranking."""
        return reading.verdict(self.standings(), self.examples)

    def to_markdown(self) -> str:
        """One line per method: wins, then the mean of each measure with its 95 % interval."""
        return reading.markdown(self)

    def to_latex(self) -> str:
        """The same as a booktabs table."""
        return reading.latex(self)

    def to_html(self) -> str:
        """The verdict, the figure and the table as one self-contained page."""
        return reading.html(self)

    def _repr_html_(self) -> str:
        return framed(self.to_html())

    def plot(self, ax: Axes | None = None) -> Axes:
        """The share of duels that each method wins, with its interval; the random ranking as a dashed line."""
        return reading.plot(self.standings(), ax, rounding_notes(self.records))

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write records, settings and costs to one Parquet file."""
        write_result(path, self, FORMAT, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> League:
        """Read what :meth:`save` wrote, or the folder of a run (also of one that is not finished)."""
        kept = read_result(path, "League.save", LAYOUT)
        have = kept["table"].column_names
        if not LAYOUT.fits(have):
            raise FileError(f"{path} has columns {', '.join(have)}: League.save did not write it.")
        with files.reading(files.as_path(path)):
            return cls(**{**kept, "table": LAYOUT.completed(kept["table"])})
