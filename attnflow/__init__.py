"""attnflow: what a transformer's output drew on, layer by layer, and whether to believe the answer.

>>> from attnflow import rollout, flow
"""

from __future__ import annotations

from attnflow.attention import Attention
from attnflow.capture import capture
from attnflow.compare import compare
from attnflow.correlate import correlate
from attnflow.errors import AttnFlowError
from attnflow.flow import flow
from attnflow.importance import blankout, gradient
from attnflow.probes.register import register as _register
from attnflow.raw import raw
from attnflow.relevance import Relevance
from attnflow.rollout import rollout

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "AttnFlowError",
    "Relevance",
    "__version__",
    "blankout",
    "capture",
    "compare",
    "correlate",
    "flow",
    "gradient",
    "raw",
    "rollout",
]

_register()
