"""attnflow: what a transformer's output drew on, layer by layer, and whether to believe the answer.

>>> from attnflow import rollout, flow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnflow.errors import AttnFlowError
from attnflow.lazy import on_first_use
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

# Each name is imported when it is first used: the help of the command line, an error or the version need no torch.
if TYPE_CHECKING:
    from attnflow.answers.attribute import attribute
    from attnflow.answers.attribution import Attribution as Attribution
    from attnflow.attention import Attention
    from attnflow.capturing.capture import capture
    from attnflow.comparing.compare import compare
    from attnflow.correlation import correlate
    from attnflow.faithfulness.rank import rank
    from attnflow.relevance import Relevance
    from attnflow.scoring.blankout import blankout
    from attnflow.scoring.direct import direct
    from attnflow.scoring.explain import explain
    from attnflow.scoring.flow.flow import flow
    from attnflow.scoring.gradient import gradient
    from attnflow.scoring.raw import raw
    from attnflow.scoring.registry import methods, register
    from attnflow.scoring.rollout import rollout
else:
    __getattr__ = on_first_use(
        __name__,
        Attribution="attnflow.answers.attribution",
        attribute="attnflow.answers.attribute",
        compare="attnflow.comparing.compare",
        rank="attnflow.faithfulness.rank",
        Attention="attnflow.attention",
        Relevance="attnflow.relevance",
        blankout="attnflow.scoring.blankout",
        capture="attnflow.capturing.capture",
        correlate="attnflow.correlation",
        direct="attnflow.scoring.direct",
        explain="attnflow.scoring.explain",
        flow="attnflow.scoring.flow.flow",
        gradient="attnflow.scoring.gradient",
        methods="attnflow.scoring.registry",
        raw="attnflow.scoring.raw",
        register="attnflow.scoring.registry",
        rollout="attnflow.scoring.rollout",
    )
