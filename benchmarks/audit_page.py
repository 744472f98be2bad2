"""Findings on disk, and the tables of docs/debate.md: published figures beside ours."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, is_dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
from audit_data import TITLES, Data
from report import insert, markdown

from attnflow.audit import Finding

MODELS = {"lstm": "BiLSTM with additive attention", "transformer": "small transformer", "minilm": "MiniLM, fine-tuned"}
# Jain & Wallace 2019: Table 2 (class 0 / class 1) and, behind it, the later figures in their repository (all classes).
# Wiegreffe & Pinter 2019: Tables 2, 3 and 4; seeds and adversaries read off their Figure 5.
PUBLISHED: dict[str, dict[str, str]] = {
    "sst": {
        "F1 trained": "0.81 / 0.831", "F1 uniform": "0.822",
        "τ gradient": "0.40 / 0.38; 0.351 ± 0.211", "τ leave-one-out": "0.34 / 0.33; 0.291 ± 0.191",
        "seeds JSD": "0.03–0.10", "adversary JSD": "≈ 0.38",
        "guide uniform": "0.812", "guide own trained": "0.817", "guide raw": "0.824", "guide adversary": "0.592",
        "imposter": "λ 5.25e-4: F1 0.823, TVD 0.036, JSD 0.514",
    },
    "agnews": {
        "F1 trained": "0.96 / 0.964", "F1 uniform": "0.960",
        "τ gradient": "0.42 / 0.35; 0.389 ± 0.134", "τ leave-one-out": "0.35 / 0.32; 0.367 ± 0.150",
    },
    "imdb": {
        "F1 trained": "0.88 / 0.902", "F1 uniform": "0.879",
        "τ gradient": "0.37 / 0.37; 0.437 ± 0.061", "τ leave-one-out": "0.30 / 0.31; 0.341 ± 0.070",
        "seeds JSD": "0.05–0.11", "adversary JSD": "≈ 0.51",
        "guide uniform": "0.863", "guide own trained": "0.888", "guide raw": "0.905", "guide adversary": "0.700",
        "imposter": "λ 8e-4: F1 0.906, TVD 0.014, JSD 0.405",
    },
}  # fmt: skip


def keep(path: Path, finding: Finding, seconds: float) -> None:
    """Write a finding, without its figure, whole or not at all."""
    state = {
        "experiment": finding.experiment, "verdict": finding.verdict, "limits": finding.limits, "seconds": seconds,
        "settings": finding.settings, "table": finding.table.to_json(orient="split"),
        "records": finding.records.to_json(orient="split"),
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
        {**state["settings"], "seconds": state["seconds"]},
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def figures(found: dict[str, Finding], name: str) -> list[list[str]]:
    """Rows of (what, published, ours), from the experiments that were finished."""
    kind, data = name.split("-")
    published = PUBLISHED[data] if kind == "lstm" else {}
    ours: dict[str, str] = {}
    if "uniform" in found:
        scores = found["uniform"].table["F1"]
        ours |= {"F1 trained": f"{scores[0]:.3f}", "F1 uniform": f"{scores[1]:.3f}"}
    if "correlation" in found:
        ours |= _correlations(found["correlation"].table)
    if "permutation" in found:
        change = found["permutation"].records["change"]
        ours["permutation, median change"] = f"{change.median():.3f} (mean {change.mean():.3f})"
    if "adversary" in found:
        records = found["adversary"].records
        ours["adversary JSD"] = f"{records['jsd'].mean():.3f}"
    if "seeds" in found:
        per = found["seeds"].records.groupby("seed")["jsd"].mean()
        ours["seeds JSD"] = f"{per.min():.3f}–{per.max():.3f}"
    if "guide" in found:
        table = found["guide"].table
        # F1 alone says little near chance: 0 where all is called negative, 0.67 where all is called positive.
        rows = zip(table["guide"], table["F1"], table["accuracy"], strict=True)
        ours |= {f"guide {g}": f"{f:.3f} (accuracy {a:.3f})" for g, f, a in rows}
    if "imposter" in found:
        for row in found["imposter"].table.to_dict("records"):
            if row["model"] == "imposter":
                ours[f"imposter λ {row['λ']}"] = (
                    f"F1 {row['F1']:.3f}, TVD {row['TVD scalar']:.3f} (exact {row['TVD']:.3f}), JSD {row['JSD']:.3f}"
                )
    rows = [[what, published.get(what, "–"), value] for what, value in ours.items()]
    if "imposter" in published and "imposter" in found:
        rows.append(["imposter, best with JSD > 0.4", published["imposter"], "see above"])
    return rows


def _correlations(table: pd.DataFrame) -> dict[str, str]:
    """τ of all classes together, by pair and method; raw attention has the papers' names."""
    out = {}
    for row in table[table["class"] == "all"].to_dict("records"):
        pair = str(row["pair"]).replace("attention – ", "")
        label = f"τ {pair}" if row["method"] not in ("rollout", "flow") else f"τ {pair}, {row['method']}"
        out[label] = f"{row['mean τ']:.3f} ± {row['std']:.3f} ({row['significant']:.2f} significant)"
    return out


def section(found: dict[str, Finding], name: str, data: Data) -> str:
    """What stands between the marks of a part."""
    kind, _ = name.split("-")
    title = f"### {MODELS[kind]} on {TITLES[data.name]}\n\n{data.told()} (training / validation / test)."
    table = markdown(["", "published", "here"], figures(found, name))
    words = "\n".join(f"- **{e}**: {finding.verdict}" for e, finding in found.items())
    return f"{title}\n\n{table}\n\n{words}"


def write(page: Path, name: str, found: dict[str, Finding], data: Data, folder: Path) -> None:
    """Put the section of a part between its marks; a page without them gets them at its end."""
    if not found:
        return
    text = section(found, name, data)
    picture = folder / "imposter.svg"
    if picture.is_file() and "imposter" in found:
        images = page.parent / "images"
        images.mkdir(exist_ok=True)
        shutil.copyfile(picture, images / f"debate-{name}.svg")
        text += f"\n\n![JSD of attention against TVD of predictions](images/debate-{name}.svg)"
    old = page.read_text(encoding="utf-8") if page.is_file() else "# The debate\n"
    if f"<!-- audit:{name} -->" not in old:
        page.write_text(f"{old.rstrip()}\n\n<!-- audit:{name} -->\n<!-- /audit:{name} -->\n", encoding="utf-8")
    insert(page, f"audit:{name}", text)
