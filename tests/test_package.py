from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import attnflow

ROOT = Path(__file__).parent.parent
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


def test_the_version_is_in_one_place_and_the_citation_agrees():
    assert f"version: {attnflow.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_modules_stay_small():
    for path in (ROOT / "attnflow").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, path


def test_no_registry_host_is_named():
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        assert not re.search(r"https?://(?!keepachangelog)", (ROOT / name).read_text()), name
