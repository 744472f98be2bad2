"""The kernels as LLVM code that comes with the package, made by numba from their sources.

numba takes seconds to turn the kernels into LLVM code, and the result is the same on every machine of a kind. So it is
made beforehand; what is left to do on the user's machine is to optimise it for the processor, see compiled.py. The code
is used only if it was made from the sources as they are, which its first line tells; otherwise numba makes it anew.

    PYTHONHASHSEED=0 python -m attnflow.scoring.flow.shipped     # after a kernel has been changed
"""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import re
import sys
from importlib.metadata import version
from pathlib import Path

from attnflow.scoring.flow.counting import COUNTING

SOURCES = (
    *("waves.py", "kernels.py", "relay_kernel.py", "paths_kernel.py", "reroute_kernel.py", "rounding_kernel.py"),
    *("workspace.py", "counting.py"),
)
NAMES = ("columns", "relay", "paths", "reroute", "rounding")
_FOLDER = Path(__file__).parent / "llvm"


def digest() -> str:
    """A hash of the sources of all kernels."""
    key = hashlib.sha256()
    for source in SOURCES:
        # Git may write other line ends.
        key.update((Path(__file__).parent / source).read_bytes().replace(b"\r\n", b"\n"))
    return key.hexdigest()


def code(name: str) -> tuple[str, str] | None:
    """A kernel as LLVM code and the name that it has there, or None where numba has to make it.

    numba's code depends on the size of addresses and on how functions are called, so it is for 64-bit x86 only.
    """
    if COUNTING or platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    try:
        text = lzma.decompress((_FOLDER / f"{name}.ll.xz").read_bytes()).decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError):
        return None
    made_from, symbol = (line.removeprefix("; ") for line in text.split("\n", 2)[:2])
    return (text, symbol) if made_from.split()[0] == digest() else None


def made(name: str) -> str:
    """What the file of a kernel holds: the hash of the sources, the kernel's name, code for no system in particular."""
    from attnflow.scoring.flow.kernels import llvm

    text, symbol = llvm(name)
    text = re.sub(r"^(target (triple|datalayout) = .*|source_filename = .*|; ModuleID.*)\n", "", text, flags=re.M)
    # numba notes where some of Python's objects are in this process; no kernel reads that.
    text = re.sub(r"inttoptr \(i64 \d+ to ptr\)", "null", text)
    places = dict.fromkeys(re.findall(r"numba\.dynamic\.globals\.([0-9a-f]+)", text))
    for number, place in enumerate(places):
        text = text.replace(f"numba.dynamic.globals.{place}", f"numba.dynamic.globals.at{number}")
    return f"; {digest()} by numba {version('numba')}\n; {symbol}\n{text}"


def main() -> None:
    """Write the files of all kernels, into the package or into a folder that is named."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets decides about the names of variables
        raise SystemExit("PYTHONHASHSEED is not 0, so the code would be another each time: set it to 0.")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _FOLDER
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.ll.xz").write_bytes(lzma.compress(made(name).encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
