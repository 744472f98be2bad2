"""What the shrinker cannot know, family by family."""

from __future__ import annotations

from typing import Any

CONFIG: dict[str, dict[str, Any]] = {}
CLASS: dict[str, str] = {}
INPUTS: dict[str, Any] = {}
