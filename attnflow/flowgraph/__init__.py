"""All that a view of attention flow shows, computed beforehand: a view draws a :class:`Picture` and computes nothing.

The network is that of :func:`attnflow.flow`. For a target (an output position at a layer) there is one maximum flow to
each input, with an edge flow and a minimum cut of its own; a picture holds them one by one and adds none together, as
a sum of maximum flows is no flow. What is large is pruned, and every picture says what it kept.
"""

from attnflow.flowgraph.build import METHODS, picture
from attnflow.flowgraph.heads import ways
from attnflow.flowgraph.records import Curve, Level, PairFlow, Picture, Target, settings_line

__all__ = ["METHODS", "Curve", "Level", "PairFlow", "Picture", "Target", "picture", "settings_line", "ways"]
