"""attnflow: what a transformer's output drew on, layer by layer, and whether to believe the answer.

>>> from attnflow import rollout, flow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnflow.attention import Attention
from attnflow.capturing.capture import capture
from attnflow.correlation import correlate
from attnflow.errors import AttnFlowError
from attnflow.lazy import on_first_use
from attnflow.relevance import Relevance
from attnflow.scoring.blankout import blankout
from attnflow.scoring.direct import direct
from attnflow.scoring.explain import explain
from attnflow.scoring.flow.flow import flow
from attnflow.scoring.gradient import gradient
from attnflow.scoring.raw import raw
from attnflow.scoring.registry import methods, register
from attnflow.scoring.rollout import rollout
from attnflow.version import __version__

__all__ = [
    "Attention",
    "AttnFlowError",
    "Relevance",
    "__version__",
    "attribute",
    "blankout",
    "capture",
    "compare",
    "correlate",
    "direct",
    "explain",
    "flow",
    "gradient",
    "methods",
    "rank",
    "raw",
    "register",
    "rollout",
]

if TYPE_CHECKING:
    from attnflow.answers.attribute import attribute
    from attnflow.answers.attribution import Attribution as Attribution
    from attnflow.comparing.compare import compare
    from attnflow.faithfulness.rank import rank
else:
    __getattr__ = on_first_use(
        __name__,
        Attribution="attnflow.answers.attribution",
        attribute="attnflow.answers.attribute",
        compare="attnflow.comparing.compare",
        rank="attnflow.faithfulness.rank",
    )
