"""Capture for people who run the model themselves."""

from __future__ import annotations

from typing import Any

from torch import nn

from attnflow.capture.session import Session


class Taken:
    """What ``with capture(model) as taken:`` gives."""

    def __init__(self, model: nn.Module, tokenizer: Any, session: Session, sinks: str, gradients: Any) -> None:
        self.model, self.tokenizer, self.session = model, tokenizer, session
