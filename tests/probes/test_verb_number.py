from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, blankout, capture, rollout
from attnflow.correlation import correlate
from attnflow.errors import AttnFlowWarning
from attnflow.models.tokenizers import word_tokenizer
from attnflow.probes import grammar, verb_number
from attnflow.probes.data import VerbExample
from attnflow.probes.scoring import is_unknown, kind_of, natural, word_ids


@pytest.fixture
def examples():
    return [VerbExample(**{**e.__dict__, "rest": "old ."}) for e in grammar.sentences(12)]


@pytest.mark.parametrize("kind", ["classifier", "masked", "causal"])
def test_every_kind_of_model_is_asked_one_by_one_as_in_a_batch(kind, request, examples):
    model, tokenizer = request.getfixturevalue(kind)
    assert kind_of(model, ("singular", "plural")) == kind
    together = verb_number.choose(model, tokenizer, examples, batch_size=5)
    alone = [verb_number.choose(model, tokenizer, [e])[0] for e in examples]
    assert [c.example for c in together] == examples
    assert [c.margin for c in together] == pytest.approx([c.margin for c in alone], abs=1e-4)
    for choice in together:
        assert choice.right == (choice.margin > 0)


def test_the_causal_margin_is_the_log_odds_of_the_two_forms(causal):
    model, tokenizer = causal
    example = VerbExample("the keys to the village", "plural", "are", "is")
    (choice,) = verb_number.choose(model, tokenizer, [example])
    with torch.no_grad():
        last = model(**tokenizer("The keys to the village", return_tensors="pt")).logits[0, -1].log_softmax(-1)
    are, be = (tokenizer.convert_tokens_to_ids(w) for w in ("are", "is"))
    assert choice.margin == pytest.approx(float(last[are] - last[be]), abs=1e-4)


def test_the_masked_margin_is_read_at_the_mask(masked):
    model, tokenizer = masked
    (choice,) = verb_number.choose(model, tokenizer, [VerbExample("the keys", "plural", "are", "is", "old .")])
    encoded = tokenizer("the keys [MASK] old .", return_tensors="pt")
    with torch.no_grad():
        at = model(**encoded).logits[0, 3]
    are, be = (tokenizer.convert_tokens_to_ids(w) for w in ("are", "is"))
    assert choice.margin == pytest.approx(float(at[are] - at[be]), abs=1e-4)


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_two_prefixes_are_compared_before_one_form(kind, request):
    model, tokenizer = request.getfixturevalue(kind)
    example = VerbExample("the keys", "plural", "are", "", "old .", 1, against="the key")
    (choice,) = verb_number.choose(model, tokenizer, [example])
    found = []
    for prefix in ("The keys", "The key"):
        text = f"{prefix} [MASK] old ." if kind == "masked" else prefix
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**encoded).logits[0, 3 if kind == "masked" else -1].double()
        found.append(float(logits[tokenizer.convert_tokens_to_ids("are")] - logits.exp().sum().log()))
    assert choice.margin == pytest.approx(found[0] - found[1], abs=1e-4)
    rows = verb_number.layers(model, tokenizer, [example], methods=["raw"], references=["blankout"])
    assert rows.values["raw", "blankout"].shape == (1, 2)


def test_all_pieces_of_a_verb_count_behind_two_prefixes(causal):
    model, tokenizer = causal
    example = VerbExample("the keys", "plural", "are old", "", against="the key")
    plain = VerbExample("the keys", "plural", "are", "is")
    (choice, _) = verb_number.choose(model, tokenizer, [example, plain])
    found = []
    for prefix in ("The keys", "The key"):
        ids = tokenizer(f"{prefix} are old", return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].log_softmax(-1)
        found.append(sum(float(logits[i, ids[0, i + 1]]) for i in (1, 2)))
    assert choice.margin == pytest.approx(found[0] - found[1], abs=1e-4)


def test_unknown_words_are_counted_and_told(classifier, causal):
    known, lost = VerbExample("the keys", "plural"), VerbExample("the zyzzyvas", "plural")
    with pytest.warns(AttnFlowWarning, match=r"1 of 2 sentences \(50%\) contain <unk>.*with <unk> \(n = 1\)"):
        choices = verb_number.choose(*classifier, [known, lost])
    assert [c.unknown for c in choices] == [False, True]
    with_, without = verb_number.unknown(choices)
    assert (with_.count, without.count) == (1, 1)
    assert with_.right + without.right == sum(c.right for c in choices)
    # A word that the data wrote as <unk> is as unknown; so is one behind the other prefix.
    for example in (
        VerbExample("the <unk> keys", "plural", "are", "is"),
        VerbExample("the keys", "plural", "are", "", against="the zyzzyva"),
    ):
        with pytest.warns(AttnFlowWarning, match="1 of 1"):
            assert verb_number.choose(*causal, [example])[0].unknown


def test_a_byte_level_tokenizer_knows_every_word():
    class Bytes:
        unk_token_id = bos_token_id = eos_token_id = 0

    assert not is_unknown(Bytes(), [0, 5, 6], "old words")


def test_accuracy_by_attractors_and_the_majority(classifier):
    examples = grammar.sentences(90)
    choices = verb_number.choose(*classifier, examples)
    whole, *parts = verb_number.accuracy(choices)
    assert whole.name == "all" and [p.name for p in parts] == ["0", "1", "2"]
    assert whole.count == sum(p.count for p in parts) == 90
    assert whole.right == sum(c.label == c.example.label for c in choices)
    assert verb_number.majority(choices)[0].share >= 0.5
    assert verb_number.majority(choices, "plural")[0].right == sum(e.label == "plural" for e in examples)


def test_layers_are_the_correlations_of_the_parts(classifier):
    model, tokenizer = classifier
    (example,) = grammar.sentences(1, kinds=["prepositional"])
    found = verb_number.layers(model, tokenizer, [example], blank="unk", reduce="paper")
    attention = capture(model, tokenizer, example.prefix)
    right = model.config.label2id[example.label]
    reference = blankout(model, tokenizer, example.prefix, blank="unk", target=right, score="prob")
    expected = correlate(rollout(attention, position="cls"), reference).values
    assert found.values["rollout", "blankout"][0] == pytest.approx(expected)
    assert set(found.values) == {(m, r) for m in ("raw", "rollout", "flow") for r in ("gradient", "blankout")}
    frame = found.to_frame()
    assert len(frame) == 6 * 2 and list(frame["layer"].unique()) == [0, 1]
    assert found.settings["gradient"]["reduce"] == "paper"


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_layers_of_language_models(kind, request, examples):
    steps = []
    model, tokenizer = request.getfixturevalue(kind)
    chosen = {"methods": ["raw"], "references": ["gradient"]}
    found = verb_number.layers(model, tokenizer, examples[:3], **chosen, progress=lambda a, b: steps.append((a, b)))
    assert found.values["raw", "gradient"].shape == (3, 2)
    assert np.isfinite(found.values["raw", "gradient"]).all()
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_examples_that_cannot_be_asked_are_left_out_or_an_error(causal, masked, classifier):
    good = VerbExample("the keys", "plural", "are", "is")
    bad = VerbExample("the keys", "plural")
    assert len(verb_number.choose(*causal, [good, bad])) == 1
    for call in (verb_number.choose, verb_number.layers):
        with pytest.raises(AttnFlowError, match="None of 1 examples can be asked"):
            call(*causal, [bad])
    with pytest.raises(AttnFlowError, match="0 examples"):
        verb_number.choose(*causal, [])
    with pytest.raises(AttnFlowError, match="'dual' is neither"):
        verb_number.choose(*classifier, [VerbExample("the keys", "dual")])


@pytest.mark.parametrize("kind", ["classifier", "masked", "causal"])
@pytest.mark.parametrize("against", ["", "the key"])
def test_a_sentence_has_to_fit_into_the_models_positions(kind, against, request):
    model, tokenizer = request.getfixturevalue(kind)
    other = "" if against else "is"

    def of(words, verb="are"):
        return VerbExample(" ".join(["old"] * words), "plural", verb, other, "old .", against=against)

    most = model.config.max_position_embeddings
    own = most - len(verb_number.query(model, tokenizer, of(1), kind).ids) + 1
    whole, long = of(own), of(own + 1)
    assert len(verb_number.query(model, tokenizer, whole, kind).ids) == most
    assert [c.example for c in verb_number.choose(model, tokenizer, [long, whole])] == [whole]
    found = verb_number.layers(model, tokenizer, [long, of(2)], methods=["raw"], references=["gradient"])
    assert len(found.values["raw", "gradient"]) == 1
    with pytest.raises(AttnFlowError, match="None of 1 examples .* the model must have positions for the whole"):
        verb_number.choose(model, tokenizer, [long])


def test_the_other_prefix_and_all_tokens_of_a_verb_have_to_fit_too(causal):
    whole = VerbExample("old " * 64, "plural", "are", "", against="key")
    two_tokens, long = (
        VerbExample("old " * 64, "plural", "are old", "", against="key"),
        VerbExample("key", "plural", "are", "", against="old " * 65),
    )
    assert [c.example for c in verb_number.choose(*causal, [two_tokens, long, whole])] == [whole]


@pytest.mark.parametrize("kind", ["classifier", "masked", "causal"])
def test_a_verb_without_a_number_is_asked_of_no_model(kind, request, examples):
    nobody = VerbExample("the old keys", "", "are", "are", "old .")
    assert verb_number.query(*request.getfixturevalue(kind), nobody, kind) is None
    choices = verb_number.choose(*request.getfixturevalue(kind), [examples[0], nobody, examples[1]])
    assert [c.example for c in choices] == examples[:2]


def test_a_model_without_a_head_and_unknown_methods_are_errors(masked, classifier):
    with pytest.raises(AttnFlowError, match="BertModel has none of the heads"):
        verb_number.choose(masked[0].bert, masked[1], grammar.sentences(1))
    with pytest.raises(AttnFlowError, match="method 'lime' is not known"):
        verb_number.layers(*classifier, grammar.sentences(1), methods=["lime"])
    with pytest.raises(AttnFlowError, match="At least one"):
        verb_number.layers(*classifier, grammar.sentences(1), methods=[])


def test_a_folder_without_weights_says_how_to_train(tmp_path):
    with pytest.raises(AttnFlowError, match="train_verb_number.py"):
        verb_number.load(tmp_path)


def test_sentences_are_written_as_people_do():
    assert natural("`` he did n't '' , -LRB- so") == '" he didn\'t ", (so'
    assert natural("") == ""


def test_words_are_looked_up_behind_a_space(masked):
    tokenizer = masked[1]
    assert word_ids(tokenizer, "is") == [tokenizer.convert_tokens_to_ids("is")]


@pytest.mark.parametrize("pad", [None, 0, 5])
def test_a_causal_classifier_answers_at_its_last_word_whatever_stands_beside_it(pad):
    from transformers import GPT2Config, GPT2ForSequenceClassification

    tokenizer, labels = word_tokenizer(grammar.vocabulary()), {"singular": 0, "plural": 1}
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=len(tokenizer), pad_token_id=pad, bos_token_id=None,
        eos_token_id=None, label2id=labels, id2label={i: name for name, i in labels.items()},
    )  # fmt: skip
    model = GPT2ForSequenceClassification(config).eval()
    examples = grammar.sentences(6)
    alone = [verb_number.choose(model, tokenizer, [e])[0].margin for e in examples]
    assert [c.margin for c in verb_number.choose(model, tokenizer, examples)] == pytest.approx(alone, abs=1e-5)
    found = verb_number.layers(model, tokenizer, examples[:2], methods=["raw"], references=["gradient"])
    assert np.isfinite(found.values["raw", "gradient"]).all(), "the first row sees one token, and ranks nothing"


def test_a_model_of_pretraining_is_refused_for_its_two_heads():
    from transformers import BertConfig, BertForPreTraining

    sizes = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    with pytest.raises(AttnFlowError, match=r"BertForPreTraining has none of the heads.*AutoModelForMaskedLM"):
        kind_of(BertForPreTraining(BertConfig(**sizes)))
