"""The README's and the docs' Python runs as it stands, in one namespace a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    p
    for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```python" in p.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, page.name, "exec"), space)


def test_the_readme_says_which_versions_were_tested():
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    line = next(x for x in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if x.startswith("Tested with"))
    assert f"torch {pins['torch']}" in line
    assert f"transformers {pins['transformers']}" in line
