"""Findings on disk, and what docs/debate.md shows of them: the numbers as CSV files, one figure and one short table.

The figure and the table are drawn from the CSV files alone, so that they can be drawn again without a computation.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from audit_data import TITLES, Data
from report import insert, markdown, save

from attnflow.audit import Finding
from attnflow.audit.correlation import LENGTH, LENGTH_LOO, LOO, PRODUCT
from attnflow.audit.imposter import FAR, FURTHEST, SEEDS, controls, judged
from attnflow.audit.permutation import trend
from attnflow.significance import LEVEL, holm

MODELS = {"lstm": "BiLSTM", "random": "BiLSTM, vectors at random", "transformer": "transformer", "minilm": "MiniLM"}
# Jain & Wallace 2019: Table 2 (class 0 / class 1) and, behind it, the later figures in their repository (all classes).
# Wiegreffe & Pinter 2019: Tables 2, 3 and 4; seeds and adversaries read off their Figure 5.
PUBLISHED: dict[str, dict[tuple[str, str, str], str]] = {
    "sst": {
        ("uniform", "trained", "F1"): "0.81 / 0.831", ("uniform", "uniform", "F1"): "0.822",
        ("correlation", "attention – gradient × embedding, raw", "mean τ"): "0.40 / 0.38; 0.351 ± 0.211",
        ("correlation", "attention – leave-one-out, raw", "mean τ"): "0.34 / 0.33; 0.291 ± 0.191",
        ("seeds", "other seeds", "lowest JSD"): "0.03", ("seeds", "other seeds", "highest JSD"): "0.10",
        ("adversary", "furthest weights", "mean JSD"): "0.38 (read off a figure)",
        ("guide", "uniform", "F1"): "0.812", ("guide", "own trained", "F1"): "0.817",
        ("guide", "raw", "F1"): "0.824", ("guide", "adversary", "F1"): "0.592",
        ("imposter", "λ 5.25e-4", "F1"): "0.823", ("imposter", "λ 5.25e-4", "TVD, scalar"): "0.036",
        ("imposter", "λ 5.25e-4", "JSD"): "0.514",
    },
    "agnews": {
        ("uniform", "trained", "F1"): "0.96 / 0.964", ("uniform", "uniform", "F1"): "0.960",
        ("correlation", "attention – gradient × embedding, raw", "mean τ"): "0.42 / 0.35; 0.389 ± 0.134",
        ("correlation", "attention – leave-one-out, raw", "mean τ"): "0.35 / 0.32; 0.367 ± 0.150",
    },
    "imdb": {
        ("uniform", "trained", "F1"): "0.88 / 0.902", ("uniform", "uniform", "F1"): "0.879",
        ("correlation", "attention – gradient × embedding, raw", "mean τ"): "0.37 / 0.37; 0.437 ± 0.061",
        ("correlation", "attention – leave-one-out, raw", "mean τ"): "0.30 / 0.31; 0.341 ± 0.070",
        ("seeds", "other seeds", "lowest JSD"): "0.05", ("seeds", "other seeds", "highest JSD"): "0.11",
        ("adversary", "furthest weights", "mean JSD"): "0.51 (read off a figure)",
        ("guide", "uniform", "F1"): "0.863", ("guide", "own trained", "F1"): "0.888",
        ("guide", "raw", "F1"): "0.905", ("guide", "adversary", "F1"): "0.700",
        ("imposter", "λ 8e-4", "F1"): "0.906", ("imposter", "λ 8e-4", "TVD, scalar"): "0.014",
        ("imposter", "λ 8e-4", "JSD"): "0.405",
    },
}  # fmt: skip
VECTORS = {"lstm": "GloVe", "random": "at random"}
TVD, HIGHEST, JSD = "mean TVD", "highest TVD", "mean JSD"
DURATIONS = ("seconds", "processor seconds")
COLUMNS = ["model", "data", "experiment", "quantity", "statistic", "value", "published"]


def keep(path: Path, finding: Finding, seconds: float, busy: float) -> None:
    """Write a finding, without its figure, whole or not at all; what it took by the clock and of the processor."""
    state = {
        "experiment": finding.experiment, "verdict": finding.verdict, "limits": finding.limits, "seconds": seconds,
        "processor seconds": busy,
        "settings": finding.settings, "table": finding.table.to_json(orient="split"),
        "records": finding.records.to_json(orient="split"), "tests": dict(finding.tests),
    }  # fmt: skip
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state, default=_plain), encoding="utf-8")
    part.replace(path)


def kept(path: Path) -> Finding | None:
    """The finding that was written there, if there is one."""
    if not path.is_file():
        return None
    state = json.loads(path.read_text(encoding="utf-8"))
    table, records = (pd.read_json(StringIO(state[name]), orient="split", dtype=False) for name in ("table", "records"))
    return Finding(
        state["experiment"], table, records, state["verdict"], tuple(state["limits"]),
        state["settings"] | {name: state[name] for name in DURATIONS if name in state}, tests=state.get("tests", {}),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


Number = tuple[str, str, float]


def numbers(experiment: str, finding: Finding) -> Iterator[Number]:
    """The numbers of a finding as (quantity, statistic, value)."""
    table, records = finding.table, finding.records
    if experiment == "uniform":
        yield "the base", "F1", finding.settings["F1 of the base"]
        for row in table.to_dict("records"):
            yield row["attention"], "F1", row["F1"]
            yield row["attention"], "std of F1 over seeds", row["F1 std"]
    elif experiment == "correlation":
        for row in table[table["class"] == "all"].to_dict("records"):
            pair = row["pair"] if "attention" not in row["pair"] else f"{row['pair']}, {row['method']}"
            for statistic, column in (("mean τ", "mean τ"), ("std of τ", "std"), ("share significant", "significant")):
                yield pair, statistic, row[column]
    elif experiment == "permutation":
        yield "change of the output", "median TVD", records["change"].median()
        yield "change of the output", "mean TVD", records["change"].mean()
    elif experiment == "adversary":
        yield "furthest weights", "mean JSD", records["jsd"].mean()
    elif experiment == "seeds":
        per_seed = records.groupby("seed")["jsd"].mean()
        yield "other seeds", "lowest JSD", per_seed.min()
        yield "other seeds", "highest JSD", per_seed.max()
        yield "other seeds", JSD, records["jsd"].mean()
        yield "uniform weights", JSD, records.drop_duplicates("instance")["uniform"].mean()
        # The base model is one of the seeds.
        yield "all seeds", "std of F1", table["F1"].std()
        if "tvd" in records:
            yield "other seeds", TVD, records["tvd"].mean()
            yield "other seeds", HIGHEST, records.groupby("seed")["tvd"].mean().max()
    elif experiment == "guide":
        # F1 alone says little near chance: 0 where all is called negative, 0.67 where all is called positive.
        for row in table.to_dict("records"):
            yield row["guide"], "F1", row["F1"]
            yield row["guide"], "accuracy", row["accuracy"]
            if "F1 std" in row:
                yield row["guide"], "std of F1 over seeds", row["F1 std"]
    elif experiment == "imposter":
        for row in table[table["model"] == "imposter"].to_dict("records"):
            for statistic, column in (("F1", "F1"), ("TVD, scalar", "TVD scalar"), ("TVD", "TVD"), ("JSD", "JSD")):
                yield f"λ {row['λ']}", statistic, row[column]


def rows_of(name: str, found: dict[str, Finding], data: Data) -> pd.DataFrame:
    """The part's rows of the CSV file: ours, the published one where there is one, and what is only published."""
    kind, set_ = name.split("-")
    published = dict(PUBLISHED[set_]) if kind == "lstm" else {}
    rows: list[list[object]] = [
        [kind, set_, "data", part, "texts", f"{len(getattr(data, part))}", None] for part in ("train", "valid", "test")
    ]
    for experiment, finding in found.items():
        for quantity, statistic, value in numbers(experiment, finding):
            printed = published.pop((experiment, quantity, statistic), None)
            rows.append([kind, set_, experiment, quantity, statistic, f"{value:.4f}", printed])
        for experiment_, quantity, statistic in [key for key in published if key[0] == experiment]:
            printed = published.pop((experiment_, quantity, statistic))
            rows.append([kind, set_, experiment, quantity, statistic, None, printed])
    return pd.DataFrame(rows, columns=COLUMNS)


def _sides(compared: str) -> list[str]:
    """The two that a claim compares, by their names in the finding's table."""
    return compared.removesuffix(" attention").split(" against ")


def tests_of(name: str, found: dict[str, Finding]) -> pd.DataFrame:
    """One row per test of a finding: what it compares, the size of what it found, and its p-value, uncorrected.

    The size is a difference of accuracy, or of the permutations Spearman's ρ.
    """
    kind, set_ = name.split("-")
    rows: list[list[object]] = []
    for experiment, finding in found.items():
        for claim, p in finding.tests.items():
            compared = claim.split(": ")[1]
            if experiment == "permutation":
                size, how = trend(finding.records)[0], "Spearman within classes"
            else:
                name, seeds = ("attention" if experiment == "uniform" else "guide"), finding.records["seed"].nunique()
                one, two = (finding.table.set_index(name)["accuracy"][n] for n in _sides(compared))
                size, how = one - two, f"texts and {seeds} seed{'s' * (seeds > 1)}"
            rows.append([kind, set_, experiment, compared, how, f"{size:.3f}", f"{p:.2g}"])
    return pd.DataFrame(rows, columns=["model", "data", "experiment", "claim", "test", "size", "p"])


RECORDS = ("correlation", "permutation", "seeds")
TEXTS = 200


def records_of(name: str, found: dict[str, Finding]) -> pd.DataFrame:
    """One row per text (the first 200) and measurement, of the experiments whose spread the page shows.

    ``group`` is the pair of rankings, the class or the seed; ``at`` is the largest weight; ``value`` is τ, the change
    of the output (TVD) or the divergence of attention (JSD).
    """
    kind, set_ = name.split("-")
    parts = []
    for experiment in RECORDS:
        if experiment not in found:
            continue
        rows = found[experiment].records.rename(columns={"instance": "number"})
        rows = rows[rows["number"] < TEXTS]
        if experiment == "correlation":
            attends = rows["pair"].str.startswith("attention")
            made = rows[~attends | (rows["method"] == "raw")].rename(columns={"pair": "group", "tau": "value"})
        elif experiment == "permutation":
            made = rows.rename(columns={"class": "group", "max_attention": "at", "change": "value"})
        else:
            made = rows.rename(columns={"seed": "group", "max_attention": "at", "jsd": "value"})
        made = made.reindex(columns=["number", "group", "at", "value"])
        parts.append(made.assign(model=kind, data=set_, experiment=experiment))
    columns = ["model", "data", "experiment", "number", "group", "at", "value"]
    return pd.concat(parts)[columns].round({"at": 4, "value": 4}) if parts else pd.DataFrame(columns=columns)


def read(docs: Path) -> pd.DataFrame:
    """The recorded numbers."""
    return pd.read_csv(docs / "data" / "debate.csv", dtype={"published": str})


def write(page: Path, name: str, found: dict[str, Finding], data: Data, folder: Path) -> None:
    """Put the numbers and the verdicts of a part into the CSV files of the page, and draw the page again."""
    if not found:
        return
    kind, set_ = name.split("-")
    verdicts = [[kind, set_, experiment, finding.verdict] for experiment, finding in found.items()]
    _replace(page.parent / "data" / "debate.csv", rows_of(name, found, data))
    _replace(
        page.parent / "data" / "debate-verdicts.csv",
        pd.DataFrame(verdicts, columns=["model", "data", "experiment", "verdict"]),
    )
    seconds = [
        [kind, set_, experiment, *(round(finding.settings[name]) for name in DURATIONS)]
        for experiment, finding in found.items()
        if set(DURATIONS) <= set(finding.settings)
    ]
    more = {
        "records": records_of(name, found),
        "tests": tests_of(name, found),
        "seconds": pd.DataFrame(seconds, columns=["model", "data", "experiment", *DURATIONS]),
    }
    for file, rows in more.items():
        if len(rows):
            _replace(page.parent / "data" / f"debate-{file}.csv", rows)
    picture = folder / "imposter.svg"
    if picture.is_file() and "imposter" in found:
        images = page.parent / "images"
        images.mkdir(exist_ok=True)
        shutil.copyfile(picture, images / f"debate-{name}.svg")
    draw(page)


def _replace(path: Path, rows: pd.DataFrame) -> None:
    """Put ``rows`` into a CSV file in place of those of the same model, data and experiment; others stay."""
    key = ["model", "data", "experiment"]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        old = pd.read_csv(path, dtype=str)
        done = set(rows[key].itertuples(index=False, name=None))
        rows = pd.concat([old[[k not in done for k in old[key].itertuples(index=False, name=None)]], rows])
    order = {kind: i for i, kind in enumerate(MODELS)}
    rows = rows.sort_values(
        ["model", "data"], kind="stable", key=lambda c: c.map(order if c.name == "model" else list(TITLES).index)
    )
    rows.to_csv(path, index=False)


def draw(page: Path) -> None:
    """Draw the figure from the CSV file and put it on the page, with the short table below it."""
    found = read(page.parent)
    judge(page.parent / "data" / "debate-verdicts.csv", found)
    save(overview(found), page.parent / "images" / "debate.svg")
    records = page.parent / "data" / "debate-records.csv"
    if records.is_file():
        save(spreads(pd.read_csv(records, dtype={"group": str})), page.parent / "images" / "debate-records.svg")
    picture = "![The experiments of the debate on every model, with the published figures](images/debate.svg)"
    shown = {"figure": picture, "audit": short_table(found)}
    if "random" in set(found["model"]):
        shown["vectors"] = vector_table(found)
    if "imposter" in set(found["experiment"]):
        shown["imposters"] = imposter_table(found)
    if "guide" in set(found.loc[found["model"] == "transformer", "experiment"]):
        shown["guides"] = guide_table(found)
    tests = page.parent / "data" / "debate-tests.csv"
    if tests.is_file():
        made = corrected(pd.read_csv(tests))
        shown["tests"] = test_table(made)
        made.assign(corrected=made["corrected"].map("{:.2g}".format)).to_csv(tests, index=False)
        holding(page.parent / "data" / "debate-verdicts.csv", made)
    for key, text in shown.items():
        old = page.read_text(encoding="utf-8") if page.is_file() else "# The debate\n"
        if f"<!-- {key} -->" not in old:
            page.write_text(f"{old.rstrip()}\n\n<!-- {key} -->\n<!-- /{key} -->\n", encoding="utf-8")
        insert(page, key, text)


def judge(path: Path, found: pd.DataFrame) -> None:
    """Judge the imposters of a file of verdicts by the recorded numbers, so that all have the same controls."""
    verdicts = pd.read_csv(path)
    for (model, data), rows in found.groupby(["model", "data"], sort=False):
        part = Part(model, data, rows)
        own = (verdicts[["model", "data", "experiment"]] == [model, data, "imposter"]).all(axis=1)
        if part.penalties and own.any():
            verdicts.loc[own, "verdict"] = judged(imposters(part))
    verdicts.to_csv(path, index=False)


def holding(path: Path, tests: pd.DataFrame) -> None:
    """Beside every verdict, what its tests say once all tests of the page are corrected together."""
    verdicts, key = pd.read_csv(path), ["model", "data", "experiment"]
    said = tests.assign(said=[_holds(row) for row in tests.to_dict("records")]).groupby(key)["said"].agg("; ".join)
    place = verdicts[key].itertuples(index=False, name=None)
    verdicts.assign(corrected=[said.get(of, "") for of in place]).to_csv(path, index=False)


def _holds(row: dict[str, Any]) -> str:
    """A test with its corrected p-value, and whether it holds."""
    return f"{row['claim']}: {'holds' if row['corrected'] < LEVEL else 'is not shown'} (p = {row['corrected']:.2g})"


class Part:
    """The numbers of one model on one data set."""

    def __init__(self, model: str, data: str, rows: pd.DataFrame) -> None:
        self.title = f"{MODELS[model]}, {TITLES[data]}"
        tried = rows[(rows["experiment"] == "imposter") & rows["value"].notna()]["quantity"]
        self.penalties = list(dict.fromkeys(tried.str.removeprefix("λ ")))
        keys = rows[["experiment", "quantity", "statistic"]].itertuples(index=False, name=None)
        self._values = dict(zip(keys, zip(rows["value"], rows["published"], strict=True), strict=True))

    def value(self, *key: str) -> float:
        """Ours, NaN where there is none."""
        return float(self._values.get(key, (float("nan"), None))[0])

    def published(self, *key: str) -> float:
        """The last of the published figures, without its spread; NaN where there is none."""
        text = self._values.get(key, (None, None))[1]
        if not isinstance(text, str):
            return float("nan")
        return float(text.split(";")[-1].split("±")[0].split("(")[0].split("/")[-1])


def _parts(found: pd.DataFrame) -> list[Part]:
    return [Part(*key, rows) for key, rows in found.groupby(["model", "data"], sort=False)]


GUIDES = {
    "uniform": "uniform", "own trained": "its own", "raw": "raw attention, last layer", "rollout": "rollout",
    "flow": "flow",
}  # fmt: skip
CONTROLS = (("imposter", "λ 0", "TVD"), ("seeds", "other seeds", TVD), ("seeds", "other seeds", HIGHEST))
RAW_LENGTH, RAW_PRODUCT = f"{LENGTH}, raw", f"{PRODUCT}, raw"
RAW_LOO = f"{LOO}, raw"


def _cells(part: Part) -> dict[str, str]:
    """A number or two for every experiment, by the head of its column."""
    ends = [("seeds", "other seeds", f"{end} JSD") for end in ("lowest", "highest")]
    return {
        "F1 trained / uniform": _pair(*(part.value("uniform", name, "F1") for name in ("trained", "uniform")), " / "),
        "τ ‖gradient‖": _number(part.value("correlation", RAW_LENGTH, "mean τ")),
        "τ gradient × embedding": _number(part.value("correlation", RAW_PRODUCT, "mean τ")),
        "τ leave-one-out": _number(part.value("correlation", RAW_LOO, "mean τ")),
        "shuffled": _number(part.value("permutation", "change of the output", "median TVD")),
        "adversary": _number(part.value("adversary", "furthest weights", "mean JSD")),
        "seeds": _pair(*(part.value(*end) for end in ends), "–"),
        "guide raw / uniform": _pair(*(part.value("guide", name, "F1") for name in ("raw", "uniform")), " / "),
    }


def short_table(found: pd.DataFrame) -> str:
    """One row for each model: the rank correlations, and all else in units of what seeds differ by."""
    parts = {part.title: _in_spreads(part) for part in _parts(found)}
    head = list(next(iter(parts.values())))
    return markdown(["model, data", *head], [[title, *cells.values()] for title, cells in parts.items()])


def _in_spreads(part: Part) -> dict[str, str]:
    """A number for every experiment, by the head of its column; "×" is a multiple of what other seeds differ by."""
    trained, uniform = (part.value("uniform", name, "F1") for name in ("trained", "uniform"))
    # Where seeds do not differ at all there is no unit.
    apart, predicted = (part.value("seeds", "other seeds", name) or float("nan") for name in (JSD, TVD))
    far = _best(imposters(part).to_dict("records"))
    ratios = {
        "uniform weights, JSD": part.value("seeds", "uniform weights", JSD) / apart,
        "adversary, JSD": part.value("adversary", "furthest weights", JSD) / apart,
        "shuffled, TVD": part.value("permutation", "change of the output", "median TVD") / predicted,
        "imposter, TVD": float("nan") if far is None else far["TVD"] / predicted,
    }
    names = {"τ ‖gradient‖": RAW_LENGTH, "τ gradient × embedding": RAW_PRODUCT, "τ leave-one-out": RAW_LOO}
    taus = {title: _number(part.value("correlation", name, "mean τ")) for title, name in names.items()}
    worth = (trained - uniform) / (part.value("seeds", "all seeds", "std of F1") or float("nan"))
    return (
        taus
        | {"F1, trained − uniform": "" if worth != worth else f"{worth:+.1f} sd".replace("-", "−")}
        | {title: "" if ratio != ratio else f"{ratio:.1f} ×" for title, ratio in ratios.items()}
    )


def guide_table(found: pd.DataFrame) -> str:
    """F1 of the token-wise model under every guide from the transformers: mean ± standard deviation of its seeds."""
    parts = {TITLES[data]: Part("transformer", data, rows) for data, rows in _of(found, "transformer")}

    def cell(part: Part, guide: str) -> str:
        mean, spread = (part.value("guide", guide, name) for name in ("F1", "std of F1 over seeds"))
        return _number(mean) if spread != spread else f"{mean:.3f} ± {spread:.3f}"

    lines = [[title, *(cell(part, guide) for part in parts.values())] for guide, title in GUIDES.items()]
    return markdown(["guide", *parts], lines)


def _of(found: pd.DataFrame, model: str) -> Iterator[tuple[str, pd.DataFrame]]:
    yield from ((str(data), rows) for data, rows in found[found["model"] == model].groupby("data", sort=False))


def vector_table(found: pd.DataFrame) -> str:
    """The BiLSTM with given word vectors beside the one with the same vectors dealt at random, on the same data."""
    there = found["data"].isin(found[found["model"] == "random"]["data"]) & found["model"].isin(VECTORS)
    groups = found[there].groupby(["data", "model"], sort=False)
    parts = {f"{TITLES[data]}, {VECTORS[model]}": _cells(Part(model, data, rows)) for (data, model), rows in groups}
    names = sorted(parts, key=lambda name: name.split(",")[0], reverse=True)
    return markdown(["BiLSTM", *names], [[h, *(parts[n][h] for n in names)] for h in parts[names[0]]])


def imposters(part: Part) -> pd.DataFrame:
    """The recorded imposters with their controls, in the form that :func:`attnflow.audit.imposter.judged` reads."""
    rows = [{"model": "base", "λ": "nan", "F1": part.value("uniform", "the base", "F1")}]
    for penalty in part.penalties:
        measured = {name: part.value("imposter", f"λ {penalty}", name) for name in ("F1", "TVD", "JSD")}
        rows.append({"model": "imposter", "λ": penalty} | measured)
    seeds = part.value("seeds", "other seeds", TVD)
    others = {"model": SEEDS, "λ": "nan", "TVD": seeds, FURTHEST: part.value("seeds", "other seeds", HIGHEST)}
    return pd.DataFrame(rows + [others] * (seeds == seeds))


def _best(rows: list[dict[Any, Any]]) -> dict[Any, Any] | None:
    """Of the imposters that are far away the one that predicts most like the base, if there is one."""
    far = [row for row in rows if row["model"] == "imposter" and row["JSD"] > FAR]
    return min(far, key=lambda row: float(row["TVD"])) if far else None


def imposter_table(found: pd.DataFrame) -> str:
    """For every model the imposter that is far away and predicts most like the base, beside what needs no imposter."""
    lines = []
    for part in (part for part in _parts(found) if part.penalties):
        rows = imposters(part).to_dict("records")
        best = _best(rows)
        if best is not None:
            yardstick = next(iter(controls(rows, best).values()), None)
            numbers = (best["JSD"], best["TVD"], *(part.value(*key) for key in CONTROLS))
            costs = "" if yardstick is None else "yes" if best["TVD"] > yardstick else "no"
            lines.append([part.title, best["λ"], *map(_number, numbers), costs])
    return markdown(
        ["model, data", "λ", "JSD", "TVD", "TVD at λ = 0", "other seeds, mean", "other seeds, furthest", "a cost"],
        lines,
    )


def corrected(tests: pd.DataFrame) -> pd.DataFrame:
    """The recorded tests with p-values corrected by Holm for all of them together, the smallest first."""
    return tests.assign(corrected=holm(tests["p"])).sort_values("p", kind="stable", ignore_index=True)


def test_table(made: pd.DataFrame) -> str:
    """How many tests hold once all are corrected together, and what these say: of models, of guides, then of peaks."""
    held = made[made["corrected"] < LEVEL]
    said = f"Of {len(made)} tests {len(held)} hold after Holm's correction for all of them together."
    parts = (held[held["experiment"] == experiment] for experiment in ("uniform", "guide", "permutation"))
    return "\n\n".join([said, *(_held(part) for part in parts if len(part))])


def _held(tests: pd.DataFrame) -> str:
    rows = [
        [
            _claim(row),
            row["test"],
            f"{row['size']:+.3g}".replace("-", "−"),
            f"{row['p']:.1g}",
            f"{row['corrected']:.1g}",
        ]
        for row in tests.to_dict("records")
    ]
    return markdown(["claim", "test", "size", "p", "corrected"], rows)


def _claim(row: dict[str, Any]) -> str:
    """What a test says, in words."""
    title, more = f"{MODELS[row['model']]}, {TITLES[row['data']]}", row["size"] > 0
    if row["experiment"] == "permutation":
        return f"{title}: the larger the largest weight, the {'more' if more else 'less'} shuffling changes"
    one, two = row["claim"].split(" against ")
    if row["experiment"] == "uniform":
        return f"{title}: {one} attention is {'better' if more else 'worse'} than uniform"
    return f"{title}: {one} guides {'better' if more else 'worse'} than {two}"


def _number(value: float) -> str:
    return "" if value != value else f"{value:.3f}"


def _pair(first: float, second: float, between: str) -> str:
    return "" if first != first else f"{first:.3f}{between}{second:.3f}"


def overview(found: pd.DataFrame) -> Any:
    """Four panels, one question each, with a row for every model; published figures are open."""
    from matplotlib.figure import Figure

    parts = _parts(found)
    figure = Figure(figsize=(11, 0.36 * len(parts) + 1.5), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    for panel in panels:
        panel.grid(axis="y", color="0.92")
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(left=False)
    panels[0].set_yticks(range(len(parts)), [part.title for part in parts])
    panels[0].invert_yaxis()
    tau = {
        "‖gradient‖": RAW_LENGTH,
        "gradient × embedding": RAW_PRODUCT,
        "leave-one-out": RAW_LOO,
        LENGTH_LOO: LENGTH_LOO,
    }
    _dots(panels[0], parts, {name: ("correlation", pair, "mean τ") for name, pair in tau.items()})
    panels[0].set(title="Attention ranks like …", xlabel="mean Kendall τ")
    _dots(panels[1], parts, {name: ("uniform", name, "F1") for name in ("trained", "uniform")})
    panels[1].set(title="Is attention needed?", xlabel="F1")
    _dots(panels[2], parts, {"adversary": ("adversary", "furthest weights", "mean JSD")}, colours=["#d55e00"])
    _ranges(panels[2], parts)
    panels[2].set(title="How far can it move?", xlabel="JSD from its own attention", xlim=(0, 0.7))
    guides = {name: ("guide", name, "F1") for name in ("raw", "rollout", "flow")}
    _dots(panels[3], parts, guides, minus=("guide", "uniform", "F1"))
    panels[3].axvline(0, color="0.6", linewidth=0.8)
    panels[3].set(title="Does it guide a model?", xlabel="F1 above uniform weights")
    panels[1].scatter([], [], facecolors="none", edgecolors="0.3", s=46, label="open: published")
    for panel in panels:
        panel.title.set_fontsize("medium")
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, fontsize="small", ncols=1)
    return figure


def spreads(records: pd.DataFrame) -> Any:
    """Per model a row of three panels: τ of every text, largest weight against change, and the JSD of every seed."""
    from matplotlib.figure import Figure

    models = list(records.groupby(["model", "data"], sort=False))
    figure = Figure(figsize=(11, 3.1 * len(models)), layout="constrained")
    for row, ((model, data), part) in zip(figure.subplots(len(models), 3, squeeze=False), models, strict=True):
        of = {experiment: rows.dropna(subset="value") for experiment, rows in part.groupby("experiment")}
        title = f"{MODELS[model]}, {TITLES[data]}"
        if "correlation" in of:
            _histograms(row[0], of["correlation"])
        if "permutation" in of:
            row[1].scatter(of["permutation"]["at"], of["permutation"]["value"], s=8, color="#0072b2", alpha=0.6)
        if "seeds" in of:
            _violins(row[2], of["seeds"])
        row[0].set(title=f"{title}:\nrank correlation per text", xlabel="Kendall τ", ylabel="texts")
        row[1].set(title="Shuffled attention", xlabel="largest weight", ylabel="median change (TVD)")
        row[2].set(title="Attention of other seeds", xlabel="seed", ylabel="JSD per text")
        for panel, experiment in zip(row, RECORDS, strict=True):
            panel.title.set_fontsize("medium")
            panel.spines[["top", "right"]].set_visible(False)
            panel.set_visible(experiment in of)
    return figure


def _histograms(panel: Any, rows: pd.DataFrame) -> None:
    colours = ["#0072b2", "#56b4e9", "#d55e00", "#009e73", "#999999"]
    edges = [i / 10 for i in range(-10, 11)]
    for colour, (pair, own) in zip(colours, rows.groupby("group", sort=False), strict=False):
        panel.hist(own["value"], edges, histtype="step", color=colour, label=pair)
    panel.legend(frameon=False, fontsize="x-small", loc="upper left")


def _violins(panel: Any, rows: pd.DataFrame) -> None:
    seeds = list(rows.groupby("group", sort=False))
    panel.violinplot([own["value"].to_numpy() for _, own in seeds], showmedians=True)
    panel.set_xticks(range(1, len(seeds) + 1), [name for name, _ in seeds])


def _dots(
    panel: Any,
    parts: list[Part],
    series: dict[str, tuple[str, str, str]],
    *,
    minus: tuple[str, str, str] | None = None,
    colours: list[str] | None = None,
) -> None:
    """One mark for each series and model; the published figure is an open one of the same colour."""
    shades = colours or ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]
    for i, (name, key) in enumerate(series.items()):
        shift = 0.18 * (i - (len(series) - 1) / 2)
        heights = [row + shift for row in range(len(parts))]
        less = [0.0 if minus is None else part.value(*minus) for part in parts]
        ours = [part.value(*key) - base for part, base in zip(parts, less, strict=True)]
        panel.scatter(ours, heights, color=shades[i], s=26, label=name)
        less = [0.0 if minus is None else part.published(*minus) for part in parts]
        theirs = [part.published(*key) - base for part, base in zip(parts, less, strict=True)]
        panel.scatter(theirs, heights, facecolors="none", edgecolors=shades[i], s=46)


def _ranges(panel: Any, parts: list[Part]) -> None:
    """From the nearest to the furthest of the other seeds; the published range is the thin line below."""
    for row, part in enumerate(parts):
        ends = [("seeds", "other seeds", f"{end} JSD") for end in ("lowest", "highest")]
        label = "other seeds" if row == 0 else None
        panel.plot([part.value(*e) for e in ends], [row, row], color="#0072b2", linewidth=5, label=label)
        panel.plot([part.published(*e) for e in ends], [row + 0.22] * 2, color="#0072b2", linewidth=1)
