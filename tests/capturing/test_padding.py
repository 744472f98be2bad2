"""Each example of a padded batch is what it would be alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import capture
from tests import standin
from tests.capturing import tiny

ROWS = [[5, 6, 7, 8, 9, 3], [11, 12, 13], [14, 15, 16, 17]]


def padded(side: str) -> dict[str, torch.Tensor]:
    width = max(map(len, ROWS))
    ids = torch.zeros(len(ROWS), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(ROWS):
        where = slice(width - len(row), None) if side == "left" else slice(0, len(row))
        ids[i, where] = torch.tensor(row)
        mask[i, where] = 1
    return {"input_ids": ids, "attention_mask": mask}


def same(together: list[Any], model: Any, **options: Any) -> None:
    assert len(together) == len(ROWS)
    for row, one in zip(ROWS, together, strict=True):
        alone = capture(model, None, row, **options)
        assert set(alone.blocks) == set(one.blocks)
        for key in alone.blocks:
            assert alone[key].queries == one[key].queries
            for a, b in zip(alone[key].weights, one[key].weights, strict=True):
                assert a.shape == b.shape
                np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt-oss", "mpnet", "bloom", "mistral", "roberta", "opt"])
def test_rows_that_we_pad(name: str) -> None:
    model = tiny.model(name)
    same(capture(model, None, ROWS), model)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gpt-oss", "bloom", "mistral", "gemma2", "mpnet"])
def test_rows_that_the_user_padded(name: str, side: str) -> None:
    model = tiny.model(name)
    if name == "mpnet" and side == "left":
        pytest.skip("MPNet counts positions from the pad id itself")
    same(capture(model, inputs=padded(side)), model)


@pytest.mark.parametrize("heads", ["max", "min", 1, [0, 2], "all"])
def test_reductions_in_a_batch(heads: Any) -> None:
    model = tiny.model("llama")
    same(capture(model, inputs=padded("left"), heads=heads), model, heads=heads)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoder(name: str) -> None:
    model = tiny.model(name)
    short = {"max_new_tokens": 5}
    same(capture(model, None, ROWS, **short), model, **short)


def test_longformer() -> None:
    model = tiny.model("longformer")
    same(capture(model, None, ROWS), model)


IDS = torch.tensor([[5, 6, 7, 8, 9, 3], [11, 12, 13, 0, 0, 0]])
MASK = (IDS != 0).long()
SHORT = {"input_ids": IDS[1:, :3], "attention_mask": MASK[1:, :3]}


def luke() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    model = tf.LukeModel(tf.LukeConfig(**tiny.SMALL, entity_vocab_size=10, entity_emb_size=8))
    entities = torch.tensor([[1, 2], [3, 0]])
    places = torch.full((2, 2, 30), -1)
    places[:, :, 0] = 1
    more = {"entity_ids": entities, "entity_attention_mask": (entities != 0).long(), "entity_position_ids": places}
    return model, more, {name: value[1:, :1] for name, value in more.items()}


def layoutlmv3() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"input_size": 32, "patch_size": 16, "coordinate_size": 2, "shape_size": 4}
    model = tf.LayoutLMv3Model(tf.LayoutLMv3Config(**tiny.SMALL, **sizes, max_2d_position_embeddings=64))
    boxes, pixels = torch.zeros(2, 6, 4, dtype=torch.long), torch.randn(2, 3, 32, 32)
    return model, {"bbox": boxes, "pixel_values": pixels}, {"bbox": boxes[1:, :3], "pixel_values": pixels[1:]}


def vilt() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    model = tf.ViltModel(tf.ViltConfig(**tiny.SMALL, image_size=32, patch_size=16, max_position_embeddings=40))
    pixels = torch.randn(2, 3, 32, 32)
    return model, {"pixel_values": pixels}, {"pixel_values": pixels[1:]}


def blip2() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    text = {
        "model_type": "opt", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 16,
        "vocab_size": 60, "word_embed_proj_dim": 16, "max_position_embeddings": 64,
    }  # fmt: skip
    config = tf.Blip2Config(
        vision_config={**sizes, "image_size": 32, "patch_size": 16}, text_config=text, num_query_tokens=3,
        qformer_config={**sizes, "encoder_hidden_size": 16, "vocab_size": 40}, image_token_index=6,
    )  # fmt: skip
    pixels = torch.randn(2, 3, 32, 32)
    return tf.Blip2ForConditionalGeneration(config), {"pixel_values": pixels}, {"pixel_values": pixels[1:]}


def flava() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    config = tf.FlavaConfig(text_config=tiny.SMALL, image_config=tiny.IMAGE, multimodal_config=sizes, hidden_size=16)
    pixels = torch.randn(2, 3, 32, 32)
    return tf.FlavaModel(config), {"pixel_values": pixels}, {"pixel_values": pixels[1:]}


MIXED = {
    luke: ("self", ["entity 0"]),
    layoutlmv3: ("self", ["[CLS]", "patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1"]),
    vilt: ("self", ["image 0", "image 1", "image 2", "image 3", "image 4"]),
    blip2: ("text", []),
    flava: ("multimodal", ["[CLS]", "[CLS]", "patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1"]),
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("build", MIXED)
def test_text_that_is_part_of_a_longer_sequence(build: Any, own: bool) -> None:
    """Names are kept and padding is cut: each example is what it is alone."""
    torch.manual_seed(0)
    model, more, alone = build()
    model = tiny._sharp(model)
    ids, mask = IDS.clone(), MASK
    if build is blip2:  # one place in the text for each of the image's three vectors
        ids = torch.cat([torch.full((2, 3), 6), ids.where(ids != 6, 7)], 1)
        mask = torch.cat([torch.ones(2, 3, dtype=torch.long), mask], 1)
    width = int(mask[1].sum())
    batch, tokenizer = {"input_ids": ids, "attention_mask": mask, **more}, standin.tokenizer()
    if own:
        with capture(model, tokenizer) as taken, torch.no_grad():
            model(**batch)
        found = taken.attentions[1]
    else:
        found = capture(model, tokenizer, inputs=batch)[1]
    expected = capture(
        model, tokenizer, inputs={"input_ids": ids[1:, :width], "attention_mask": mask[1:, :width], **alone}
    )
    key, beside = MIXED[build]
    for name, block in expected.blocks.items():
        assert [str(t) for t in found[name].queries] == [str(t) for t in block.queries]
        for a, b in zip(found[name].weights, block.weights, strict=True):
            # ViLT draws the order of its patches by lot.
            part = slice(0, width if build is vilt else None)
            assert a.shape == b.shape
            np.testing.assert_allclose(a[:, part][part], b[:, part][part], atol=1e-5)
    names = [str(t) for t in found[key].queries]
    text = [str(t) for t in tokenizer.convert_ids_to_tokens(ids[1, :width].tolist())]
    assert sorted(names) == sorted([*text, *beside])
    assert not any("not cut" in n or "numbered" in n for n in found.notes)


def test_sound_that_is_padded() -> None:
    sizes = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_conv_pos_embeddings": 4}
    small = {k: v for k, v in tiny.SMALL.items() if k != "vocab_size"}
    config = tf.Wav2Vec2Config(
        **small, **sizes, num_conv_pos_embedding_groups=2, feat_extract_norm="layer", do_stable_layer_norm=True
    )
    torch.manual_seed(0)
    model, sound = tiny._sharp(tf.Wav2Vec2Model(config)), torch.randn(2, 400)
    mask = torch.ones(2, 400, dtype=torch.long)
    mask[1, 200:] = 0
    whole, cut = capture(model, inputs={"input_values": sound.where(mask == 1, 0), "attention_mask": mask})
    alone = capture(model, inputs={"input_values": sound[1:, :200], "attention_mask": mask[1:, :200]})
    assert len(whole.tokens) == 18 and len(cut.tokens) == len(alone.tokens) == 8
    np.testing.assert_allclose(cut.weights, alone.weights, atol=1e-4)


def test_funnel_pools_its_positions_and_says_what_it_cannot_cut() -> None:
    config = tf.FunnelConfig(
        vocab_size=40, block_sizes=[1, 1], num_decoder_layers=1, d_model=16, n_head=4, d_head=4, d_inner=16
    )
    torch.manual_seed(0)
    model, tokenizer = tiny._sharp(tf.FunnelModel(config)), standin.tokenizer()
    found = capture(model, tokenizer, inputs={"input_ids": IDS, "attention_mask": MASK})[1]
    alone = capture(model, tokenizer, inputs=SHORT)
    for name in ("encoder.0", "decoder"):
        assert found[name].queries == alone[name].queries
    np.testing.assert_allclose(found["encoder.0"].weights[0], alone["encoder.0"].weights[0], atol=1e-5)
    assert any("encoder.1: its rows are not positions of the text, and padding" in n for n in found.notes)
    assert not any("padding" in n for n in alone.notes)


def test_positions_that_are_not_known_are_said() -> None:
    """A model of nobody's family that puts a vector of its own before the text."""

    class Led(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny.model("bert")
            self.first = torch.nn.Parameter(torch.randn(1, 1, 16))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            words = self.inner.embeddings.word_embeddings(input_ids)
            mask = torch.nn.functional.pad(attention_mask, (1, 0), value=1)
            states = torch.cat([self.first.expand(len(words), -1, -1), words], 1)
            return self.inner(inputs_embeds=states, attention_mask=mask)

    torch.manual_seed(0)
    found = capture(Led(), standin.tokenizer(), inputs={"input_ids": IDS, "attention_mask": MASK})
    assert [len(a.tokens) for a in found] == [7, 4]
    assert "self: its 7 positions are not the 6 of the text alone: they are numbered." in found[0].notes
