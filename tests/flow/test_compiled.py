import subprocess
import sys

import pytest


def test_importing_does_not_load_the_engine():
    code = "import sys, attnflow.flow; print([m for m in ('numba', 'networkx', 'scipy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_first_call_says_that_it_compiles_and_the_next_does_not(tmp_path):
    code = "from attnflow.flow import flow; print(flow([[[0.5, 0.5], [0.5, 0.5]]] * 3).scores[-1, 0, 0])"
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        for _ in range(2)
    )
    assert first.stdout == second.stdout == "1.0\n"
    assert first.stderr.count("compiling the flow engine") == 1 and "compiling" not in second.stderr


@pytest.mark.slow
def test_works_where_nothing_can_be_cached():
    code = (
        "from numba.core import caching; caching.CacheImpl._locator_classes = []\n"
        "from attnflow.flow import flow; print(flow([[[0.5, 0.5], [0.5, 0.5]]] * 3).scores[-1, 0, 0])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "1.0\n"
