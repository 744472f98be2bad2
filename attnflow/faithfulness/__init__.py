"""Which score may be believed: measures of faithfulness, and the league of methods over a data set.

>>> from attnflow import faithfulness
>>> faithfulness.measures()["name"].tolist()[:3]
['comprehensiveness', 'sufficiency', 'deletion']
"""

from typing import TYPE_CHECKING

from attnflow.faithfulness.league import League
from attnflow.faithfulness.registry import measures
from attnflow.faithfulness.single import curve, measure
from attnflow.lazy import on_first_use

__all__ = ["League", "curve", "measure", "measures"]

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
