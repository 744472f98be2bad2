"""Load the compiled kernel; say so when it has to be compiled first."""

from __future__ import annotations

import sys
from typing import Any

from numba.core import event


class _Announce(event.Listener):
    """Write one line when numba starts to compile: a few seconds of silence look like a fault."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said and sys.stderr is not None:
            sys.stderr.write("attnflow: compiling the flow engine; this happens once and takes some seconds …\n")
            sys.stderr.flush()
        self.said = True

    def on_end(self, event: Any) -> None:
        """Nothing to say: the result follows."""


with event.install_listener("numba:compile", _Announce()):
    from attnflow.flow import kernels

columns: Any = kernels.columns
words_of: Any = kernels.words_of
workspace: Any = kernels.workspace
