"""The two tasks on which attention flow was introduced: verb number and pronoun resolution.

``attnflow.probes.verb_number``  does the model know the number of the verb, and which words did it draw on?
``attnflow.probes.pronouns``     which of two referents does the model choose, and to which does its attention point?
``attnflow.probes.data``         examples from files and from ``datasets``
``attnflow.probes.grammar``      examples that the package makes itself
"""

from typing import TYPE_CHECKING

from attnflow.lazy import on_first_use

if not TYPE_CHECKING:
    __getattr__ = on_first_use(__name__)
