"""The trained verb-number model inside the package: where its weights are, and how they are loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnflow.errors import InputError

FOLDER = Path(__file__).parent / "verb-number"
LABELS = ("singular", "plural")


def load(folder: str | os.PathLike[str] | None = None) -> tuple[Any, Any]:
    """(model, tokenizer) of a trained verb-number model, by default the one inside the package."""
    from attnflow.models.loading import load as load_any

    where = FOLDER if folder is None else Path(folder)
    if not (where / "model.safetensors").is_file():
        raise InputError(
            f"{where} holds no model.safetensors, and a trained verb-number model was asked for. Train one and name "
            "its folder:  python benchmarks/train_verb_number.py --out build/verb-number"
        )
    return load_any(str(where))
