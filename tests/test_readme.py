"""The README's and the docs' Python runs as it stands, in one namespace per file.

The README and the first page stand alone; the other pages may speak of the reader's own model, tokenizer and text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnflow import capture, demo
from attnflow.scoring import registry

ROOT = Path(__file__).parent.parent
PAGES = [
    p
    for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```python" in p.read_text(encoding="utf-8")
]


def readers_own(folder: Path) -> dict[str, object]:
    """What a reader has: a classifier, its tokenizer, a text, captured attention, a file of sentences."""
    model = demo.model()
    (folder / "sentences.csv").write_text("text\nthe key to the doors\nthe men near the table\n")
    attention = capture(model, demo.tokenizer(), demo.SENTENCE)
    return {"model": model, "tokenizer": demo.tokenizer(), "text": demo.SENTENCE, "attention": attention}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))  # a page may register a method
    space = {} if page.name in ("README.md", "index.md") else readers_own(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, page.name, "exec"), space)


def test_the_readme_says_which_versions_were_tested():
    pins = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    line = next(x for x in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if x.startswith("Tested with"))
    assert f"torch {pins['torch']}" in line
    assert f"transformers {pins['transformers']}" in line
