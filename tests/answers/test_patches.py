"""A model of images and text: the image's patches as sources."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import AttnFlowError, Attribution, attribute, capture, direct
from tests.answers.tiny import SIZES, sharp, tokenizer

PROMPT = "<image>\nThe key of Lora is"


@functools.cache
def model() -> Any:
    torch.manual_seed(0)
    tok = tokenizer()
    vision = tf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4
    )
    text = tf.LlamaConfig(**SIZES, vocab_size=len(tok))
    config = tf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=tok.convert_tokens_to_ids("<image>"),
        image_seq_length=16, vision_feature_layer=-1,
    )  # fmt: skip
    return sharp(tf.LlavaForConditionalGeneration(config).eval())


def processor() -> Any:
    images = tf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return tf.LlavaProcessor(
        image_processor=images, tokenizer=tokenizer(), patch_size=4, image_token="<image>",
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip


def picture() -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8))


def found(**options: Any) -> Attribution:
    given = {"sources": "patches", "methods": ["direct"], "check": 0, **options}
    made = attribute(model(), processor(), PROMPT, " red", images=picture(), **given)
    assert isinstance(made, Attribution)
    return made


def test_every_patch_is_a_source() -> None:
    a = found(methods=["direct", "direct:alti", "rollout", "gradient"], check=2)
    assert len(a.sources) == 16 and a.sources[5].box == (0, 1, 1, 4, 4) and a.sources[5].name == "patch 1,1"
    assert sorted(set(a.owners.tolist())) == [-2, -1, *range(16)] or sorted(set(a.owners.tolist())) == [-1, *range(16)]
    assert a.images[0].startswith(b"\x89PNG")
    assert int(np.isfinite(a.checks["mask"][0]).sum()) == 2
    assert a.sums("gradient").min() > 0


def test_rows_are_those_of_a_whole_capture() -> None:
    a = found()
    made = processor()(text=[PROMPT], images=[picture()], return_tensors="pt")
    whole = capture(model(), inputs=dict(made))
    last = direct(whole.block("text"), layer=-1).scores[-1][-1]
    np.testing.assert_allclose(a.scores["direct"][0], last[: len(a.tokens)], atol=1e-5)


def test_words_beside_an_image() -> None:
    a = found(sources="words")
    assert [s.text.strip() for s in a.sources][-1] == "is" and a.owners.max() == len(a.sources) - 1


def test_the_page_draws_the_patches() -> None:
    page = found().to_html()
    assert page.count("<rect ") == 16 and "data:image/png;base64," in page


def test_bad_images() -> None:
    with pytest.raises(AttnFlowError, match="has no place for its 1 images"):
        attribute(model(), processor(), "The key", " red", images=picture(), sources="patches")
    with pytest.raises(AttnFlowError, match="patches have none. Use 'mask'"):
        found(check=1, check_by="removal")
    assert io.BytesIO(found().images[0]).read(4) == b"\x89PNG"
