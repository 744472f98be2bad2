from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from attnflow import __version__

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_package_reads(tmp_path):
    """Every file of the package that is not compiled is in the wheel, and nothing from outside the package."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"attnflow-{__version__}-py3")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    listed = subprocess.run(["git", "ls-files", "attnflow"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        assert set(listed.stdout.split()) <= names
    assert {"attnflow/py.typed", "attnflow/views/page/page.css"} <= names
    assert {n.split("/")[0] for n in names} == {"attnflow", f"attnflow-{__version__}.dist-info"}
