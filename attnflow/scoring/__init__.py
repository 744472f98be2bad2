"""How inputs are scored, one file per method: from attention (raw, rollout, flow) or from the model's own reaction."""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
