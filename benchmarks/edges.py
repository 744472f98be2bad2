"""Edges: what they cost, whether the parts add up, and how far scores agree with blank-out and gradients.

    python benchmarks/edges.py compare --data FOLDER --classifier FOLDER --work FOLDER    # see edges_compare.py
    python benchmarks/edges.py speed                                                      # see edges_speed.py
    python benchmarks/edges.py certificate --model NAME=FOLDER                            # see edges_certificate.py

All parts write their place on docs/benchmarks/edges.md.
"""

from __future__ import annotations

import importlib
import sys

PARTS = ("compare", "speed", "certificate")


def main() -> None:
    if sys.argv[1:] == ["--quick"]:
        for part in PARTS:
            importlib.import_module(f"edges_{part}").main()
        return
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        raise SystemExit(__doc__)
    part = sys.argv.pop(1)
    importlib.import_module(f"edges_{part}").main()


if __name__ == "__main__":
    main()
