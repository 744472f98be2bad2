"""What the shrinker cannot know, family by family."""

from __future__ import annotations

from typing import Any

START: dict[str, dict[str, Any]] = {}
"""Set in the default configuration before it is shrunk."""

FIXED: dict[str, dict[str, Any]] = {}
"""Set as they are, whatever the scale."""

CLASS: dict[str, str] = {}
"""Model class, where the first one that transformers names is not the one to use."""

INPUTS: dict[str, Any] = {}

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}
_GLM_MROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
}
START |= {
    "qwen2_vl_vision": {"hidden_size": 8192},
    "qwen2_vl_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "glm4v_text": _GLM_MROPE,
    "glm4v_moe_text": _GLM_MROPE,
}
