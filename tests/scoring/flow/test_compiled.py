import os
import subprocess
import sys

import numpy as np
import pytest

from attnflow.errors import AttnFlowError
from attnflow.scoring.flow import compiled
from attnflow.scoring.flow.workspace import workspace

FLOW = "from attnflow import flow; print(flow([[[0.5, 0.5], [0.5, 0.5]]] * 3).scores[-1, 0, 0])\n"


def run(code, cache=None):
    env = {"PATH": "", "PYTHONPATH": ":".join(sys.path), "HOME": os.environ.get("HOME", "/")}
    if cache is not None:
        env["ATTNFLOW_CACHE"] = str(cache)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)


def test_importing_does_not_load_the_engine():
    code = "import sys, attnflow; print([m for m in ('numba', 'llvmlite', 'networkx', 'scipy') if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


@pytest.mark.slow
def test_first_call_says_that_it_compiles_and_the_next_needs_no_numba(tmp_path):
    first = run(FLOW, tmp_path / "new")
    second = run(FLOW + "import sys; print('numba' in sys.modules)", tmp_path / "new")
    assert first.stdout == "1.0\n" and second.stdout == "1.0\nFalse\n"
    assert first.stderr.count("compiling the flow engine") == 1 and "compiling" not in second.stderr
    (kept,) = (tmp_path / "new").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1])  # cut short, as by a full disk
    third = run(FLOW, tmp_path / "new")
    assert third.stdout == "1.0\n" and "compiling" in third.stderr
    assert len(kept.read_bytes()) == len(whole)


@pytest.mark.slow
def test_works_where_nothing_can_be_cached(tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert run(FLOW, tmp_path / "file" / "below").stdout == "1.0\n"


def test_the_kernel_takes_only_the_arrays_it_knows():
    caps, rows, sinks = np.ones((2, 3, 3), np.int64), np.full((2, 3), 3), np.zeros(1, np.uint64)
    order, wanted = np.tile(np.arange(3, dtype=np.uint64), (1, 3, 1)), np.array([-1, -1, 0])
    rest = (np.zeros((0, 3), np.int64), np.zeros((1, 1, 3), np.int64), np.zeros((1, 1, 3), np.int8))
    cuts, space = np.zeros((0, 0, 0, 0), np.uint64), workspace(3, 2)
    compiled.columns(caps, rows, sinks, order, wanted, *rest, cuts, space)
    assert rest[1].tolist() == [[[3, 3, 3]]]
    with pytest.raises(TypeError, match="contiguous arrays of int64, not float64"):
        compiled.columns(caps.astype(float), rows, sinks, order, wanted, *rest, cuts, space)
    with pytest.raises(TypeError, match="contiguous"):
        compiled.columns(caps.transpose(0, 2, 1), rows, sinks, order, wanted, *rest, cuts, space)


def test_code_that_only_numba_could_run_is_refused(monkeypatch, capsys):
    from attnflow.scoring.flow import kernels

    monkeypatch.setattr(
        kernels, "llvm", lambda: ("declare void @NRT_incref(ptr)\ndeclare i64 @llvm.cttz.i64(i64)", "f")
    )
    with pytest.raises(AttnFlowError, match="needs NRT_incref, and may need nothing of numba.*backend='networkx'"):
        compiled._compile()
    assert "compiling" in capsys.readouterr().err
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(AttnFlowError, match="NUMBA_DISABLE_JIT is set.*unset it, or use"):
        compiled._compile()


@pytest.mark.parametrize(("env", "folder"), [
    ({"ATTNFLOW_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"), ({"XDG_CACHE_HOME": "/b"}, "/b/attnflow"),
    ({"LOCALAPPDATA": "/c"}, "/c/attnflow"), ({"HOME": "/d"}, "/d/.cache/attnflow"),
])  # fmt: skip
def test_where_it_is_kept(env, folder, monkeypatch):
    for name in ("ATTNFLOW_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert str(compiled._folder()) == folder


def test_without_a_home_and_on_a_processor_that_llvm_does_not_know(monkeypatch):
    from llvmlite import binding

    def unknown():
        raise RuntimeError

    monkeypatch.setattr(compiled, "_folder", unknown)
    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    assert compiled._processor()["features"] == "" and compiled._path() is None
    assert compiled._read(None) is None
    compiled._keep(None, b"nowhere to go")
