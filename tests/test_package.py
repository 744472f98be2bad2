from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import attnflow

ROOT = Path(__file__).parent.parent
KERNELS = ("scoring/flow/kernels.py", "scoring/flow/waves.py")
# What an import could leave behind, before and after it.
QUIET = """
import os, random, signal, sys, threading, warnings
import numpy, torch, transformers
from transformers.models.auto import configuration_auto

def state():
    return {
        "import hooks": [list(map(repr, sys.meta_path)), list(map(repr, sys.path_hooks)), list(sys.path)],
        "exception hook": repr(sys.excepthook),
        "signals": [repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM)],
        "warnings": list(map(repr, warnings.filters)),
        "environment": dict(os.environ),
        "threads": [t.name for t in threading.enumerate()] + [torch.get_num_threads()],
        "seeds": [repr(random.getstate()), repr(numpy.random.get_state()), torch.get_rng_state().tolist()],
        "torch": [torch.is_grad_enabled(), torch.get_default_dtype()],
        "registered models": sorted(configuration_auto.CONFIG_MAPPING._extra_content),
        "working folder": os.getcwd(),
    }

before, loaded = state(), set(sys.modules)
import attnflow
for name, value in state().items():
    assert value == before[name], name
assert "transformers.modeling_utils" not in set(sys.modules) - loaded, "transformers' models are imported"
"""
HEAVY = ("captum", "numba", "datasets", "matplotlib", "pandas", "scipy", "networkx", "ray", "pyarrow")


def test_the_public_names_are_there_and_few():
    assert all(hasattr(attnflow, name) for name in attnflow.__all__)
    assert len(attnflow.__all__) <= 18
    fixed = {"capture", "raw", "rollout", "flow", "gradient", "blankout", "compare", "methods"}
    fixed |= {"Attention", "Relevance", "AttnFlowError"}
    assert fixed <= set(attnflow.__all__)


def test_importing_attnflow_imports_nothing_heavy_of_its_own():
    """What torch and transformers bring along by themselves is not counted."""
    code = (
        "import sys, torch, transformers; before = set(sys.modules); import attnflow; "
        f"print([m for m in {HEAVY} if m in sys.modules and m not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_attnflow_changes_nothing_but_the_list_of_modules():
    """No hook, no registered model, no warning filter, no seed. Nor are transformers' models imported: it is slow."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", QUIET], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "" and done.stderr == "", done.stdout + done.stderr


def test_the_version_is_in_one_place_and_the_citation_agrees():
    assert f"version: {attnflow.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'dynamic = ["version",' in (ROOT / "pyproject.toml").read_text()


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "attnflow").rglob("*.py")):
        yield path.relative_to(ROOT / "attnflow"), ast.parse(path.read_text(encoding="utf-8"))


def test_modules_stay_small():
    for path in (ROOT / "attnflow").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, path


def test_functions_stay_short():
    """Their statements, without the arguments and the docstring; the compiled loops of the flow are let off."""
    for path, tree in trees():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and path.as_posix() not in KERNELS:
                body = function.body[1:] if ast.get_docstring(function) is not None else function.body
                length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert length <= 60, f"{path}: {function.name} has {length} lines"


def test_no_module_imports_the_public_names_from_the_top():
    """They are for users: inside, every module names the one that it needs, so that the import contracts see it."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "attnflow":
                wrong = [a.name for a in node.names if not find_spec(f"attnflow.{a.name}")]
                assert wrong == [], f"{path}: from attnflow import {', '.join(wrong)}"


def test_no_registry_host_is_named():
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        assert not re.search(r"https?://(?!keepachangelog)", (ROOT / name).read_text()), name


def test_the_workflow_runs_every_row_of_the_matrix_of_versions():
    from tests.versions import MATRIX

    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert f"row: [{', '.join(v.name for v in MATRIX)}]" in workflow
    oldest = MATRIX[0].transformers.rsplit(".", 1)[0]
    assert f'"transformers>={oldest}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
