"""What an experiment measured, kept on disk: every record as CSV, and what was run and found beside it as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnflow.audit.finding import Finding
from attnflow.digests import digest_of
from attnflow.files import as_path, write_bytes, writing
from attnflow.numbers import check_kind
from attnflow.version import __version__


def save_records(finding: Finding, folder: str | os.PathLike[str], facts: Mapping[str, Any]) -> Path:
    """Write ``<experiment>-<mark>.csv`` (the records) and ``.json`` (facts, settings, verdict, limits, tests, table).

    The mark stands for ``facts`` and the finding's settings. The same experiment again writes the same files anew; with
    another model, other data or other settings it writes others, so nothing that was measured is lost.

    >>> import pandas as pd, tempfile
    >>> found = Finding("uniform", pd.DataFrame(), pd.DataFrame({"seed": [0], "F1": [0.5]}), "No.", ("One.",))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pd.read_csv(save_records(found, folder, {"model": "lstm"})).to_dict("records")
    [{'seed': 0, 'F1': 0.5}]
    """
    check_kind(Finding, finding, "finding")
    check_kind(Mapping, facts, "facts")
    chosen = {"facts": _plain(facts), "settings": _plain(finding.settings)}
    path = as_path(folder) / f"{finding.experiment}-{digest_of(json.dumps(chosen, sort_keys=True))[:8]}.csv"
    told = {
        "experiment": finding.experiment, "attnflow": __version__, **chosen, "records": path.name,
        "verdict": finding.verdict, "limits": list(finding.limits), "tests": _plain(finding.tests),
        "table": json.loads(finding.table.to_json(orient="records")),
    }  # fmt: skip
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, finding.records.to_csv(index=False).encode(), overwrite=True)
    write_bytes(path.with_suffix(".json"), json.dumps(told, indent=1).encode(), overwrite=True)
    return path


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold, and the text of everything else."""
    return {
        str(name): value if isinstance(value, str | int | float | bool | None) else str(value)
        for name, value in values.items()
    }
