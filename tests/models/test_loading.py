"""The package's own models: nothing of them is in transformers before one of them is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from attnflow import demo
from attnflow.errors import InputError
from attnflow.models.loading import OWN, load

QUIET = """
import sys
from transformers import CONFIG_MAPPING
before = list(sys.meta_path), set(CONFIG_MAPPING.keys())
import attnflow
assert (list(sys.meta_path), set(CONFIG_MAPPING.keys())) == before
"""
EAGER = """
import attnflow.models.verb_number
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
config = AutoConfig.for_model("attnflow_verb_number", n_layer=1, n_embd=8, n_head=2, vocab_size=20)
AutoModelForSequenceClassification.from_config(config).save_pretrained(sys.argv[1])
for auto in (AutoModelForSequenceClassification, AutoModel):
    assert type(auto.from_pretrained(sys.argv[1])).__name__ == "VerbNumberModel"
"""
FOLDER = """
from attnflow.models.loading import load
model, tokenizer = load(sys.argv[1])
assert type(model).__name__ == "VerbNumberModel" and not model.training
assert [t for t in CONFIG_MAPPING.keys() if t.startswith("attnflow")] == ["attnflow_verb_number"]
"""


def python(code: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=True)


def test_importing_attnflow_changes_nothing_and_importing_a_model_makes_it_known(tmp_path):
    python(QUIET + EAGER, tmp_path)


def test_a_saved_folder_is_loaded_and_makes_only_its_own_model_known(tmp_path):
    demo.model().save_pretrained(tmp_path)
    demo.tokenizer().save_pretrained(tmp_path)
    python(QUIET + FOLDER, tmp_path)


def test_importing_attnflow_imports_no_model_of_transformers():
    python("import sys, attnflow; assert not [m for m in sys.modules if m.startswith('transformers.models.')]")


@pytest.mark.parametrize("kind", list(OWN))
def test_a_loaded_model_gives_the_same_logits(kind, tmp_path):
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from attnflow.models import lstm, verb_number
    from attnflow.models.tokenizers import word_tokenizer

    assert {lstm.LSTMConfig.model_type, verb_number.VerbNumberConfig.model_type} == set(OWN)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, vocab_size=20)).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer(["the", "key"]).save_pretrained(tmp_path)
    again, tokenizer = load(str(tmp_path))
    assert type(again) is type(model)
    ids = tokenizer("the key", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits)


def test_a_damaged_gguf_file_is_said_in_one_line(tmp_path):
    pytest.importorskip("gguf")
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00garbage")
    with pytest.raises(InputError, match=r"bad\.gguf' could not be loaded: .+\. The file is damaged, or of an archit"):
        load(str(file))
