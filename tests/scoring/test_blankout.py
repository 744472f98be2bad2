"""Blank-out against a loop that blanks one input at a time, by hand, in forward passes of its own."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from attnflow import blankout
from attnflow.errors import AttnFlowWarning, InputError, SelectionError
from attnflow.inputs.example import _patches
from attnflow.scoring.blankout import DISTANCES
from attnflow.tokens import Tokens
from tests.tiny_models import FAMILIES, IDS, TEXT, state, tiny, tokenizer

POSITION = {"bert-mlm": 3}
SENTENCE = "the key to the cabinets is on the table"


def run(model, ids, **more):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **more)


def row_of(out, position=None):
    full = out.get("logits", out.get("last_hidden_state"))
    return (full[0] if full.ndim == 2 else full[0, -1 if position is None else position]).double()


def distance(score, p, q, target):
    a, b = p.softmax(-1), q.softmax(-1)
    middle = (a + b) / 2
    return float(
        {
            "prob": lambda: (a - b)[target].abs(),
            "logit": lambda: (p - q)[target].abs(),
            "logprob": lambda: (a.log() - b.log())[target].abs(),
            "tvd": lambda: (a - b).abs().sum() / 2,
            "kl": lambda: (a * (a / b).log()).sum(),
            "jsd": lambda: ((a * (a / middle).log()).sum() + (b * (b / middle).log()).sum()) / 2,
            "cosine": lambda: 1 - (p @ q) / (p.norm() * q.norm()),
            "euclidean": lambda: (p - q).norm(),
        }[score]()
    )


@pytest.mark.parametrize("score", ["prob", "logit", "logprob", *DISTANCES])
@pytest.mark.parametrize("blank", [5, "delete"])
def test_equals_one_by_one_for_every_score(score, blank):
    model = tiny("bert")
    before = row_of(run(model, IDS))
    target = int(before.argmax())
    found = blankout(model, text=IDS, blank=blank, score=score, batch_size=4)
    for i in range(len(IDS)):
        changed = IDS[:i] + IDS[i + 1 :] if blank == "delete" else [*IDS[:i], blank, *IDS[i + 1 :]]
        expected = distance(score, before, row_of(run(model, changed)), target)
        assert found.scores[0, i] == pytest.approx(expected, abs=1e-5)
    assert found.settings["score"] == score and found.settings["target"] == target


@pytest.mark.parametrize("name", [n for n in TEXT if not FAMILIES[n][1].endswith("Generation") and n != "base"])
@pytest.mark.parametrize("blank", [5, "delete"])
def test_equals_one_by_one_in_every_family(name, blank):
    model, at = tiny(name), POSITION.get(name)
    before = row_of(run(model, IDS), at).softmax(-1)
    found = blankout(model, text=IDS, blank=blank, position=at, batch_size=3)
    for i in range(len(IDS)):
        if blank == "delete" and i == at:
            assert np.isnan(found.scores[0, i])
            continue
        changed = IDS[:i] + IDS[i + 1 :] if blank == "delete" else [*IDS[:i], blank, *IDS[i + 1 :]]
        moved = at - 1 if at is not None and blank == "delete" and i < at else at
        after = row_of(run(model, changed), moved).softmax(-1)
        assert found.scores[0, i] == pytest.approx(float((before - after)[before.argmax()].abs()), abs=1e-5)
    assert np.nanmax(found.scores) > 1e-4


@pytest.mark.parametrize("name", ["t5", "bart", "pegasus"])
@pytest.mark.parametrize("blank", [5, "delete"])
def test_encoder_decoder_blanks_both_sides(name, blank):
    model, outputs = tiny(name), [2, 9, 12]
    decoder = torch.tensor([outputs])
    before = row_of(run(model, IDS, decoder_input_ids=decoder)).softmax(-1)
    given = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": decoder}
    found = blankout(model, inputs=given, blank=blank)
    assert len(found.tokens) == len(IDS) + len(outputs)
    for i in range(len(found.tokens)):
        left, right = list(IDS), list(outputs)
        side, at = (left, i) if i < len(IDS) else (right, i - len(IDS))
        side[at : at + 1] = [] if blank == "delete" else [blank]
        after = row_of(run(model, left, decoder_input_ids=torch.tensor([right]))).softmax(-1)
        assert found.scores[0, i] == pytest.approx(float((before - after)[before.argmax()].abs()), abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_the_mean_embedding_equals_one_by_one(name):
    model = tiny(name)
    more = {"decoder_input_ids": torch.tensor([[2, 9]])} if name == "t5" else {}
    words = model.get_input_embeddings()(torch.tensor([IDS])).detach()
    mean = model.get_input_embeddings().weight.detach().mean(0)
    with torch.no_grad():
        before = row_of(model(inputs_embeds=words, **more)).softmax(-1)
    found = blankout(model, inputs={"input_ids": torch.tensor([IDS]), **more}, blank="mean-embedding", batch_size=4)
    for i in range(len(IDS)):
        changed = words.clone()
        changed[0, i] = mean
        with torch.no_grad():
            after = row_of(model(inputs_embeds=changed, **more)).softmax(-1)
        assert found.scores[0, i] == pytest.approx(float((before - after)[before.argmax()].abs()), abs=1e-5)


@pytest.mark.parametrize("blank", ["mask", "delete", "mean-embedding"])
def test_a_word_is_blanked_with_all_its_pieces(blank):
    model, tok = tiny("bert"), tokenizer()
    ids = tok(SENTENCE)["input_ids"]
    found = blankout(model, tok, SENTENCE, blank=blank, unit="word", batch_size=3)
    assert "cabinets" in found.tokens and len(found.tokens) == len(ids) - 1
    where = found.tokens.index("cabinets")
    if blank != "mean-embedding":
        new = [tok.mask_token_id] * 2 if blank == "mask" else []
        after = row_of(run(model, [*ids[:where], *new, *ids[where + 2 :]])).softmax(-1)
        before = row_of(run(model, ids)).softmax(-1)
        expected = float((before - after)[before.argmax()].abs())
        assert found.scores[0, where] == pytest.approx(expected, abs=1e-5)


def test_signed_scores_keep_the_direction():
    signed = blankout(tiny("bert"), text=IDS, blank=5, signed=True)
    plain = blankout(tiny("bert"), text=IDS, blank=5)
    np.testing.assert_allclose(np.abs(signed.scores), plain.scores)
    assert (signed.scores < 0).any() and (signed.scores > 0).any()


def test_batches_hold_at_most_so_many_and_change_nothing():
    model, seen = tiny("bert"), []
    handle = model.register_forward_pre_hook(lambda m, a, k: seen.append(len(k["input_ids"])), with_kwargs=True)
    try:
        for blank in (5, "delete"):
            results = [blankout(model, text=IDS, blank=blank, batch_size=b).scores for b in (1, 4, 100)]
            np.testing.assert_allclose(results[0], results[1], atol=1e-6)
            np.testing.assert_allclose(results[0], results[2], atol=1e-6)
        seen.clear()
        blankout(model, text=IDS, blank=5, batch_size=4)
        assert max(seen) == 4
        seen.clear()
        blankout(model, text=IDS, blank="delete", batch_size=2)
        assert max(seen) == 2
    finally:
        handle.remove()


def test_patches_of_an_image_equal_one_by_one():
    model, image = tiny("vit"), torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(image).logits[0].softmax(-1)
        for blank in ("mean", "zero"):
            found = blankout(model, inputs={"pixel_values": image}, blank=blank, batch_size=4)
            assert np.isnan(found.scores[0, 0]) and found.tokens[0] == "[CLS]"
            changed = image.clone()
            colour = image.mean((-2, -1), keepdim=True) if blank == "mean" else 0.0
            changed[:, :, 8:16, 16:24] = colour
            after = model(changed).logits[0].softmax(-1)
            expected = float((before - after)[before.argmax()].abs())
            assert found.scores[0, found.tokens.index("patch 1,2")] == pytest.approx(expected, abs=1e-6)


def test_the_tokenizers_own_tokens():
    model, tok = tiny("bert"), tokenizer()
    for name in ("mask", "unk", "pad"):
        by_name = blankout(model, tok, SENTENCE, blank=name)
        by_id = blankout(model, tok, SENTENCE, blank=getattr(tok, f"{name}_token_id"))
        np.testing.assert_array_equal(by_name.scores, by_id.scores)
        assert by_name.settings["blank_token"] == f"[{name.upper()}]"
    assert blankout(model, tok, SENTENCE).settings["blank_token"] == "[MASK]"
    assert blankout(model, tokenizer(mask=False), SENTENCE).settings["blank_token"] == "[UNK]"
    assert blankout(model, text=IDS).settings["blank"] == "mean-embedding"


def test_a_model_without_a_head_is_compared_by_its_vector():
    model = tiny("base")
    found = blankout(model, text=IDS, blank=5)
    assert found.settings["score"] == "cosine" and found.settings["explains"] == "vector"
    p, q = row_of(run(model, IDS)), row_of(run(model, [5, *IDS[1:]]))
    assert found.scores[0, 0] == pytest.approx(distance("cosine", p, q, 0), abs=1e-5)


def test_the_next_token_is_read_from_whatever_is_last():
    model = tiny("gpt2")
    before, after = (row_of(run(model, ids)).softmax(-1) for ids in (IDS, IDS[:-1]))
    found = blankout(model, text=IDS, blank="delete")
    assert found.scores[0, -1] == pytest.approx(float((before - after)[before.argmax()].abs()), abs=1e-5)


def test_one_token_cannot_be_deleted():
    assert np.isnan(blankout(tiny("gpt2"), text=[7], blank="delete").scores).all()


def test_lists_give_lists_and_padding_changes_nothing():
    texts = ["the film was great", SENTENCE]
    together = blankout(tiny("bert"), tokenizer(), texts)
    for text, found in zip(texts, together, strict=True):
        np.testing.assert_allclose(found.scores, blankout(tiny("bert"), tokenizer(), text).scores, atol=1e-7)


def test_nothing_of_the_model_or_tokenizer_is_changed():
    model, tok = tiny("bert"), tokenizer()
    before, size = state(model), len(tok)
    for blank in ("mask", "delete", "mean-embedding"):
        blankout(model, tok, SENTENCE, blank=blank)
    with pytest.raises(SelectionError):
        blankout(model, tok, SENTENCE, target=99)
    assert state(model) == before and len(tok) == size


def test_errors_name_the_choices():
    model = tiny("bert")
    with pytest.raises(SelectionError) as caught:
        blankout(model, tokenizer(mask=False), SENTENCE, blank="mask")
    assert "blank='mask', but" in str(caught.value) and "has no such token" in str(caught.value)
    assert "Use 'unk', 'pad', 'delete', 'mean-embedding' or the id of a token (0 to 39)" in str(caught.value)
    with pytest.raises(SelectionError, match="blank='unk', but no tokenizer is given"):
        blankout(model, text=IDS, blank="unk")
    with pytest.raises(SelectionError, match="blank='nothing' is not known. Use one of: mask, unk, pad"):
        blankout(model, text=IDS, blank="nothing")
    with pytest.raises(SelectionError, match="blank=40, but the model knows 40 ids: use 0 to 39"):
        blankout(model, text=IDS, blank=40)
    with pytest.raises(SelectionError, match="score='f1' is not known. Use one of: prob, logit, logprob, tvd"):
        blankout(model, text=IDS, score="f1")
    with pytest.raises(SelectionError, match="unit='sentence' is not known. Use one of: token, word"):
        blankout(model, text=IDS, unit="sentence")
    with pytest.raises(SelectionError, match="batch_size=0"):
        blankout(model, text=IDS, batch_size=0)
    with pytest.raises(SelectionError, match="blank='mask', but the input is an image. Use one of: mean, zero"):
        blankout(tiny("vit"), inputs={"pixel_values": torch.zeros(1, 3, 24, 24)}, blank="mask")
    with pytest.raises(SelectionError, match="score='tvd' compares whole outputs, but target is a function"):
        blankout(model, text=IDS, blank=5, score="tvd", target=lambda out: out.logits[:, 0])


def test_images_that_are_not_made_of_patches_are_refused():
    with pytest.raises(InputError, match=r"An image of \(28, 24\) pixels is not a whole number of 3 × 3 patches"):
        blankout(tiny("vit"), inputs={"pixel_values": torch.zeros(1, 3, 28, 24)})
    with pytest.raises(InputError, match=r"names no patch_size for pixel_values of shape \(1, 3, 24, 24\)"):
        _patches(Tokens.numbered(4), torch.zeros(1, 3, 24, 24))


def test_an_unknown_token_that_is_the_end_token_is_no_blank():
    tok = copy.deepcopy(tokenizer())
    tok.unk_token, tok.mask_token = tok.eos_token or tok.sep_token, None
    tok.eos_token = tok.unk_token
    found = blankout(tiny("llama"), tok, [3, 7, 8, 9])
    assert found.settings["blank"] == "mean-embedding"


def test_a_flat_blankout_says_so_and_names_another_blank():
    whole = tiny("bert")(torch.tensor([[1, 5, 6, 2]])).logits

    def flat(outputs):
        return torch.isclose(outputs.logits, whole, atol=1e-6).all(-1).double()

    with pytest.warns(AttnFlowWarning, match="in the place of any input gives nearly the same score .* blank='delete'"):
        found = blankout(tiny("bert"), tokenizer(), [1, 5, 6, 2], blank=3, target=flat, batch_size=1)
    assert any("ranks nothing" in note for note in found.notes)
