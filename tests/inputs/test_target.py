"""What is explained, for each kind of model, and every message about what cannot be."""

from __future__ import annotations

import pytest
import torch

from attnflow import blankout, gradient
from attnflow.errors import SelectionError
from tests.tiny_models import IDS, tiny, tokenizer


def settings(name, *, tok=None, text=IDS, **options):
    return gradient(tiny(name), tok, text, **options).settings


def logits(name, **more):
    with torch.no_grad():
        return tiny(name)(input_ids=torch.tensor([IDS]), **more).logits[0]


def test_a_classifier_explains_the_class_that_it_predicted():
    found = settings("bert")
    assert found["explains"] == "classification"
    assert found["target"] == int(logits("bert").argmax())
    assert found["target_label"] == f"LABEL_{found['target']}"
    assert found["value"] == pytest.approx(float(logits("bert").max()), abs=1e-5)


def test_a_class_by_number_label_or_pair():
    assert settings("bert", target=1)["target_label"] == "LABEL_1"
    assert settings("bert", target="LABEL_1")["target"] == 1
    pair = settings("bert", target=("LABEL_1", 0))
    assert pair["target"] == [1, 0] and pair["target_label"] == "LABEL_1 − LABEL_0"
    row = logits("bert")
    assert pair["value"] == pytest.approx(float(row[1] - row[0]), abs=1e-5)


def test_scores_of_the_target():
    row = logits("bert").double()
    assert settings("bert", target=0, score="prob")["value"] == pytest.approx(float(row.softmax(-1)[0]), abs=1e-5)
    assert settings("bert", target=0, score="logprob")["value"] == pytest.approx(
        float(row.log_softmax(-1)[0]), abs=1e-5
    )


def test_a_causal_model_explains_its_next_token():
    found = settings("gpt2")
    assert found["position"] == len(IDS) - 1 and found["target"] == int(logits("gpt2")[-1].argmax())
    assert settings("gpt2", position=2)["target"] == int(logits("gpt2")[2].argmax())


def test_a_sequence_to_sequence_model_explains_the_decoders_last_token():
    decoder = torch.tensor([[2, 9, 12]])
    found = gradient(tiny("t5"), inputs={"input_ids": torch.tensor([IDS]), "decoder_input_ids": decoder}).settings
    assert found["position"] == 2
    assert found["target"] == int(logits("t5", decoder_input_ids=decoder)[-1].argmax())


def test_a_masked_model_explains_the_mask():
    tok = tokenizer()
    found = settings("bert-mlm", tok=tok, text="the key [MASK] on the table")
    assert found["position"] == 3
    words = settings("bert-mlm", tok=tok, text="the key [MASK] on the table", target=("is", "are"), score="prob")
    assert words["target"] == tok.convert_tokens_to_ids(["is", "are"]) and words["target_label"] == "is − are"


def test_a_masked_model_without_a_mask_asks_for_a_position():
    with pytest.raises(SelectionError) as caught:
        settings("bert-mlm", tok=tokenizer(), text="the key is on the table")
    message = str(caught.value)
    assert "BertForMaskedLM predicts at each of 8 positions, and the input has no mask token" in message
    assert "[CLS] the key is on the table [SEP]" in message and "Pass position=<0 to 7>" in message
    assert settings("bert-mlm", tok=tokenizer(), text="the key is on the table", position=3)["position"] == 3


def test_a_base_model_explains_the_size_of_its_vector():
    model = tiny("base")
    found = settings("base", tok=tokenizer(), text="the film was great")
    assert found["explains"] == "vector" and found["target_label"] == "Σ|h|" and found["position"] == 0
    with torch.no_grad():
        vector = model(**tokenizer()("the film was great", return_tensors="pt")).last_hidden_state[0, 0]
    assert found["value"] == pytest.approx(float(vector.abs().sum()), rel=1e-5)
    one = settings("base", tok=tokenizer(), text="the film was great", target=3)
    assert one["value"] == pytest.approx(float(vector[3]), abs=1e-5) and one["target_label"] == "h[3]"
    assert settings("base")["position"] == len(IDS) - 1


def test_any_function_of_the_outputs():
    found = settings("bert", target=lambda out: out.logits[:, 1] ** 2)
    assert found["explains"] == "function"
    assert found["value"] == pytest.approx(float(logits("bert")[1] ** 2), rel=1e-4)
    assert blankout(tiny("bert"), text=IDS, blank=5, target=lambda out: out.logits[:, 1]).scores.max() > 0
    with pytest.raises(SelectionError, match=r"returned \(1, 2\), and one number for each example is needed"):
        settings("bert", target=lambda out: out.logits)


def test_a_single_output_is_no_probability():
    assert gradient(tiny("bert", num_labels=1), text=IDS).settings["score"] == "logit"
    assert blankout(tiny("bert", num_labels=1), text=IDS, blank=5).settings["score"] == "logit"
    with pytest.raises(SelectionError, match="score='prob', but the model has one output.*Use score='logit'"):
        gradient(tiny("bert", num_labels=1), text=IDS, score="prob")
    with pytest.raises(SelectionError, match="p₀ − p₁ needs two classes"):
        gradient(tiny("bert", num_labels=1), text=IDS, reduce="paper", score="logit")


def test_labels_that_do_not_exclude_one_another_use_a_sigmoid():
    model = tiny("bert", num_labels=3, problem_type="multi_label_classification")
    with torch.no_grad():
        row = model(torch.tensor([IDS])).logits[0]
    found = gradient(model, text=IDS, target=2, score="prob").settings
    assert found["value"] == pytest.approx(float(row[2].sigmoid()), abs=1e-5)


def test_errors_state_the_valid_range():
    with pytest.raises(SelectionError, match="target=2, but the model has 2 classes: use 0 to 1"):
        settings("bert", target=2)
    with pytest.raises(SelectionError, match="target='good', but the model's labels are LABEL_0, LABEL_1"):
        settings("bert", target="good")
    with pytest.raises(SelectionError, match="target=40, but the model has 40 entries: use 0 to 39"):
        settings("gpt2", target=40)
    with pytest.raises(SelectionError, match="target='is' is a token, but no tokenizer is given"):
        settings("gpt2", target="is")
    with pytest.raises(SelectionError, match=r"target='cabinets' is 2 tokens \['cab', '##inets'\]"):
        settings("bert-mlm", tok=tokenizer(), text="the [MASK]", target="cabinets")
    with pytest.raises(SelectionError, match="target='good', but the model has no head.*0 to 15"):
        settings("base", target="good")
    with pytest.raises(SelectionError, match="position=2, but this model's output has no positions"):
        settings("bert", position=2)
    with pytest.raises(SelectionError, match="score='f1' is not known. Use one of: prob, logit, logprob"):
        settings("bert", score="f1")


def test_outputs_without_logits_ask_for_a_function():
    from attnflow.inputs.target import settle
    from attnflow.tokens import Tokens

    outputs = {"start_logits": torch.zeros(1, 4), "end_logits": torch.zeros(1, 4)}
    with pytest.raises(SelectionError, match=r"\(start_logits, end_logits\) has neither logits nor last_hidden_state"):
        settle(None, None, outputs, Tokens("abcd"))


@pytest.mark.parametrize("way", ["gradient", "mean-embedding", "delete", 5])
def test_a_causal_model_is_asked_for_the_last_logits_only(way):
    """All of them for a batch of variants would be larger than the model."""
    model, shapes = tiny("llama"), []
    handle = model.register_forward_hook(lambda m, a, out: shapes.append(tuple(out.logits.shape)))
    try:
        if way == "gradient":
            gradient(model, text=IDS, method="integrated_gradients", steps=8)
        else:
            blankout(model, text=IDS, blank=way)
    finally:
        handle.remove()
    assert {shape[1] for shape in shapes if shape[0] > 1} == {1}
