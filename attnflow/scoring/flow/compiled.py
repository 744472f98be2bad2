"""The compiled kernel: made once by numba, kept on disk as machine code, and loaded from there without numba.

To import numba and to read its own cache takes half a second in every process; the machine code of the kernel needs
nothing but ``memset``, and llvmlite loads it in a tenth of that.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import AttnFlowError
from attnflow.files import write_bytes
from attnflow.scoring.flow.integers import Ints, Words
from attnflow.scoring.flow.workspace import Work, words_of

SOURCES = ("waves.py", "kernels.py", "workspace.py")
CACHE = "ATTNFLOW_CACHE"
_NEEDED = {"memset", "memcpy", "memmove"}  # of every C library, so of every process
_LOCK = threading.Lock()  # so that threads that come together compile once
_DIGEST = hashlib.sha256().digest_size


def columns(
    cap: Ints,
    rowsum: Ints,
    sinks: Words,
    order: Words,
    wanted: Ints,
    floor: Ints,
    value: Ints,
    code: npt.NDArray[np.int8],
    cuts: Words,
    space: Work,
    *,
    theorem: bool = False,
    explicit: bool = False,
    begin: int = 0,
    stride: int = 1,
) -> None:
    """Flows of all sources into ``sinks``: calls the kernel ``columns`` of kernels.py, which tells what the arrays are.

    ``cap`` is ``[S, n, n]``, ``rowsum`` ``[S, n]``; ``value`` and ``code`` ``[sinks, tops, n]`` are filled.
    """
    steps, n = rowsum.shape
    signed, places = np.int64, np.uint64
    nothing = ctypes.c_void_p()  # the result and the error of numba's functions, here never more than null
    with _LOCK:
        kernel = _kernel()
    kernel(
        ctypes.byref(nothing), ctypes.byref(nothing), _at(cap, signed), _at(rowsum, signed), n, steps, words_of(n),
        _at(sinks, places), len(sinks), _at(order, places), _at(wanted, signed), value.shape[1], _at(floor, signed),
        len(floor) > 0, theorem, explicit, begin, stride, _at(value, signed), _at(code, np.int8), _at(cuts, places),
        *(a.ctypes.data for a in space),
    )  # fmt: skip


def _at(array: npt.NDArray[Any], kind: Any) -> int:
    """The address of an array, which must be as the kernel takes it: there nothing is checked any more."""
    if array.dtype != kind or not array.flags.c_contiguous:
        raise TypeError(f"the kernel takes contiguous arrays of {kind.__name__}, not {array.dtype}")
    return array.ctypes.data


@functools.cache
def _kernel() -> Callable[..., int]:
    """The kernel as a function of C; while it runs, other threads of Python run too."""
    path = _path()
    found = _read(path)
    if found is None:
        found = _compile()
        _keep(path, found)
    name, _, code = found.partition(b"\n")
    return _loaded(code, name.decode())


def _path() -> Path | None:
    """Where the machine code of this version for this processor is kept; None where there is no such place."""
    from llvmlite import binding

    key = hashlib.sha256()
    for name in SOURCES:
        key.update((Path(__file__).parent / name).read_bytes())
    key.update(repr([version("numba"), version("llvmlite"), binding.get_process_triple(), _processor()]).encode())
    try:
        return _folder() / f"flow-{key.hexdigest()[:24]}.o"
    except RuntimeError:  # no home
        return None


def _processor() -> dict[str, str]:
    """The processor as LLVM names it, and what it can do."""
    from llvmlite import binding

    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot tell on every system; the name says most of it
        features = ""
    return {"cpu": binding.get_host_cpu_name(), "features": features}


def _folder() -> Path:
    given = os.environ.get(CACHE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "attnflow"


def _read(path: Path | None) -> bytes | None:
    """What is kept, unless it is not there or not whole."""
    try:
        kept = path.read_bytes() if path is not None else b""
    except OSError:
        return None
    digest, data = kept[:_DIGEST], kept[_DIGEST:]
    return data if data and hashlib.sha256(data).digest() == digest else None


def _keep(path: Path | None, data: bytes) -> None:
    """Write it for the next process; where that cannot be done, each compiles anew."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, hashlib.sha256(data).digest() + data, overwrite=True)
    except OSError:
        return


def _compile() -> bytes:
    """The name of the kernel, a line break, its machine code. It says so: seconds of silence look like a fault."""
    if sys.stderr is not None:
        sys.stderr.write("attnflow: compiling the flow engine; this happens once and takes some seconds …\n")
        sys.stderr.flush()
    from llvmlite import binding

    from attnflow.scoring.flow.kernels import llvm

    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise AttnFlowError(
            "NUMBA_DISABLE_JIT is set, and the flow engine has to be compiled: unset it, or use  backend='networkx'"
        )
    text, name = llvm()
    foreign = {f for f in re.findall(r'^declare [^@]*@"?([^"(]+)', text, re.M) if not f.startswith("llvm.")} - _NEEDED
    if foreign:  # to load it would end the process
        raise AttnFlowError(
            f"The flow engine as numba {version('numba')} compiles it needs {', '.join(sorted(foreign))}, and may need "
            "nothing of numba. Use another version of numba, or  backend='networkx'"
        )
    return name.encode() + b"\n" + bytes(_machine().emit_object(binding.parse_assembly(text)))


def _machine() -> Any:
    """LLVM for this processor, with the settings of numba's own compiler."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    places = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(opt=3, reloc=places, codemodel="jitdefault", jit=True, **_processor())


def _loaded(code: bytes, name: str) -> Callable[..., int]:
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address, number = ctypes.c_void_p, ctypes.c_uint64
    # numba's own order: where to put the result and the error, then the arguments.
    kinds = [address] * 4 + [number] * 3 + [address, number] + [address] * 2 + [number, address] + [number] * 5
    function: Any = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds, *[address] * (3 + len(Work._fields)))(
        engine.get_function_address(name)
    )
    function.engine = engine  # the code lives as long as this does
    return function  # type: ignore[no-any-return]
