from __future__ import annotations

import numpy as np
import pytest
import torch

from attnflow import AttnFlowError, blankout, capture, direct, flow, raw, rollout
from attnflow.errors import AttnFlowWarning
from attnflow.probes import pronouns
from attnflow.probes.pronouns import PAPER, PronounExample, probe, probe_all

SENTENCE = "The developer argued with the designer because she did not like the design ."
GIVEN = PronounExample.of(SENTENCE, ("developer", "designer"), ("he", "she"), "she", gold=0, group="type1 anti")


def test_masked_the_forms_are_compared_at_the_mask(masked):
    model, tokenizer = masked
    result = probe(model, tokenizer, PAPER[0])
    text = "The author talked to Sara about [MASK] book."
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        at = model(**encoded).logits[0, 7].log_softmax(-1)
    his, her = (float(at[tokenizer.convert_tokens_to_ids(w)]) for w in ("his", "her"))
    assert result.odds == pytest.approx((his, her), abs=1e-4)
    assert (result.mode, result.position, result.choice) == ("form", 7, int(her > his))
    attention = capture(model, tokenizer, text)
    assert result.scores["raw"] == pytest.approx(raw(attention, position="mask").scores[:, [2, 5]], abs=1e-5)
    assert result.scores["flow"] == pytest.approx(flow(attention, position="mask").scores[:, [2, 5]], abs=1e-6)


def test_references_explain_the_choice_itself(masked):
    model, tokenizer = masked
    result = probe(model, tokenizer, PAPER[0], methods=["blankout"])
    ids = [tokenizer.convert_tokens_to_ids(f) for f in ("his", "her")]
    target = (ids[result.choice], ids[1 - result.choice])
    expected = blankout(model, tokenizer, PAPER[0].text, target=target, score="logit", position="mask")
    assert result.scores["blankout"] == pytest.approx(expected.scores[:, [2, 5]], abs=1e-5)


def test_gradient_edges_explain_the_choice_itself(masked):
    model, tokenizer = masked
    result = probe(model, tokenizer, PAPER[0], methods=["chefer", "direct:gradient"])
    ids = [tokenizer.convert_tokens_to_ids(f) for f in ("his", "her")]
    target = (ids[result.choice], ids[1 - result.choice])
    attention = capture(model, tokenizer, PAPER[0].text, edges="gradient", target=target, position="mask")
    expected = {"chefer": rollout(attention, position="mask"), "direct:gradient": direct(attention, position="mask")}
    for name, found in expected.items():
        assert result.scores[name] == pytest.approx(found.scores[:, [2, 5]], rel=1e-4)


def test_causal_the_forms_are_compared_before_the_pronoun(causal):
    model, tokenizer = causal
    result = probe(model, tokenizer, PAPER[0])
    encoded = tokenizer("The author talked to Sara about", return_tensors="pt")
    with torch.no_grad():
        last = model(**encoded).logits[0, -1].log_softmax(-1)
    his, her = (float(last[tokenizer.convert_tokens_to_ids(w)]) for w in ("his", "her"))
    assert result.odds == pytest.approx((his, her), abs=1e-4)
    assert result.position == 5 and result.mode == "form"


def test_causal_with_the_pronoun_given_the_names_are_compared(causal):
    model, tokenizer = causal
    result = probe(model, tokenizer, GIVEN, methods=["rollout"])
    text = SENTENCE + ' The pronoun "she" refers to the'
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        last = model(**encoded).logits[0, -1].log_softmax(-1)
    names = [float(last[tokenizer.convert_tokens_to_ids(w)]) for w in ("developer", "designer")]
    assert result.mode == "referent"
    assert result.odds == pytest.approx(names, abs=1e-4)
    assert result.position == encoded["input_ids"].shape[1] - 1
    assert [result.tokens[i] for i in (1, 5)] == ["developer", "designer"]


def mean_log_probability(model, tokenizer, text, answer):
    """Naive: one run per token of the answer."""
    ids = tokenizer(text)["input_ids"]
    total, pieces = 0.0, tokenizer(answer)["input_ids"]
    for piece in pieces:
        with torch.no_grad():
            total += float(model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)[piece])
        ids = [*ids, piece]
    return total / len(pieces)


@pytest.mark.parametrize(
    ("text", "names", "end", "answers"),
    [
        # Both have an article: it is part of the prompt. A name of two words is scored by both, divided by two.
        ("The old author knows the designer because he sees", ("old author", "designer"), " the", None),
        # Proper names have none, and a name beside an occupation makes the article part of its answer.
        ("Mary knows John because he sees", ("Mary", "John"), "", None),
        ("Mary knows the author because he sees", ("Mary", "author"), "", ("Mary", "the author")),
        # Names that begin alike are told apart where they differ.
        ("Mary Sara knows Mary John because he sees", ("Mary Sara", "Mary John"), "", None),
    ],
)
def test_names_are_scored_by_all_their_pieces(causal, text, names, end, answers):
    model, tokenizer = causal
    result = probe(
        model, tokenizer, PronounExample.of(text, names, ("he", "he"), "he"), methods=["rollout", "blankout"]
    )
    prompt = f'{text} The pronoun "he" refers to{end}'
    expected = [mean_log_probability(model, tokenizer, prompt, a) for a in answers or names]
    assert result.odds == pytest.approx(expected, abs=1e-4)
    assert result.choice == int(expected[1] > expected[0])
    shared = 1 if names[0].split()[0] == names[1].split()[0] else 0
    assert result.position == len(tokenizer(prompt)["input_ids"]) - 1 + shared
    assert np.abs(result.scores["blankout"]).max() > 0


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_choices_alone_are_those_of_the_probe_from_fewer_runs(kind, request):
    model, tokenizer = request.getfixturevalue(kind)
    examples = [*PAPER, GIVEN] if kind == "causal" else [*PAPER]
    runs = []
    hook = model.register_forward_hook(lambda *_: runs.append(1))
    alone = pronouns.choose(model, tokenizer, examples, batch_size=8)
    hook.remove()
    assert len(runs) == 1
    for one, result in zip(alone, probe_all(model, tokenizer, examples, ["raw"]), strict=True):
        assert one.odds == pytest.approx(result.odds, abs=1e-5) and one.scores == {}
        assert (one.example, one.choice, one.position) == (result.example, result.choice, result.position)
        assert (one.mode, one.unknown) == (result.mode, result.unknown)


def test_choices_that_cannot_be_asked(causal):
    model, tokenizer = causal
    late = PronounExample.of("[MASK] thanked Tom and Ann .", ("Tom", "Ann"), ("he", "she"))
    with pytest.raises(AttnFlowError, match="stands behind the pronoun"):
        pronouns.choose(model, tokenizer, [late])
    with pytest.raises(AttnFlowError, match="None of 2 examples can be asked of"):
        pronouns.choose(model, tokenizer, [late, late])
    assert len(pronouns.choose(model, tokenizer, [late, PAPER[0]])) == 1


def test_names_keep_their_case():
    example = PronounExample.of("The CEO met Ann before she left", ("CEO", "Ann"), ("he", "she"), "she")
    prompt, named = pronouns._continued(example)
    assert (prompt, named) == (' The pronoun "she" refers to', ("the CEO", "Ann"))


def test_unknown_words_are_counted_and_told(masked):
    lost = PronounExample.of("The author convinced Zyzzy of [MASK] love.", ("author", "Zyzzy"), ("her", "his"), gold=0)
    with pytest.warns(AttnFlowWarning, match=r"1 of 2 sentences \(50%\) contain <unk>"):
        results = probe_all(*masked, [lost, PAPER[0]], methods=["raw"])
    assert [r.unknown for r in results] == [True, False]
    assert [rate.count for rate in pronouns.unknown(results)] == [1, 0]


def test_a_referent_behind_the_mask_is_found_though_the_mask_is_longer(masked):
    model, tokenizer = masked
    example = PronounExample.of("his book and the author John", ("author", "John"), ("his", "her"), "his")
    result = probe(model, tokenizer, example, methods=["raw"])
    attention = capture(model, tokenizer, "[MASK] book and the author John")
    assert result.scores["raw"] == pytest.approx(raw(attention, position="mask").scores[:, [5, 6]], abs=1e-5)


def test_pieces_of_a_referent_are_added_up(masked):
    model, tokenizer = masked
    example = PronounExample.of("the old author knows john because [MASK] sees", ("old author", "john"), ("he", "she"))
    result = probe(model, tokenizer, example, methods=["raw"])
    row = raw(capture(model, tokenizer, example.text), position="mask").scores
    assert result.scores["raw"][:, 0] == pytest.approx(row[:, 2] + row[:, 3], abs=1e-5)


def test_agreement_is_one_zero_or_a_half():
    scores = {"raw": np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0 + 1e-12]])}
    result = pronouns.Result(PAPER[0], "form", 1, (0.0, 1.0), 7, (), (0, 1, 2), scores)
    assert result.agrees("raw").tolist() == [0, 1, 0.5]
    assert result.to_frame()["agrees"].tolist() == [0, 1, 0.5]
    assert "chooses 'Sara', by 'her'" in repr(result)
    with pytest.raises(AttnFlowError, match="'flow' was not computed"):
        result.agrees("flow")


def test_a_table_over_a_data_set(masked):
    steps = []
    results = probe_all(*masked, [*PAPER, GIVEN], progress=lambda a, b: steps.append(a))
    table = pronouns.table(results)
    assert steps == [1, 2, 3, 4, 5]
    assert list(table["method"].unique()) == ["raw", "rollout", "flow", "gradient", "blankout"]
    assert len(table) == 3 * 2 + 2 and set(table["n"]) == {5}
    assert ((table["low"] <= table["share"]) & (table["share"] <= table["high"])).all()
    by_hand = np.mean([r.agrees("rollout")[1] for r in results])
    assert table.query("method == 'rollout' and layer == 1")["share"].item() == pytest.approx(by_hand)
    points = [r.scores["rollout"][1] for r in results]
    assert table.query("method == 'rollout' and layer == 1")["first"].item() == np.mean([a > b for a, b in points])
    assert pronouns.first(results).right == sum(r.choice == 0 for r in results)
    (whole, group) = pronouns.choices(results)
    assert (whole.count, group.name, group.count) == (1, "type1 anti", 1)


def test_examples_that_cannot_be_asked_are_left_out(causal):
    after = PronounExample.of("because [MASK] sees the author John knows", ("author", "John"), ("he", "she"))
    assert len(probe_all(*causal, [after, PAPER[0]], methods=["raw"])) == 1
    with pytest.raises(AttnFlowError, match="'author' stands behind the pronoun"):
        probe_all(*causal, [after])
    with pytest.raises(AttnFlowError, match="None of 2 examples"):
        probe_all(*causal, [after, after])
    with pytest.raises(AttnFlowError, match="0 results"):
        pronouns.table([])


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_a_question_longer_than_the_models_positions_is_left_out(kind, request):
    model, tokenizer = request.getfixturevalue(kind)
    most = model.config.max_position_embeddings
    # Around the gap stand [CLS], the mask and [SEP] of a masked model; a causal one is asked before it.
    words = most - 4 - (3 if kind == "masked" else 0)
    whole, long = (
        PronounExample.of("the author knows sara " + "old " * n + "[MASK]", ("author", "sara"), ("his", "her"))
        for n in (words, words + 1)
    )
    for asked in (pronouns.choose, probe_all):
        more = {"methods": ["raw"]} if asked is probe_all else {}
        assert [r.example for r in asked(model, tokenizer, [long, whole], **more)] == [whole]
        with pytest.raises(AttnFlowError, match=f"have {most + 1} tokens, and the model has {most} positions: 'the a"):
            asked(model, tokenizer, [long], **more)


@pytest.mark.parametrize(("name", "fits"), [("mary", True), ("mary sara", False)])
def test_the_tokens_of_a_long_name_have_to_fit_too(causal, name, fits):
    model, tokenizer = causal
    text = f"{name} knows john because he"
    free = model.config.max_position_embeddings - len(tokenizer(f'{text} The pronoun "he" refers to')["input_ids"])
    full = PronounExample.of(text + " old" * free, (name, "john"), ("he", "he"), "he")
    asked = pronouns.choose(model, tokenizer, [full, PAPER[0]])
    assert [r.example for r in asked] == ([full, PAPER[0]] if fits else [PAPER[0]])


def test_what_does_not_fit_is_an_error(masked, causal):
    with pytest.raises(AttnFlowError, match="mode='both' is not known"):
        probe(*masked, PAPER[0], mode="both")
    with pytest.raises(AttnFlowError, match="masked language model"):
        probe(*masked, GIVEN, mode="referent")
    with pytest.raises(AttnFlowError, match="the text has a gap"):
        probe(*causal, PAPER[0], mode="referent")
    unknown = PronounExample.of("Mary convinced John of [MASK] love.", ("Mary", "John"), ("xyzzy", "his"))
    with pytest.raises(AttnFlowError, match="one known token each"):
        probe(*masked, unknown)
    same = PronounExample.of("Mary convinced John of [MASK] love.", ("Mary", "John"), ("his", "his"))
    with pytest.raises(AttnFlowError, match="the same tokens as far"):
        probe(*causal, same)


@pytest.mark.parametrize(
    ("text", "names", "answers"),
    [
        ("Someone met with the accountant and told him", ("Someone", "accountant"), ("someone", "the accountant")),
        ("My sister met the nurse and told him", ("sister", "nurse"), ("sister", "nurse")),
        ("Ann’s sister met Bob and told him", ("sister", "Bob"), ("the sister", "Bob")),
    ],
)
def test_a_name_is_spoken_of_again_as_people_would(text, names, answers):
    prompt, found = pronouns._continued(PronounExample.of(text, names, ("he", "he"), "him"))
    assert found == answers and prompt.endswith(" refers to the") is (answers == names)
