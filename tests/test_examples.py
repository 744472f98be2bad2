"""The notebooks run from beginning to end, and are stored without outputs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

nbformat = pytest.importorskip("nbformat", reason="nbformat (dev extra) is not installed")
FOLDER = Path(__file__).parent.parent / "examples"
FIGURES = {"answers": 0, "quickstart": 4, "vision": 2}
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow
def test_answers_run_on_a_small_random_model_where_no_other_is_installed(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if "smollm" in name else find(name, *more)
    )
    known = {}
    for cell in nbformat.read(FOLDER / "answers.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, known)
    assert known["model"].config.num_hidden_layers == 2
    assert len(known["found"].sources) == 6 and known["contrast"].instead == " blue"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_run(path, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient (dev extra) is not installed")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [data for cell in notebook.cells for out in cell.get("outputs", ()) for data in out.get("data", {})]
    assert "text/html" in shown
    assert shown.count("image/png") == FIGURES[path.stem]
    for cell in notebook.cells:
        for out in cell.get("outputs", ()):
            assert not out.get("data", {}).get("text/plain", "").startswith("<Figure") or "image/png" in out["data"]
            if "image/png" in out.get("data", {}):
                pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(out["data"]["image/png"]))).convert("L"))
                assert pixels.std() > 5 and min(pixels.shape) > 150  # a picture, not an empty sheet
