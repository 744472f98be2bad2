"""What the training of classifiers reads: tables of texts and labels, and weights from a file of another format."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in ("train_sst2", "weights"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("head", ["sentence\tlabel\n", ""])
def test_texts_with_tabs_and_labels_that_are_words(load, tmp_path, head):
    train = load("train_sst2")
    (tmp_path / "train.tsv").write_text(f"{head}a goal\tin time\tSports\nshares fell\u2028again\tBusiness\n")
    rows = train.read(tmp_path / "train.tsv")
    assert rows == [("a goal\tin time", "Sports"), ("shares fell\u2028again", "Business")]
    assert train.numbered(rows, ["Business", "Sports"]) == [(rows[0][0], 1), (rows[1][0], 0)]
    assert train.read(tmp_path / "train.tsv", 1) == rows[:1]


def test_weights_of_an_onnx_file(load, tmp_path):
    onnx = pytest.importorskip("onnx")
    tensor, node = onnx.numpy_helper.from_array, onnx.helper.make_node
    held = {
        "norm.bias": np.array([0.5, -1.0], np.float32),
        "words.weight_quantized": np.array([[1, 2], [3, 4]], np.int8),
        "words.weight_zero_point": np.array(1, np.int8),
        "words.weight_scale": np.array(0.5, np.float32),
        "onnx::MatMul_1_quantized": np.array([[0, 2, 4]], np.int8),
        "onnx::MatMul_1_zero_point": np.array(2, np.int8),
        "onnx::MatMul_1_scale": np.array(2.0, np.float32),
    }
    product = node("MatMul", ["x", "onnx::MatMul_1_DequantizeLinear_Output"], ["y"], name="/layer.0/q_lin/MatMul")
    graph = onnx.helper.make_graph([product], "g", [], [], [tensor(v, k) for k, v in held.items()])
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "m.onnx"))
    found = {name: value.tolist() for name, value in load("weights")._onnx_weights(tmp_path / "m.onnx").items()}
    # The matrix of a product stands as [in, out]; a linear layer holds [out, in].
    expected = {
        "norm.bias": [0.5, -1.0],
        "words.weight": [[0.0, 0.5], [1.0, 1.5]],
        "layer.0.q_lin.weight": [[-4.0], [0.0], [4.0]],
    }
    assert found == expected
