"""Which model types the installed transformers has, and by which route their attention is captured.

Read from the modelling files without importing them: a file that asks transformers' attention interface for
its function is captured there; one that calls softmax itself is tapped; one with neither has no attention to
capture, and what it inherits from another file counts as that file's.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

INTERFACE = "attention interface"
TAP = "softmax tap"
NONE = "no softmax attention"
_IMPORT = re.compile(r"^from \.\.(?:\.models\.)?([a-z0-9_]+)\.modeling_\1 import", re.MULTILINE)


def families() -> dict[str, str]:
    """Route by model type, in alphabetical order."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    folders = {name: model_type_to_module_name(name) for name in CONFIG_MAPPING_NAMES}
    return {name: _route(folder) for name, folder in sorted(folders.items())}


@cache
def _route(folder: str) -> str:
    source = _source(folder)
    if "get_interface(" in source or "ALL_ATTENTION_FUNCTIONS[" in source:
        return INTERFACE
    if re.search(r"[Ss]oftmax\(|scaled_dot_product_attention|MultiheadAttention", source):
        return TAP
    for other in _IMPORT.findall(source):
        if other != folder and _route(other) != NONE:
            return _route(other)
    return NONE


def _source(folder: str) -> str:
    import transformers

    root = Path(transformers.__file__).parent / "models" / folder
    return "\n".join(p.read_text(encoding="utf-8") for p in sorted(root.glob("modeling_*.py")))
