"""Attention from the model that is in memory, as it was loaded, leaving no trace in it.

Three routes are tried in this order, and the result says which one was used: transformers' attention interface with the
model's own eager function (:mod:`.interface`); a tap on the softmax (:mod:`.tap`), also together with the first, for
modules that do not use the interface; ``output_attentions=True`` in eager (:mod:`.outputs`). Else there is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnflow.capturing.context import Taken
from attnflow.capturing.session import Call, Record
from attnflow.capturing.training import live
from attnflow.lazy import on_first_use

__all__ = ["Call", "Record", "Taken", "live"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
