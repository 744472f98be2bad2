"""Which model types can be captured, and by which route: the result of a trial of every one of them.

The table is made by ``benchmarks/zoo.py``, which builds each model type of transformers small and captures it.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

UNKNOWN = "not tried"


def families() -> dict[str, str]:
    """Route by model type of the installed transformers and of the package, in alphabetical order.

    >>> families()["bert"], families()["mpnet"], families()["mamba"]
    ('interface', 'tap', 'no softmax attention')
    """
    from transformers import CONFIG_MAPPING

    from attnflow.models.loading import OWN

    seen = {**dict.fromkeys(OWN, "interface"), **table()["types"]}
    return {name: seen.get(name, UNKNOWN) for name in sorted({*CONFIG_MAPPING.keys(), *OWN})}


def tried_with() -> str:
    """The version of transformers with which the table was made."""
    return str(table()["transformers"])


def table() -> dict[str, Any]:
    """What the trial found: "types" has the route of each model type, "transformers" the version that was tried."""
    found: dict[str, Any] = json.loads(files("attnflow.models").joinpath("families.json").read_text("utf-8"))
    return found
