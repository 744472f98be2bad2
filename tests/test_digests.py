"""Every byte counts, and every process finds the same mark."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from attnflow.digests import digest_of, files_digest, tokenizer_digest, weights_digest

MADE = """
import numpy as np, torch
from PIL import Image
from attnflow.digests import digest_of
value = {"b": [1, 2.5, None, "é\\ud800"], "a": np.arange(6.0).reshape(2, 3), "t": torch.arange(3).to(torch.bfloat16),
         "i": Image.new("P", (2, 2)), "set": "x"}
print(digest_of(value))
"""


def test_every_process_finds_the_same():
    found = {
        subprocess.run([sys.executable, "-c", MADE], capture_output=True, text=True, check=True,
                       env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_any_one_number_changes_a_mark():
    from PIL import Image

    array = np.zeros((30, 40), np.float32)
    marks = {digest_of(array), digest_of(array.reshape(40, 30)), digest_of(array.astype(np.float64))}
    changed = array.copy()
    changed[17, 23] = 1e-30
    tensor = torch.zeros(30, 40)
    picture = Image.new("RGB", (30, 40))
    other = picture.copy()
    other.putpixel((29, 39), (0, 0, 1))
    marks |= {digest_of(changed), digest_of(tensor), digest_of(tensor.half()), digest_of(picture), digest_of(other)}
    palettes = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    palettes[1].putpalette([1, 2, 3])
    marks |= {digest_of(p) for p in palettes}
    marks |= {digest_of(v) for v in ("1", 1, 1.0, True, None, [1], [[1]], {"1": 1}, {1, 2}, b"1", "")}
    assert len(marks) == 21


def test_texts_do_not_run_into_one_another():
    assert digest_of(["a\nstr 'b'"]) != digest_of(["a", "b"])
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])


def test_every_weight_counts():
    model = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.BatchNorm1d(50))
    before = weights_digest(model)
    with torch.no_grad():
        model[0].weight[33, 21] += 1e-6
    changed = weights_digest(model)
    model[1].running_mean[3] = 5
    assert len({before, changed, weights_digest(model)}) == 3


def test_every_file_of_a_folder_counts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin").write_bytes(b"\0" * 1000)
    marks = {files_digest(tmp_path)}
    (tmp_path / "deep" / "a.bin").write_bytes(b"\0" * 500 + b"\1" + b"\0" * 499)
    marks.add(files_digest(tmp_path))
    (tmp_path / "deep" / "a.bin").rename(tmp_path / "deep" / "b.bin")
    marks.add(files_digest(tmp_path))
    marks.add(files_digest(tmp_path / "deep" / "b.bin"))
    assert len(marks) == 4


def test_a_tokenizer_is_its_rules_and_not_its_last_call():
    from attnflow.models.tokenizers import word_tokenizer

    a, b = word_tokenizer(["good", "bad"]), word_tokenizer(["bad", "good"])
    before = tokenizer_digest(a)
    a(["good", "bad good"], padding=True, truncation=True, max_length=5)
    assert tokenizer_digest(a) == before != tokenizer_digest(b)
    assert tokenizer_digest(None) is None
    assert tokenizer_digest(type("Slow", (), {"get_vocab": lambda self: {"a": 0}})()) == digest_of({"a": 0})


def test_what_can_be_neither_seen_nor_pickled_is_an_error():
    with pytest.raises(Exception, match="pickle|local"):
        digest_of(lambda: None)
