"""Which parts of its context an answer drew on: sources × spans of the answer."""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
