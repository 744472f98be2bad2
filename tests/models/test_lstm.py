from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, blankout, capture, flow, gradient, raw, rollout
from attnflow.models.lstm import LSTMClassifier, LSTMConfig
from attnflow.models.tokenizers import word_tokenizer

WORDS = ["the", "key", "to", "a", "book", "is", "good", "bad", "film", "and", "not"]
TEXT = "the key is good"


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


def build(tokenizer, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "embedding_size": 6, "hidden_size": 5}
    return LSTMClassifier(LSTMConfig(**{**sizes, **options})).eval()


@pytest.fixture(scope="module")
def model(tokenizer):
    return build(tokenizer)


def by_hand(model, ids):
    """The weights and logits of one text, with a packed bidirectional LSTM of PyTorch."""
    lstm = torch.nn.LSTM(6, 5, batch_first=True, bidirectional=True)
    for name, value in model.encoder.forwards.named_parameters():
        getattr(lstm, name).data = value.data
    for name, value in model.encoder.backwards.named_parameters():
        getattr(lstm, name + "_reverse").data = value.data
    with torch.no_grad():
        states = lstm(model.embedding(torch.tensor([ids])))[0][0]
        phi = torch.tanh(states @ model.attention.project.weight.T + model.attention.project.bias)
        scores = (phi @ model.attention.vector.weight.T)[:, 0]
        weights = torch.zeros(len(ids))
        weights[1:-1] = scores[1:-1].softmax(0)
        return weights, model.score(weights @ states)


def test_capture_gives_the_weights_computed_by_hand(model, tokenizer):
    att = capture(model, tokenizer, TEXT)
    weights, logits = by_hand(model, tokenizer(TEXT)["input_ids"])
    assert att.route == "interface" and att.notes == ()
    assert att.only.queries == ("⟨pool⟩",) and att.tokens == ("<cls>", *TEXT.split(), "<eos>")
    np.testing.assert_allclose(att.weights[0, 0], weights, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**_batch(tokenizer, TEXT)).logits[0], logits)


def _batch(tokenizer, *texts, side="right"):
    encoded = tokenizer(list(texts), padding=True, padding_side=side, return_tensors="pt")
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"]}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("encoder", ["lstm", "average"])
def test_a_batch_is_its_texts_one_by_one(tokenizer, side, encoder):
    model = build(tokenizer, encoder=encoder)
    texts = ["good", "the key is not good", "the book and the film"]
    with torch.no_grad():
        together = model(**_batch(tokenizer, *texts, side=side)).logits
        single = torch.cat([model(**_batch(tokenizer, t)).logits for t in texts])
    torch.testing.assert_close(together, single, atol=1e-6, rtol=0)


def test_replace_changes_what_the_model_says(model, tokenizer):
    kept = []

    def first(call, weights):
        kept.append(call)
        changed = torch.zeros_like(weights)
        changed[..., 1] = 1
        return changed

    with capture(model, tokenizer, replace=first) as taken, torch.no_grad():
        found = model(**_batch(tokenizer, TEXT)).logits
    states = model.encoder(model.embedding(_batch(tokenizer, TEXT)["input_ids"]), torch.ones(1, 6, dtype=torch.bool))
    torch.testing.assert_close(found, model.score(states[:, 1]))
    assert taken.attention.weights[0, 0].tolist() == [0, 1, 0, 0, 0, 0]
    assert (kept[0].layer, kept[0].kind) == (0, "self")


def test_raw_is_the_weights_and_rollout_without_a_residual_too(model, tokenizer):
    att = capture(model, tokenizer, TEXT)
    row = raw(att, position="cls").scores[0]
    np.testing.assert_allclose(row, att.weights[0, 0])
    for method in (rollout, flow):
        with pytest.raises(AttnFlowError, match=r"1 outputs and 6 inputs.*residual='none'"):
            method(att)
        np.testing.assert_allclose(method(att, residual="none").scores[0, 0], row, atol=1e-6)


def test_gradients_and_blankout_run_on_it(model, tokenizer):
    assert gradient(model, tokenizer, TEXT).scores.shape == blankout(model, tokenizer, TEXT).scores.shape == (1, 6)
    att = capture(model, tokenizer, TEXT, gradients=True)
    assert np.abs(att.only.gradients[0]).max() > 0


def test_uniform_attention_is_one_over_the_words(tokenizer):
    model = build(tokenizer, attention="uniform")
    assert capture(model, tokenizer, TEXT).weights[0, 0].tolist() == [0, 0.25, 0.25, 0.25, 0.25, 0]
    edges = build(tokenizer, attention="uniform", skip_edges=False)
    np.testing.assert_allclose(capture(edges, tokenizer, TEXT).weights[0, 0], 1 / 6)


def test_given_weights_take_the_place_of_attention(tokenizer):
    model, batch = build(tokenizer, attention="given", encoder="average"), _batch(tokenizer, TEXT)
    weights = torch.tensor([[0, 2.0, 0, 1.0, 1.0, 0]])
    out = model(**batch, token_weights=weights, output_attentions=True)
    torch.testing.assert_close(out.attentions[0][0, 0, 0], weights[0] / 4)
    states = torch.tanh(model.encoder(model.embedding(batch["input_ids"])))[0]
    torch.testing.assert_close(out.logits[0], model.score((weights / 4)[0] @ states))
    with pytest.raises(AttnFlowError, match="no token_weights: pass one weight"):
        model(**batch)
    with pytest.raises(AttnFlowError, match=r"shape \(1, 2\) and the tokens \(1, 6\)"):
        model(**batch, token_weights=torch.ones(1, 2))
    with pytest.raises(AttnFlowError, match="zero for every token"):
        model(**batch, token_weights=torch.zeros(1, 6))


def test_embeddings_may_be_given_and_labels_give_a_loss(model, tokenizer):
    batch = _batch(tokenizer, TEXT)
    with torch.no_grad():
        expected = model(**batch).logits
        torch.testing.assert_close(model(inputs_embeds=model.embedding(batch["input_ids"])).logits, expected)
        loss = model(**batch, labels=torch.tensor([1])).loss
    torch.testing.assert_close(loss, -expected.log_softmax(-1)[0, 1])


def test_ready_made_vectors(tokenizer):
    config = LSTMConfig(vocab_size=len(tokenizer), embedding_size=6)
    vectors = torch.randn(len(tokenizer), 6)
    torch.testing.assert_close(LSTMClassifier(config, vectors).get_input_embeddings().weight.data, vectors)
    with pytest.raises(AttnFlowError, match=r"\(3, 6\).*vocab_size=3, embedding_size=6"):
        LSTMClassifier(config, vectors[:3])
    table = torch.nn.Embedding(30, 6)
    model = LSTMClassifier(config)
    model.set_input_embeddings(table)
    assert model.get_input_embeddings() is table


def test_unknown_parts_are_refused():
    with pytest.raises(AttnFlowError, match="encoder='cnn' is not known. Use 'lstm' or 'average'"):
        LSTMConfig(encoder="cnn")
    with pytest.raises(AttnFlowError, match="attention='dot' is not known. Use 'tanh' or 'uniform' or 'given'"):
        LSTMConfig(attention="dot")


def test_the_auto_classes_load_what_was_saved(model, tmp_path):
    from transformers import AutoModelForSequenceClassification

    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert type(loaded) is LSTMClassifier
    ids = torch.tensor([[2, 5, 6, 3]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
