"""Names of positions: towers that are called what they are, patches of images, learned prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from attnflow import capture
from attnflow.inputs.naming import packed_tokens
from tests import standin
from tests.capturing import tiny
from tests.capturing.test_generate import GREEDY, close

GRID = torch.tensor([[1, 4, 6]])
IMAGE = ["[CLS]", "patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1"]


def named(tokens: Any) -> list[str]:
    return [str(t) for t in tokens]


def test_the_encoder_of_speecht5_reads_text() -> None:
    config = tf.SpeechT5Config(
        hidden_size=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=40, speech_decoder_prenet_units=8, speaker_embedding_dim=4,
        speech_decoder_postnet_units=8, num_mel_bins=4, max_text_positions=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model, tokenizer = tiny._sharp(tf.SpeechT5ForTextToSpeech(config)), standin.tokenizer()
    ids = torch.tensor([[5, 6, 7, 8], [11, 12, 0, 0]])
    sound = {"decoder_input_values": torch.randn(2, 6, 4), "speaker_embeddings": torch.randn(2, 4)}
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), **sound}
    first, second = capture(model, tokenizer, inputs=inputs)
    assert list(first.blocks) == ["encoder", "decoder", "cross"]
    assert named(first["encoder"].queries) == tokenizer.convert_ids_to_tokens([5, 6, 7, 8])
    assert named(second["cross"].keys) == tokenizer.convert_ids_to_tokens([11, 12])


def qwen(kind: str, **vision: Any) -> Any:
    text = {
        **tiny.SMALL,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 0]},
    }
    sizes = {"depth": 2, "hidden_size": 16, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, **vision}
    ids = {"image_token_id": 35, "video_token_id": 36, "vision_start_token_id": 33, "vision_end_token_id": 34}
    config = getattr(tf, f"{kind}Config")(text_config=text, vision_config=sizes, **ids)
    torch.manual_seed(0)
    return tiny._sharp(getattr(tf, f"{kind}ForConditionalGeneration")(config))


@pytest.mark.parametrize("windows", [False, True])
def test_patches_that_are_packed(windows: bool) -> None:
    if windows:
        own = {"intermediate_size": 16, "out_hidden_size": 16, "window_size": 16, "fullatt_block_indexes": [1]}
        model = qwen("Qwen2_5_VL", **own)
    else:
        model = qwen("Qwen2VL", embed_dim=16, mlp_ratio=1)
    places: list[Any] = []
    rotary = next(m for n, m in model.named_modules() if n.endswith("visual.rotary_pos_emb"))
    hook = rotary.register_forward_hook(lambda m, args, out: places.append(args[-1]))
    ids = torch.tensor([[5, 33, *[35] * 6, 34, 7, 8]])
    inputs = {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": torch.randn(24, 3 * 2 * 4 * 4),
        "image_grid_thw": GRID, "mm_token_type_ids": (ids == 35).long(),
    }  # fmt: skip
    att = capture(model, None, inputs=inputs)
    with capture(model) as taken, torch.no_grad():
        model(**inputs)
    hook.remove()
    expected = [f"patch {r},{c}" for r, c in places[0].tolist()]
    if windows:
        from transformers.vision_utils import get_vision_window_index

        order = get_vision_window_index(GRID, spatial_merge_size=2, window_size=16, patch_size=4)[0]
        expected = [expected[4 * int(i) + j] for i in order for j in range(4)]
    blocks = [b for b in att.blocks.values() if len(b.queries) == 24]
    assert blocks and all(named(b.queries) == expected for b in blocks)
    assert named(next(b for b in taken.attention.blocks.values() if len(b.queries) == 24).keys) == expected


def test_patches_of_several_images_and_frames() -> None:
    config = tf.Qwen2VLConfig().vision_config
    names = packed_tokens(config, [(1, 2, 2), (2, 2, 2)], 12)
    assert named(names[:5]) == ["0: patch 0,0", "0: patch 0,1", "0: patch 1,0", "0: patch 1,1", "1: frame 0 patch 0,0"]
    assert named(names[-1:]) == ["1: frame 1 patch 1,1"]
    assert named(packed_tokens(config, [(1, 2, 2)], 5)) == list("01234")


def test_patches_of_flava_and_of_an_image_that_is_captioned() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    both = tf.FlavaConfig(text_config=tiny.SMALL, image_config=tiny.IMAGE, multimodal_config=sizes, hidden_size=16)
    ids, pixels = torch.tensor([[5, 6, 7]]), torch.randn(1, 3, 32, 32)
    att = capture(tiny._sharp(tf.FlavaModel(both)), None, inputs={"input_ids": ids, "pixel_values": pixels})
    assert named(att["vision"].queries) == IMAGE and set(att.blocks) == {"vision", "text", "multimodal"}
    decoder = tf.GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=40, add_cross_attention=True, is_decoder=True)
    pair = tf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(tf.ViTConfig(**tiny.IMAGE), decoder)
    captions = tiny._sharp(tf.VisionEncoderDecoderModel(pair))
    att = capture(captions, None, inputs={"pixel_values": pixels, "decoder_input_ids": ids})
    assert named(att["encoder"].queries) == named(att["cross"].keys) == IMAGE


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_learned_prompts(kind: str) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    options = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
    model = peft.get_peft_model(tiny.model("llama"), getattr(peft, kind)(**options)).eval()
    tokenizer, rows = standin.tokenizer(), [tiny.IDS, [0, 0, 0, *tiny.IDS[:4]]]
    ids = torch.tensor(rows)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    prompts = ["prompt 0", "prompt 1", "prompt 2"]
    for att, row in zip(capture(model, tokenizer, inputs=inputs), rows, strict=True):
        text = tokenizer.convert_ids_to_tokens([i for i in row if i])
        assert named(att.only.keys) == [*prompts, *text]
        assert named(att.only.queries) == ([*prompts, *text] if kind.startswith("Prompt") else text)
    with capture(model, tokenizer) as taken:
        out = model.generate(**inputs, num_beams=2, **GREEDY)
    for att, text in zip(taken.attentions, (out[0, :-1].tolist(), out[1, 3:-1].tolist()), strict=True):
        assert named(att.only.keys) == [*prompts, *named(tokenizer.convert_ids_to_tokens(text))]
    alone = {"input_ids": out[:1, :-1], "attention_mask": torch.ones_like(out[:1, :-1])}
    close(taken.attentions[0], capture(model, tokenizer, inputs=alone), atol=2e-5)
