import lzma
import os
import platform
import subprocess
import sys
from importlib.metadata import version

import pytest

from attnflow.scoring.flow import shipped

x86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the code is for 64-bit x86")


@x86
@pytest.mark.parametrize("name", shipped.NAMES)
def test_the_code_was_made_from_the_sources_as_they_are(name, monkeypatch):
    found = shipped.code(name)
    assert found is not None, "a kernel has changed:  PYTHONHASHSEED=0 python -m attnflow.scoring.flow.shipped"
    text, symbol = found
    assert f'@"{symbol}"' in text or f"@{symbol}(" in text
    assert "triple" not in text and "inttoptr (i64" not in text  # nothing of the machine that made it
    monkeypatch.setattr(shipped, "digest", lambda: "of other sources")
    assert shipped.code(name) is None


@x86
def test_a_file_that_is_missing_or_broken_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    assert shipped.code("columns") is None
    (tmp_path / "columns.ll.xz").write_bytes(b"no archive")
    assert shipped.code("columns") is None


def test_other_processors_and_debug_builds_get_code_of_their_own(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert shipped.code("columns") is None
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shipped, "COUNTING", True)
    assert shipped.code("columns") is None


def made(folder, seed):
    command = [sys.executable, "-m", "attnflow.scoring.flow.shipped", str(folder)]
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_code_is_made_in_one_order_only(tmp_path):
    assert "PYTHONHASHSEED is not 0" in made(tmp_path, "1").stderr


@x86
@pytest.mark.slow
def test_the_code_is_what_numba_makes(tmp_path):
    assert made(tmp_path, "0").returncode == 0
    for name in shipped.NAMES:
        kept, new = (lzma.decompress((f / f"{name}.ll.xz").read_bytes()).decode() for f in (shipped._FOLDER, tmp_path))
        if kept.split("\n")[0].endswith(f"by numba {version('numba')}"):
            assert kept == new
