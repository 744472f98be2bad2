"""A model of images and text: the image's patches as sources."""

from __future__ import annotations

import copy
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


def picture(high: int = 16, wide: int = 16) -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (high, wide, 3), np.uint8))


MARKS = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>")
SEEN = "<|vision_start|><|image_pad|><|vision_end|>\n"


@functools.cache
def of_any_size() -> tuple[Any, Any]:
    """(A model whose images differ in size and whose positions have three axes, its processor)."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tok = copy.deepcopy(tokenizer())
    tok.add_special_tokens({"additional_special_tokens": list(MARKS)})
    image, start, end, video = tok.convert_tokens_to_ids(list(MARKS))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = tf.Qwen2VLConfig(
        text_config={**SIZES, "vocab_size": len(tok), "rope_parameters": rope}, image_token_id=image,
        vision_config={"depth": 2, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2},
        video_token_id=video, vision_start_token_id=start, vision_end_token_id=end,
    )  # fmt: skip
    torch.manual_seed(0)
    # Its processor wants one of videos too, which needs torchvision.
    made = object.__new__(tf.Qwen2VLProcessor)
    made.image_processor = Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=4096)
    made.tokenizer, made.video_processor, made.chat_template = tok, None, None
    made.image_token, made.video_token, made.image_token_id, made.video_token_id = MARKS[0], MARKS[3], image, video
    return sharp(tf.Qwen2VLForConditionalGeneration(config).eval()), made


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


def test_images_of_other_sizes() -> None:
    net, reader = of_any_size()
    a = attribute(
        net, reader, SEEN * 2 + "The key of Lora is", " red", images=[picture(16, 32), picture(48, 32)],
        sources="patches", methods=["direct:alti", "direct", "rollout", "gradient"], check=0,
    )  # fmt: skip
    assert isinstance(a, Attribution)
    boxes = [s.box for s in a.sources]
    assert boxes[:8] == [(0, r, c, 2, 4) for r in range(2) for c in range(4)]
    assert boxes[8:] == [(1, r, c, 6, 4) for r in range(6) for c in range(4)]
    assert a.sources[8].name == "image 2, patch 0,0"


@pytest.mark.parametrize("sources", ["patches", ["key of", "Lora"]])
def test_a_masked_part_moves_no_position(sources: Any) -> None:
    """Against a mask of n × n made by hand, with the positions of the whole."""
    net, reader = of_any_size()
    prompt = SEEN + "The key of Lora is"
    a = attribute(net, reader, prompt, " red", images=picture(16, 32), sources=sources, methods="direct", check="all")
    assert isinstance(a, Attribution)
    given = dict(reader(text=[prompt], images=[picture(16, 32)], return_tensors="pt"))
    n = given["input_ids"].shape[1]
    places = net.model.get_rope_index(**{k: v for k, v in given.items() if k != "pixel_values"})[0]
    gone = np.flatnonzero(a.owners == 1)
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    seen[:, gone] = False
    seen[gone, gone] = True
    mask = torch.zeros(n, n).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    red = tokenizer()(" red")["input_ids"][0]
    with torch.no_grad():
        whole, left = (
            float(net(**{**given, **more}, position_ids=places).logits[0, -1].log_softmax(-1)[red])
            for more in ({}, {"attention_mask": mask})
        )
    assert sum(a.logprobs) == pytest.approx(whole, abs=1e-4)
    assert a.checks["mask"][0, 1] == pytest.approx(whole - left, abs=1e-4)


def test_why_this_answer_beside_an_image() -> None:
    for net, reader, prompt in ((model(), processor(), PROMPT), (*of_any_size(), SEEN + "The key of Lora is")):
        scores = {}
        for answer, instead in ((" red", " blue is"), (" red", None), (" blue is", None)):
            a = attribute(
                net, reader, prompt, answer, instead=instead, images=picture(), sources="patches", methods="direct",
                check=0,
            )  # fmt: skip
            assert isinstance(a, Attribution)
            scores[answer, instead] = a.scores["direct"][0, a.owners >= 0]
        np.testing.assert_allclose(
            scores[" red", " blue is"], scores[" red", None] - scores[" blue is", None], atol=1e-9
        )


def test_words_taken_out_beside_an_image() -> None:
    for net, reader, prompt in ((model(), processor(), PROMPT), (*of_any_size(), SEEN + "The key of Lora is")):
        a = attribute(
            net, reader, prompt, " red", images=picture(), sources=[" of Lora"], methods="direct", check_by="removal"
        )
        other = attribute(
            net, reader, prompt.replace(" of Lora", ""), " red", images=picture(), sources="patches", methods="direct",
            check=0,
        )  # fmt: skip
        assert isinstance(a, Attribution) and isinstance(other, Attribution)
        assert a.checks["removal"][0, 0] == pytest.approx(sum(a.logprobs) - sum(other.logprobs), abs=1e-4)
    with pytest.raises(AttnFlowError, match="'word 1' out of a prompt with images.*Use check_by='mask'"):
        found(sources="words", check="all", check_by="removal")


@pytest.mark.parametrize(
    ("places", "images", "grids"),
    [
        ([0, 1, 2, 3], 1, [(2, 2)]),
        ([0, 1, 2, 3, 9, 10, 11, 12], 2, [(2, 2), (2, 2)]),
        ([0, 1, 2, 4, 5, 6], 1, [(2, 3)]),  # a token ends each row
        ([0, 1, 2, 3, 7, 8, 9, 10], 1, [None]),  # tiles
        ([0, 1, 2], 1, [None]),
    ],
)
def test_how_positions_lie_on_an_image(places: list[int], images: int, grids: list[Any]) -> None:
    from attnflow.answers.patches import _laid_out

    found = _laid_out(places, images, {})
    assert [grid for _, grid in found] == grids and [p for mine, _ in found for p in mine] == places


def test_an_image_by_the_name_of_its_file(tmp_path: Any) -> None:
    picture().save(tmp_path / "a.png")
    by_name = attribute(
        model(), processor(), PROMPT, " red", images=tmp_path / "a.png", sources="patches", methods="direct", check=0
    )
    assert isinstance(by_name, Attribution)
    np.testing.assert_array_equal(by_name.scores["direct"], found().scores["direct"])
    (tmp_path / "b.png").write_text("no image")
    for name, said in (("none.png", "No such file"), ("b.png", "its content is no image")):
        with pytest.raises(AttnFlowError, match=f"Cannot read the image .*{name}: {said}"):
            attribute(model(), processor(), PROMPT, " red", images=str(tmp_path / name))
    with pytest.raises(AttnFlowError, match="cannot read 1 images with this prompt"):
        attribute(model(), processor(), PROMPT, " red", images=[3])


def test_bad_images() -> None:
    with pytest.raises(AttnFlowError, match="has no place for its 1 images"):
        attribute(model(), processor(), "The key", " red", images=picture(), sources="patches")
    with pytest.raises(AttnFlowError, match="patches have none. Use 'mask'"):
        found(check=1, check_by="removal")
    assert io.BytesIO(found().images[0]).read(4) == b"\x89PNG"
