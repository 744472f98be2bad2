import os
import subprocess
import sys

import numpy as np
import pytest

from attnflow.errors import AttnFlowError
from attnflow.scoring.flow import compiled, shipped
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
def test_each_kernel_is_compiled_when_it_is_first_needed(tmp_path):
    run(FLOW, tmp_path / "new")
    (first,) = (tmp_path / "new").iterdir()
    code = "from attnflow.scoring.flow import compiled; [compiled.kernel(n) for n in ('columns', 'relay', 'paths')]"
    second, third = run(code, tmp_path / "new"), run(code, tmp_path / "new")
    assert second.stderr.count("compiling the flow engine") == 2 and "compiling" not in third.stderr
    assert first.name.startswith("flow-columns-") and len(list((tmp_path / "new").iterdir())) == 3


@pytest.mark.slow
def test_works_where_nothing_can_be_cached(tmp_path):
    (tmp_path / "file").write_text("no folder")
    assert run(FLOW, tmp_path / "file" / "below").stdout == "1.0\n"


def test_each_kernel_is_given_as_many_arguments_as_it_takes():
    from attnflow.scoring.flow.kernels import KERNELS

    # One too few, and the last would be passed as a 32-bit number.
    assert {n: len(given) for n, given in compiled._arguments().items()} == {
        name: len(signature.args) for name, (_, signature) in KERNELS.items()
    }


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

    code = "declare void @NRT_incref(ptr)\ndefine void @f(ptr %x) {\n call void @NRT_incref(ptr %x)\n ret void\n}"
    monkeypatch.setattr(shipped, "code", lambda name: None)
    monkeypatch.setattr(kernels, "llvm", lambda name: (code, "f"))
    with pytest.raises(AttnFlowError, match="needs NRT_incref, and may need nothing of numba.*backend='networkx'"):
        compiled._compile("columns")
    assert "compiling" in capsys.readouterr().err
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(AttnFlowError, match="NUMBA_DISABLE_JIT is set.*unset it, or use"):
        compiled._compile("columns")


def test_code_of_another_llvm_is_made_anew(monkeypatch):
    from attnflow.scoring.flow import kernels

    monkeypatch.setattr(shipped, "code", lambda name: ("words of another version", "f"))
    monkeypatch.setattr(kernels, "llvm", lambda name: ("define void @f() {\n ret void\n}", "f"))
    assert compiled._compile("columns").startswith(b"f\n")


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
    assert compiled._processor()["features"] == "" and compiled._path("columns") is None
    assert compiled._read(None) is None
    compiled._keep(None, b"nowhere to go")


def kept(folder, data=b"name\ncode"):
    path = folder / "flow-0.o"
    compiled._keep(path, data)
    return path


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o277])
def test_the_folder_and_the_file_are_the_users_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = kept(tmp_path / "new")
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o777 == 0o700 and path.stat().st_mode & 0o777 == 0o600
    assert compiled._read(path) == b"name\ncode"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_code_that_others_could_have_written_is_not_loaded(tmp_path, mode):
    path = kept(tmp_path / "shared")
    path.parent.chmod(mode)
    with pytest.raises(compiled._Untrusted, match="others than its owner may write to .*shared"):
        compiled._read(path)
    compiled._keep(path, b"never written")
    path.parent.chmod(0o700)
    assert compiled._read(path) == b"name\ncode"
    path.chmod(mode & 0o666 | 0o600)
    with pytest.raises(compiled._Untrusted, match="others than its owner may write to .*flow-0.o"):
        compiled._read(path)


def test_code_of_another_user_is_not_loaded(tmp_path, monkeypatch):
    path = kept(tmp_path / "other")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(compiled._Untrusted, match=f"belongs to user {me}, and this is user {me + 1}"):
        compiled._read(path)


def test_a_pipe_or_a_link_is_not_loaded(tmp_path):
    path = kept(tmp_path / "odd")
    whole = path.rename(path.with_suffix(".real"))
    path.symlink_to(whole)
    with pytest.raises(compiled._Untrusted, match="is not a regular file"):
        compiled._read(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(compiled._Untrusted, match="is not a regular file"):  # and it does not wait for a writer
        compiled._read(path)


@pytest.mark.slow
def test_a_planted_file_is_not_run_and_the_flow_is_right(tmp_path):
    """The cache of the release ran machine code from any file of the right name with its own digest in front."""
    first = run(
        FLOW + "from attnflow.scoring.flow import compiled; print(compiled._path('columns'))", tmp_path / "shared"
    )
    path = first.stdout.splitlines()[1]
    planted = b"evil\nthis is not machine code, and to load it ends the process"
    import hashlib

    with open(path, "wb") as file:
        file.write(hashlib.sha256(planted).digest() + planted)
    (tmp_path / "shared").chmod(0o777)
    second = run(FLOW, tmp_path / "shared")
    assert second.stdout == "1.0\n"
    assert second.stderr.count("others than its owner may write to") == 1


FORK = """
import os, threading, time
from attnflow.scoring.flow import compiled
if {quick}:
    compiled._compile = lambda name: time.sleep(1) or b"f\\n"
    compiled._loaded = lambda code, symbol, kinds: lambda *given: None
    compiled._read = lambda path: None
    compiled._keep = lambda path, data: None
    work = lambda: compiled.kernel("columns")
else:
    from attnflow import flow
    work = lambda: flow([[[0.5, 0.5], [0.5, 0.5]]] * 3)
thread = threading.Thread(target=work)
thread.start()
# Before the compiler has the lock, the thread imports modules, and a fork in the middle of that is Python's own affair.
while compiled._LOCK.acquire(blocking=False):
    compiled._LOCK.release()
    assert thread.is_alive()
    time.sleep(0.001)
child = os.fork()
if child == 0:
    import signal
    signal.alarm(300)
    work()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
"""


def test_a_fork_while_another_thread_compiles_does_not_hang(tmp_path):
    assert run(FORK.format(quick=True), tmp_path).stdout == "0\n"


@pytest.mark.slow
def test_a_fork_while_another_thread_really_compiles(tmp_path):
    assert run(FORK.format(quick=False), tmp_path / "new").stdout == "0\n"
