"""Every block of Python in the README and the docs runs as it stands, by itself, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnflow.scoring import registry
from tests.versions import MATRIX

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(page, code, id=f"{page.stem}-{number}", marks=[pytest.mark.slow] if 'engine="ray"' in code else [])
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize(("page", "code"), BLOCKS)
def test_blocks_run_as_they_stand(page, code, tmp_path, monkeypatch):
    if 'engine="ray"' in code:
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))  # a page may register a method
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})


def test_there_is_a_block_for_every_task():
    pages = {p.values[0].stem for p in BLOCKS}
    assert {"README", "quickstart", "classifier", "language_model", "translation", "image"} <= pages
    assert {"own_attention", "data_set", "cluster"} <= pages


def test_the_readme_says_which_versions_were_tested():
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    line = next(x for x in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if x.startswith("Tested with"))
    assert f"torch {pins['torch']}" in line
    assert all(v.transformers in line for v in MATRIX) and pins["transformers"] in {v.transformers for v in MATRIX}
