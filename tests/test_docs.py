"""The docs name what is there: files of the architecture, words of the glossary, pages of the site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_architecture_names_files_and_folders_that_exist():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Where is it?")[1].split("## Recipes")[0]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    assert len(named) > 30
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT / "attnflow", ROOT))]
    assert not missing
    folders = {p.name for p in (ROOT / "attnflow").iterdir() if (p / "__init__.py").is_file()}
    assert folders == {name.split("/")[0] for name in named if "/" in name} & folders


def test_the_architecture_has_the_layers_that_the_linter_checks():
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(rule["layers"] for rule in rules if rule["type"] == "layers")
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+) \|$", text, re.MULTILINE)
    named = [[re.sub(r"(\.py|/)?`", "", name).strip("`") for name in row.split(", ")] for row in rows]
    assert named == [layer.split(" | ") for layer in layers if layer != "__main__"]


def test_the_glossary_is_short_and_has_one_sentence_for_each_word():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z, ]+) \| (.+) \|$", text.split("## Words")[1], re.MULTILINE)
    rows = [row for row in rows if row[0] != "word"]
    assert 20 <= len(rows) <= 25
    assert all(meaning.endswith(".") and ". " not in meaning for _, meaning in rows)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        assert str(page.relative_to(DOCS)) in navigation, page


def test_tables_of_results_are_short():
    for name in ("reproduction.md", "debate.md"):
        tables = re.findall(r"(?:^\|.*\n)+", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert tables and max(table.count("\n") for table in tables) <= 12, name
