"""What users rely on changes only where it is meant, and whatever the docs name is there after ``import attnflow``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surface import surface

ROOT = Path(__file__).parent.parent
RECORDED = Path(__file__).parent / "surface.txt"
DOTTED = re.compile(r"\battnflow(?:\.[A-Za-z_]\w*)+")
# What follows the dots is an ending or a host, not a name.
FILES = re.compile(r"\.(?:html|md|csv|json|cff|py|txt|svg|png)$")


def test_public_names_and_the_command_line_are_as_recorded():
    now, before = surface().splitlines(), RECORDED.read_text(encoding="utf-8").splitlines()
    gone, new = [line for line in before if line not in now], [line for line in now if line not in before]
    assert (gone, new) == ([], []), "if this is meant:  python -m tests.surface > tests/surface.txt"


def texts() -> dict[str, str]:
    """Pages and docstrings, by where they stand."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    found = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages}
    for path in (ROOT / "attnflow").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        parts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
        found[str(path.relative_to(ROOT))] = "\n".join(parts)
    return found


def test_whatever_the_docs_name_is_there_after_import_attnflow():
    named: dict[str, str] = {}
    for where, text in texts().items():
        for match in DOTTED.finditer(text):
            if not FILES.search(match[0]):
                named.setdefault(match[0], where)
    assert len(named) > 60 and "attnflow.capturing.live" in named
    code = (
        "import sys, functools, attnflow\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        functools.reduce(getattr, name.split('.')[1:], attnflow)\n"
        "    except AttributeError as error:\n"
        "        print(name, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *named], capture_output=True, text=True, check=True)
    missing = [f"{named[line.split()[0]]}: {line}" for line in done.stdout.splitlines()]
    assert missing == []


def test_a_name_that_is_not_there_is_an_attribute_error():
    import attnflow

    for wrong in ("rolout", "_hidden"):
        with pytest.raises(AttributeError, match=f"module 'attnflow' has no attribute '{wrong}'"):
            getattr(attnflow, wrong)
    assert attnflow.probes.grammar.sentences(1)
