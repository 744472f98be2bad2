"""Captured attention equals what the model itself returns in eager, along every route."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, capture
from tests.capturing import tiny

TAPPED = {"bloom", "deberta-v2", "gpt-neo", "mpnet", "mpt", "xlnet", "falcon"}


@pytest.mark.parametrize("name", tiny.TEXT)
def test_text_models_equal_eager(name: str) -> None:
    model = tiny.model(name)
    ids = torch.tensor([tiny.IDS])
    with torch.no_grad():
        before = model(ids)[0]
    att = capture(model, None, tiny.IDS, heads="all", sinks="keep")
    expected = tiny.eager_attentions(model, input_ids=ids).attentions
    block = att.only
    n = len(tiny.IDS)
    assert len(block.weights) == len(expected)
    for mine, theirs in zip(block.weights, expected, strict=True):
        np.testing.assert_allclose(mine[..., :n], theirs[0].numpy(), atol=1e-6)
    assert att.route == ("tap" if name in TAPPED else "interface")
    with torch.no_grad():
        assert torch.equal(model(ids)[0], before)


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2", "gpt-oss", "mistral", "t5"])
def test_blocks_of_rows_change_nothing(name: str, block: int) -> None:
    model = tiny.model(name)
    whole = capture(model, None, tiny.IDS, heads="all", block=100, max_new_tokens=4)
    parts = capture(model, None, tiny.IDS, heads="all", block=block, max_new_tokens=4)
    for key in whole.blocks:
        for a, b in zip(whole[key].weights, parts[key].weights, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_forced_tap_sees_the_same(name: str) -> None:
    model = tiny.model(name)
    first = capture(model, None, tiny.IDS, heads="all", max_new_tokens=4)
    second = capture(model, None, tiny.IDS, heads="all", route="tap", max_new_tokens=4)
    assert second.route == "tap"
    for key in first.blocks:
        for a, b in zip(first[key].weights, second[key].weights, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_forced_output_attentions_sees_the_same(name: str) -> None:
    model = tiny.model(name)
    first = capture(model, None, tiny.IDS)
    second = capture(model, None, tiny.IDS, route="output_attentions")
    assert second.route == "output_attentions"
    np.testing.assert_allclose(first.weights, second.weights, atol=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoder_has_three_blocks(name: str) -> None:
    model = tiny.model(name)
    target = [0, 9, 8, 7]
    batch = {"input_ids": torch.tensor([tiny.IDS]), "decoder_input_ids": torch.tensor([target])}
    att = capture(model, inputs=batch, heads="all")
    out = tiny.eager_attentions(model, **batch)
    assert set(att.blocks) == {"encoder", "decoder", "cross"}
    for key, theirs in (
        ("encoder", out.encoder_attentions), ("decoder", out.decoder_attentions), ("cross", out.cross_attentions),
    ):  # fmt: skip
        assert att[key].layers == (0, 1)
        for a, b in zip(att[key].weights, theirs, strict=True):
            np.testing.assert_allclose(a, b[0].numpy(), atol=1e-6)
    assert att["decoder"].causal and not att["encoder"].causal
    assert len(att["cross"].queries) == 4 and len(att["cross"].keys) == len(tiny.IDS)


def test_hybrids_keep_true_layer_numbers() -> None:
    att = capture(tiny.model("qwen3-next"), None, tiny.IDS)
    assert att.layers == (3,)
    assert att.only.missing == (0, 1, 2)
    assert any("layers 0, 1, 2 have no attention" in note for note in att.notes)


def test_shared_layers_are_counted_by_call() -> None:
    att = capture(tiny.model("albert", num_hidden_layers=3), None, tiny.IDS)
    assert att.layers == (0, 1, 2)
    assert any("more than once" in note for note in att.notes)


def test_sinks_are_kept_renormalised_or_refused() -> None:
    model = tiny.model("gpt-oss")
    kept = capture(model, None, tiny.IDS)
    assert kept.only.sink and kept.weights.shape == (2, 7, 8)
    np.testing.assert_allclose(kept.weights.sum(-1), 1, atol=1e-5)
    divided = capture(model, None, tiny.IDS, sinks="renormalise")
    raw = kept.weights[..., :-1]
    np.testing.assert_allclose(divided.weights, raw / raw.sum(-1, keepdims=True), atol=1e-5)
    assert any("sink" in n for n in kept.notes) and any("sink" in n for n in divided.notes)
    with pytest.raises(AttnFlowError, match="a learned sink takes the rest"):
        capture(model, None, tiny.IDS, sinks="error")


def test_multimodal_has_a_block_for_each_tower() -> None:
    model = tiny.model("clip")
    inputs = {"input_ids": torch.tensor([tiny.IDS]), "pixel_values": torch.randn(1, 3, 32, 32)}
    att = capture(model, inputs=inputs)
    assert set(att.blocks) == {"text", "vision"}
    assert att["text"].causal and len(att["text"].queries) == 7
    assert att["vision"].queries[:2] == ("[CLS]", "patch 0,0")


def test_images_have_named_patches() -> None:
    att = capture(tiny.model("vit"), inputs={"pixel_values": torch.randn(1, 3, 32, 32)})
    assert att.tokens == ("[CLS]", "patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1")
    assert att.tokens.marks == {"cls": 0}


def test_longformer_bands_become_matrices() -> None:
    model = tiny.model("longformer")
    ids = list(range(3, 15))
    att = capture(model, None, ids, heads="all")
    assert att.route == "output_attentions"
    w = att.weights
    assert w.shape == (2, 4, 12, 12)
    np.testing.assert_allclose(w.sum(-1), 1, atol=1e-5)
    far = np.abs(np.subtract.outer(np.arange(12), np.arange(12))) > 2
    assert (w[..., far] == 0).all()


def test_longformer_global_attention() -> None:
    model = tiny.model("longformer")
    ids = torch.tensor([list(range(3, 15))])
    which = torch.zeros_like(ids)
    which[:, [0, 7]] = 1
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "global_attention_mask": which}
    att = capture(model, inputs=inputs, heads="all")
    np.testing.assert_allclose(att.weights.sum(-1), 1, atol=1e-5)
    assert (att.weights[..., 0, :] > 0).all() and (att.weights[..., :, 7] > 0).all()


def test_windows_lie_along_the_diagonal() -> None:
    att = capture(tiny.model("swin"), inputs={"pixel_values": torch.randn(2, 3, 32, 32)})
    assert isinstance(att, list) and len(att) == 2
    for one in att:
        for block in one.blocks.values():
            for w in block.weights:
                np.testing.assert_allclose(w.sum(-1), 1, atol=1e-5)


def test_a_new_route_is_a_function_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the architecture's recipe says: it hands every matrix that it sees to the session."""
    from attnflow.capturing import capture as module
    from attnflow.capturing.outputs import _record

    def run(model, batch, session):
        session.quiet = True
        outputs = model(**batch, output_attentions=True)
        for number, weights in enumerate(outputs.attentions):
            _record(model, session, "seen", "self", "", number, weights, len(outputs.attentions))
        return outputs

    monkeypatch.setitem(module._LATE, "mine", run)
    monkeypatch.setattr(module, "ROUTES", (*module.ROUTES, "mine"))
    model = tiny.model("bert")
    found = capture(model, None, tiny.IDS, route="mine")
    assert len(found.only.layers) == model.config.num_hidden_layers
    for mine, theirs in zip(found.only.weights, capture(model, None, tiny.IDS).only.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    with pytest.raises(AttnFlowError, match="route='other' is not known. Use 'auto', .* or 'mine'"):
        capture(model, None, tiny.IDS, route="other")
