"""The compiled kernels: optimised once for this processor, kept on disk as machine code, and loaded from there.

Their LLVM code comes with the package (shipped.py); numba makes it where that is not for this kind of processor.

To import numba and to read its own cache takes half a second in every process; the machine code of a kernel needs
nothing but ``memset``, and llvmlite loads it in a tenth of that. Each kernel is compiled when it is first needed: most
people never need those for long inputs.

The folder therefore holds code that is run. It is loaded only where nobody but this user can have put it there: the
folder and the file are this user's, and nobody else may write to them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnflow.errors import AttnFlowError, FileError
from attnflow.files import write_bytes
from attnflow.scoring.flow import counting, shipped
from attnflow.scoring.flow.counting import COUNTING
from attnflow.scoring.flow.integers import F64, NEAR, Ints, Words
from attnflow.scoring.flow.workspace import ENDLESS, SLOW, Work, words_of

Small = npt.NDArray[np.int32]
CACHE = "ATTNFLOW_CACHE"
_NEEDED = {"memset", "memcpy", "memmove"}  # of every C library, so of every process
_LOCK = threading.RLock()  # so that threads that come together compile once
_LOG = 16  # as in relay_kernel.py, which needs numba to be imported
_DIGEST = hashlib.sha256().digest_size
if hasattr(os, "register_at_fork"):
    # A fork waits until the kernel is ready: its child has no thread that could finish it, or give the lock back.
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def columns(
    cap: Ints,
    rowsum: Ints,
    sinks: Words,
    order: Words,
    wanted: Ints,
    known: Ints,
    value: Ints,
    code: npt.NDArray[np.int8],
    cuts: Words,
    space: Work,
    *,
    theorem: bool = False,
    explicit: bool = False,
    begin: int = 0,
    stride: int = 1,
    slow: int = SLOW,
) -> None:
    """Flows of all sources into ``sinks``: calls the kernel ``columns`` of kernels.py, which tells what the arrays are.

    ``cap`` is ``[S, n, n]``, ``rowsum`` ``[S, n]``; ``value`` and ``code`` ``[sinks, tops, n]`` are filled.
    """
    steps, n = rowsum.shape
    signed, places = np.int64, np.uint64
    nothing = ctypes.c_void_p()  # the result and the error of numba's functions, here never more than null
    kernel("columns")(
        ctypes.byref(nothing), ctypes.byref(nothing), _at(cap, signed), _at(rowsum, signed), n, steps, words_of(n),
        _at(sinks, places), len(sinks), _at(order, places), _at(wanted, signed), value.shape[1], _at(known, signed),
        len(known) > 0, theorem, explicit, begin, stride, slow, _at(value, signed), _at(code, np.int8),
        _at(cuts, places), *(a.ctypes.data for a in space),
    )  # fmt: skip


def relay(
    causal: bool,
    source: int,
    row: Ints,
    tiers: Ints,
    budgets: Ints,
    columns: tuple[Ints, ...],
    below: Ints,
    mid: Ints,
    high: Ints,
    chain: Ints,
    upper: Ints,
    lower: Ints,
    begin: int = 0,
    stride: int = 1,
    work: int = ENDLESS,
) -> None:
    """Lower bounds of the flows from one output: calls the kernel ``relay`` of relay_kernel.py, which tells the arrays.

    ``columns`` are the lowest step and the three tiers above it, transposed; ``lower`` ``[n]`` is changed in place; an
    input is left as it is once ``work`` edges between tokens were looked at.
    """
    nothing, n = ctypes.c_void_p(), len(row)
    arrays = (row, tiers, budgets, *columns, below, mid, high, chain, upper, lower)
    space = [np.empty(size, np.int64) for size in (n, n, n, 3 * n, 3 * n, n)]
    space += [np.zeros(n, np.int64), *(np.empty(size, np.int64) for size in (n + 1, 3 * _LOG * n, 7))]
    reads = np.zeros(counting.PLACES, np.uint64)
    kernel("relay")(
        ctypes.byref(nothing), ctypes.byref(nothing), n, causal, source, *(_at(a, np.int64) for a in arrays),
        begin, stride, work, *(_at(a, np.int64) for a in space), _at(reads, np.uint64),
    )  # fmt: skip
    if COUNTING:
        counting.add(reads)


def rounding(
    weights: npt.NDArray[np.float32], factor: F64, own: F64, start: int, stop: int, width: int, bits: int
) -> Ints:
    """Rows ``start … stop`` of weights ``[n, n]`` as capacities: calls the kernel of rounding_kernel.py.

    Row i is multiplied by ``factor[i]``, and ``own[i]`` is added to its own column: ``[stop - start, width]``.
    """
    nothing, out = ctypes.c_void_p(), np.empty((stop - start, width), np.int64)
    whole, near = (2**bits, math.ceil(2.0**bits * NEAR)) if 0 <= bits <= 60 else (0, 0)
    kernel("rounding")(
        ctypes.byref(nothing), ctypes.byref(nothing), weights.ctypes.data, weights.strides[0] // weights.itemsize,
        start, stop, width, _at(factor, np.float64), _at(own, np.float64), 2.0**bits, whole, near, _at(out, np.int64),
    )  # fmt: skip
    return out


def paths(
    source: int, sink: int, enough: int, first: Small, to: Small, pair: Small, room: Small, space: Sequence[Small],
    flows: int = 0,
) -> int:  # fmt: skip
    """The size of a flow in a sparse network: calls the kernel ``paths`` of paths_kernel.py, which tells the arrays.

    ``flows`` is what flows already; ``room``, what that leaves, is changed in place; ``space`` are four arrays of one
    number for each node.
    """
    nothing, value = ctypes.c_void_p(), np.full(1, flows, np.int64)
    arrays = (first, to, pair, room, *space)
    kernel("paths")(
        ctypes.byref(nothing), ctypes.byref(nothing), len(first) - 1, source, sink, enough,
        *(_at(a, np.int32) for a in arrays), _at(value, np.int64),
    )  # fmt: skip
    return int(value[0])


def reroute(
    source: int, sink: int, enough: int, first: Small, split: Small, to: Small, pair: Small, room: Small,
    excess: Small, space: Sequence[Small], flows: int,
) -> int:  # fmt: skip
    """What arrives once a flow is put right: calls the kernel ``reroute`` of reroute_kernel.py, which tells the arrays.

    ``flows`` is what arrives already; ``room`` and ``excess`` are changed in place; ``space`` are four arrays of one
    number for each node.
    """
    nothing, value = ctypes.c_void_p(), np.full(1, flows, np.int64)
    arrays = (first, split, to, pair, room, excess, *space)
    kernel("reroute")(
        ctypes.byref(nothing), ctypes.byref(nothing), len(first) - 1, source, sink, enough,
        *(_at(a, np.int32) for a in arrays), _at(value, np.int64),
    )  # fmt: skip
    return int(value[0])


def _at(array: npt.NDArray[Any], kind: Any) -> int:
    """The address of an array, which must be as the kernel takes it: there nothing is checked any more."""
    if array.dtype != kind or not array.flags.c_contiguous:
        raise TypeError(f"the kernel takes contiguous arrays of {kind.__name__}, not {array.dtype}")
    return array.ctypes.data


def kernel(name: str) -> Callable[..., int]:
    """A kernel as a function of C; while it runs, other threads of Python run too."""
    with _LOCK:
        return _kernel(name)


@functools.cache
def _kernel(name: str) -> Callable[..., int]:
    path = _path(name)
    try:
        found = _read(path)
        if found is None:
            found = _compile(name)
            _keep(path, found)
    except _Untrusted as reason:
        _say(
            f"attnflow: {reason}, so the flow engine is not loaded from there but compiled anew for this process. "
            f"Make it yours alone, or name another folder:  export {CACHE}=~/.cache/attnflow"
        )
        found = _compile(name)
    symbol, _, code = found.partition(b"\n")
    return _loaded(code, symbol.decode(), _arguments()[name])


class _Untrusted(Exception):
    """Somebody else could have put code there."""


def _path(name: str) -> Path | None:
    """Where a kernel of this version for this processor is kept as machine code; None where there is no such place."""
    from llvmlite import binding

    known = [shipped.digest(), Path(__file__).read_bytes(), version("numba"), version("llvmlite"), COUNTING]
    key = hashlib.sha256(repr([*known, binding.get_process_triple(), _processor()]).encode())
    try:
        return _folder() / f"flow-{name}-{key.hexdigest()[:24]}.o"
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
    """What is kept, unless it is not there or not whole; what somebody else could have written is an error."""
    try:
        kept = b"" if path is None else _private_bytes(path)
    except OSError:
        return None
    digest, data = kept[:_DIGEST], kept[_DIGEST:]
    return data if data and hashlib.sha256(data).digest() == digest else None


def _private_bytes(path: Path) -> bytes:
    """The file, looked at through handles, so that nothing can be exchanged between the check and the reading."""
    if not hasattr(os, "geteuid"):  # Windows: a profile's own folder is closed to others
        return path.read_bytes()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_private(path.parent, os.fstat(folder))
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise _Untrusted(f"{path} is not a regular file")
        # Without waiting: a pipe put there meanwhile would never be filled.
        handle = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _Untrusted(f"{path} is not a regular file")
        _check_private(path, found)
        return file.read()


def _check_private(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise _Untrusted(f"{path} belongs to user {found.st_uid}, and this is user {os.geteuid()}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _Untrusted(f"others than its owner may write to {path} (mode {stat.S_IMODE(found.st_mode):o})")


def _keep(path: Path | None, data: bytes) -> None:
    """Write it for the next process, for this user alone; where that cannot be done, each compiles anew."""
    if path is None:
        return
    try:
        if not path.parent.is_dir():
            path.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700)
            path.parent.chmod(0o700)  # mkdir takes what the umask says away
        if hasattr(os, "geteuid"):
            _check_private(path.parent, path.parent.stat())
        write_bytes(path, hashlib.sha256(data).digest() + data, overwrite=True, private=True)
    except (OSError, FileError, _Untrusted):
        return


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _compile(name: str) -> bytes:
    """The kernel's name there, a line break, its machine code. It says so: seconds of silence look like a fault."""
    _say("attnflow: compiling the flow engine; this happens once and takes some seconds …")
    if (found := shipped.code(name)) is not None:
        try:
            return _machine_code(*found)
        except RuntimeError:  # another version of LLVM need not understand it
            pass
    return _machine_code(*_by_numba(name))


def _by_numba(name: str) -> tuple[str, str]:
    """A kernel as LLVM code and the name that it has there."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise AttnFlowError(
            "NUMBA_DISABLE_JIT is set, and the flow engine has to be compiled: unset it, or use  backend='networkx'"
        )
    from attnflow.scoring.flow import kernels

    return kernels.llvm(name)


def _machine_code(text: str, symbol: str) -> bytes:
    """LLVM code as machine code: each function for itself is made simpler first, then all are optimised together."""
    from llvmlite import binding

    machine, module = _machine(), binding.parse_assembly(text)
    module.triple, module.data_layout = binding.get_process_triple(), str(machine.target_data)
    options = binding.create_pipeline_tuning_options(3)
    options.loop_vectorization, options.slp_vectorization = True, False
    for function in module.functions:
        if not function.is_declaration:
            passes = binding.create_pass_builder(machine, options)
            passes.getFunctionPassManager().run(function, passes)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    foreign = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")} - _NEEDED
    if foreign:  # to load it would end the process
        raise AttnFlowError(
            f"The flow engine as numba {version('numba')} compiles it needs {', '.join(sorted(foreign))}, and may need "
            "nothing of numba. Use another version of numba, or  backend='networkx'"
        )
    return symbol.encode() + b"\n" + bytes(machine.emit_object(module))


def _machine() -> Any:
    """LLVM for this processor, with the settings of numba's own compiler."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    places = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(opt=3, reloc=places, codemodel="jitdefault", jit=True, **_processor())


def _loaded(code: bytes, symbol: str, kinds: Sequence[Any]) -> Callable[..., int]:
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # numba's own order: where to put the result and the error, then the arguments.
    kind: Any = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)
    found = kind(engine.get_function_address(symbol))
    found.engine = engine  # the code lives as long as this does
    return found  # type: ignore[no-any-return]


def _arguments() -> dict[str, list[Any]]:
    """The kinds of arguments of each kernel."""
    address, number = ctypes.c_void_p, ctypes.c_uint64
    columns = [address] * 2 + [number] * 3 + [address, number] + [address] * 2 + [number, address] + [number] * 6
    return {
        "columns": columns + [address] * (3 + len(Work._fields)),
        "relay": [number] * 3 + [address] * 13 + [number] * 3 + [address] * 11,
        "rounding": [address] + [number] * 4 + [address] * 2 + [ctypes.c_double] + [number] * 2 + [address],
        "paths": [number] * 4 + [address] * 9,
        "reroute": [number] * 4 + [address] * 11,
    }
