"""How the scores of a method are laid over the inputs that the references score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import compare, demo
from attnflow.attention import SINK
from attnflow.comparing.scorer import Scorer, aligned_to
from attnflow.errors import AttnFlowError, ShapeError
from attnflow.inputs.example import examples
from attnflow.relevance import Relevance
from attnflow.tokens import Tokens
from tests.tiny_models import tiny, tokenizer


def relevance(names, scores=None):
    return Relevance(np.arange(float(len(names)))[None] if scores is None else scores, Tokens(names), (0,), "raw")


def test_the_column_of_a_learned_sink_is_left_out():
    found = aligned_to(relevance(["the", "key", SINK]), Tokens(["the", "key"]))
    assert found.scores.tolist() == [[0, 1]] and found.tokens == ("the", "key")


def test_patches_are_matched_by_name_and_what_is_missing_has_no_score():
    found = aligned_to(relevance(["patch 0,0", "patch 0,1"]), Tokens(["[CLS]", "patch 0,0", "patch 0,1"]))
    np.testing.assert_array_equal(found.scores, [[np.nan, 0, 1]])
    more = aligned_to(relevance(["[CLS]", "[extra 1]", "patch 0,0"]), Tokens(["[CLS]", "patch 0,0"]))
    assert more.scores.tolist() == [[0, 2]]


@pytest.mark.parametrize("names", [["a", "a", "b"], ["x", "y", "z"]])
def test_positions_that_cannot_be_matched_are_an_error(names):
    with pytest.raises(ShapeError, match="The attention is over 3 positions, the inputs have 2"):
        aligned_to(relevance(names), Tokens(["a", "b"]))


def test_a_causal_classifier_is_read_at_its_last_position_though_its_tokenizer_has_cls():
    torch.manual_seed(0)
    words = demo.tokenizer()
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "bos_token_id": 2, "eos_token_id": 3}
    config = tf.GPT2Config(vocab_size=len(words), pad_token_id=words.pad_token_id, **sizes)
    example = examples(tf.GPT2ForSequenceClassification(config).eval(), words, "the key to the doors")[0][0]
    assert example.tokens.marks["cls"] == 0, "which sees itself alone in a causal model"
    assert Scorer(example, example.predicted()).place == len(example.tokens) - 1


def test_images_go_through_the_processor():
    image = pytest.importorskip("PIL.Image").new("RGB", (24, 24), "red")

    def processor(images, return_tensors):
        pixels = torch.tensor(np.asarray(images), dtype=torch.float32).permute(2, 0, 1)[None] / 255
        return {"pixel_values": pixels + torch.linspace(0, 1, 24)}

    rows = [{"image": image}]
    found = compare(tiny("vit"), processor, rows, text_column="image", methods="rollout", references="blankout")
    assert set(found.records["n"]) == {9} and found.records["value"].notna().all()


def test_a_row_is_one_text_and_the_position_may_be_chosen():
    with pytest.raises(AttnFlowError, match="A row of the data holds 2 texts, and one is expected"):
        compare(tiny("bert"), tokenizer(), [["the key", "the film"]], methods="raw")
    with pytest.raises(AttnFlowError, match="position=2, but this model's output has no positions"):
        compare(tiny("bert"), tokenizer(), ["the key"], methods="raw", position=2)
    assert compare(tiny("gpt2"), None, [[3, 7, 8, 9]], methods="raw", position=2).examples == 1
