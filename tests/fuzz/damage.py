"""Files of every kind that the package reads, damaged in every way, and what may come of it.

A damaged file may be refused with an ``AttnFlowError`` that names it, or it may be read, if what was read is what was
written. Everything else is a violation: another error, or other content.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnflow import Attention, AttnFlowError, Attribution, Relevance
from attnflow.answers.attribution import Unit
from attnflow.answers.sources import Source
from attnflow.comparing.comparison import Comparison
from attnflow.comparing.records import open_records, to_table
from attnflow.inputs.datasets import open_data
from attnflow.tokens import Tokens
from tests.fuzz.calls import TooLong, _told, limited


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is written, how it is read to something that can be compared, and whether a change of its
    content can be seen: a text file carries no digest."""

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    sealed: bool = True


def _relevance(folder: Path) -> Path:
    tokens = Tokens(["[CLS]", "the", "key\ud800"], [True, False, False])
    found = Relevance(np.linspace(0, 1, 18).reshape(2, 3, 3), tokens, (0, 3), "rollout", {"residual": 0.5}, "bert")
    found.save(folder / "r.safetensors")
    return folder / "r.safetensors"


def _attention(folder: Path) -> Path:
    weights = np.full((2, 2, 3, 3), 1 / 3, np.float32)
    Attention.of(weights, tokens=["a", "b", "c"], heads="all").save(folder / "a.safetensors")
    return folder / "a.safetensors"


def _attribution(folder: Path) -> Path:
    sources = (Source("a", "key\ud800", 0, 4), Source("b", " door", 4, 9))
    units = (Unit("red", 0, 3, 0, 1, "whole"),)
    scores, checks = {"direct": np.array([[0.5, 0.3, 0.2]])}, {"mask": np.array([[0.5, np.nan]])}
    found = Attribution(
        "key\ud800 door", "red", sources, units, ("key", "door", "red"), np.array([0, 1, -2]), scores, checks
    )
    found.save(folder / "answer.json")
    return folder / "answer.json"


def _rows(*examples: int) -> list[dict[str, Any]]:
    return [{"example": e, "digest": f"d{e}", "target": "x", "method": "raw", "reference": "gradient",
             "correlation": "spearman", "special": True, "layer": layer, "value": 0.25 * e, "n": 7, "ties": 0.5,
             "reference_ties": 0.0}
            for e in examples for layer in (0, 1)]  # fmt: skip


def _comparison(folder: Path) -> Path:
    Comparison(to_table(_rows(0, 1, 2), {}), {"k": 5}, {"raw": 1.0}).save(folder / "c.parquet")
    return folder / "c.parquet"


def _run(folder: Path) -> Path:
    with open_records(folder / "run", {"k": 5, "model": {"name": "bert"}}) as records:
        records.add(to_table(_rows(0, 1), {"raw": 0.5}))
    return folder / "run" / "parts" / "000000000.parquet"


def _settings(folder: Path) -> Path:
    return _run(folder).parent.parent / "settings.json"


def _read_run(path: Path) -> Any:
    folder = path.parent if path.name == "settings.json" else path.parent.parent
    found = Comparison.load(folder)
    return str(found.table.to_pylist()), found.settings, found.costs


def _checkpoint(folder: Path) -> Path:
    from attnflow.audit.training import CHECKPOINT, Recipe, fit
    from tests.audit.tiny import lstm, splits

    fit(lstm(), splits(), Recipe(epochs=1), folder=folder)
    return folder / CHECKPOINT


def _read_checkpoint(path: Path) -> Any:
    from attnflow.audit.training import _read_checkpoint as read
    from attnflow.digests import digest_of

    return digest_of(read(path))


TEXTS = ["the key to the cabinets", "ein schönes Buch", "NA"]


def _csv(folder: Path) -> Path:
    (folder / "d.csv").write_text("text,label\n" + "".join(f'"{t}",{i}\n' for i, t in enumerate(TEXTS)), "utf-8")
    return folder / "d.csv"


def _packed(folder: Path) -> Path:
    (folder / "d.csv.gz").write_bytes(gzip.compress(_csv(folder).read_bytes(), mtime=0))
    return folder / "d.csv.gz"


def _jsonl(folder: Path) -> Path:
    lines = (json.dumps({"text": t, "label": i}, ensure_ascii=False) for i, t in enumerate(TEXTS))
    (folder / "d.jsonl").write_text("\n".join(lines), "utf-8")
    return folder / "d.jsonl"


def _parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": TEXTS, "label": [0, 1, 2]}), folder / "d.parquet")
    return folder / "d.parquet"


def _data(path: Path) -> Any:
    return [(row.text, row.target) for row in open_data(path, target_column="label")]


KINDS = (
    Kind("saved result", _relevance, lambda p: Relevance.load(p).to_json()),
    Kind("saved attention", _attention,
         lambda p: (repr(a := Attention.load(p)), a.only.weights[0].tolist(), a.only.weights[1].tolist())),
    Kind("saved comparison", _comparison,
         lambda p: (str((c := Comparison.load(p)).table.to_pylist()), c.settings, c.costs, c.seed)),
    Kind("saved attribution", _attribution, lambda p: Attribution.load(p).to_json()),
    Kind("part of a run", _run, _read_run),
    Kind("settings of a run", _settings, _read_run),
    Kind("checkpoint", _checkpoint, _read_checkpoint),
    Kind("CSV", _csv, _data, sealed=False),
    Kind("packed CSV", _packed, _data, sealed=False),
    Kind("JSON lines", _jsonl, _data, sealed=False),
    Kind("Parquet data", _parquet, _data, sealed=False),
)  # fmt: skip


def damaged(whole: bytes, chance: random.Random) -> tuple[str, bytes]:
    """(what was done, the bytes): changed, cut, doubled, taken out of, added to, or foreign altogether."""
    at = chance.randrange(len(whole))
    size = chance.choice([1, 2, 8, 64])
    noise = bytes(chance.randrange(256) for _ in range(size))
    made = {
        "bit": lambda: whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :],
        "byte": lambda: whole[:at] + noise[:1] + whole[at + 1 :],
        "run": lambda: whole[:at] + noise + whole[at + size :],
        "zeros": lambda: whole[:at] + b"\0" * size + whole[at + size :],
        "cut": lambda: whole[:at],
        "head": lambda: whole[at:],
        "hole": lambda: whole[:at] + whole[at + size :],
        "more": lambda: whole[:at] + noise + whole[at:],
        "tail": lambda: whole + noise,
        "twice": lambda: whole + whole,
        "swap": lambda: whole[at:] + whole[:at],
        "foreign": lambda: chance.choice([b"", b"PK\x03\x04", b"\x80\x04\x95", b"PAR1", b"{}", b"\xff\xfe" * 9, noise]),
    }
    how = chance.choice(["bit", "bit", "bit", *made])
    return how, made[how]()


def outcome(kind: Kind, path: Path, truth: Any) -> tuple[str, str]:
    """("refused", "the same" or "violation", what happened) of reading a damaged file."""
    try:
        with limited():
            found = kind.read(path)
    except AttnFlowError as error:
        known = path.name in str(error) or path.parent.name in str(error) or not kind.sealed
        return ("refused", type(error).__name__) if known else ("violation", f"an error without the name: {error}")
    except TooLong:
        return "violation", "no end"
    except Exception as error:
        return "violation", _told(error)
    if found == truth or not kind.sealed:
        return "the same" if found == truth else "other text", ""
    return "violation", "other content was accepted"
