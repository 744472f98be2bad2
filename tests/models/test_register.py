from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

BEFORE = """
import sys, attnflow
assert "transformers.models.auto.configuration_auto" not in sys.modules
from transformers import AutoConfig
"""
AFTER = """
import sys
from transformers import AutoConfig, AutoModelForSequenceClassification
import attnflow
"""
USE = """
config = AutoConfig.for_model("attnflow_verb_number", n_layer=1, n_embd=8, n_head=2, vocab_size=20)
assert "transformers.models.gpt2.modeling_gpt2" not in sys.modules
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
model = AutoModelForSequenceClassification.from_config(config)
model.save_pretrained(sys.argv[1])
for auto in (AutoModelForSequenceClassification, AutoModel):
    assert type(auto.from_pretrained(sys.argv[1])).__name__ == "VerbNumberModel"
assert not any(type(f).__module__.startswith("attnflow") for f in sys.meta_path)
"""


@pytest.mark.parametrize("first", [BEFORE, AFTER], ids=["attnflow first", "transformers first"])
def test_the_auto_classes_know_the_model_whoever_is_imported_first(first, tmp_path):
    subprocess.run([sys.executable, "-c", first + USE, str(tmp_path)], check=True)


def test_importing_attnflow_imports_neither_the_auto_classes_nor_gpt2():
    code = "import sys, attnflow; assert not [m for m in sys.modules if m.startswith('transformers.models.')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stand_in_can_be_copied_and_named():
    from attnflow.models.register import Later

    later = Later("attnflow.models.verb_number_config", "VerbNumberConfig")
    copied = pickle.loads(pickle.dumps(later))
    assert copied.__name__ == later.__name__ == "VerbNumberConfig"
    assert "imported when used" in repr(later)


def test_registering_twice_is_once():
    code = (
        "import sys, attnflow; from attnflow.models.register import register; register();"
        "assert sum(type(f).__name__ == '_AfterImport' for f in sys.meta_path) == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
