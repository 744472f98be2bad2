"""What a layer really mixes: its output at each position as a sum of parts of the input positions.

:mod:`.trace` follows what attention gives to the residual stream, one operation after the other (:mod:`.follow`),
:mod:`.chain` applies the steps that it saw to the parts, and :mod:`.parts` turns these into contributions.
:mod:`.value_zeroing` runs a layer again (:mod:`.replay`) with the value of one position set to zero.

There is no table of models: the output projection, gates, norms and the residual are what the model did in this run.
"""
