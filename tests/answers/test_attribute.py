"""``attribute``: rows, shares, prompts and answers on small random models, against naive re-implementations."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import AttnFlowError, Attribution, attribute, capture, direct, rollout
from attnflow.answers.reading import make_run, read
from tests.answers import tiny
from tests.answers.tiny import CONTEXT, QUESTION, causal, seq2seq, tokenizer
from tests.capturing.test_restore import fingerprint

ASK = {"context": CONTEXT, "question": QUESTION}
ANSWER = "It is red. Not blue."


def found(**options: Any) -> Attribution:
    given = {"methods": ["direct"], "check": 0, **options}
    made = attribute(causal(), tokenizer(), ASK, ANSWER, **given)
    assert isinstance(made, Attribution)
    return made


def run_of(a: Attribution, model: Any = None) -> Any:
    tok = tokenizer()
    ids = tok(a.prompt, add_special_tokens=False)["input_ids"]
    whole = tok(a.prompt + a.answer, add_special_tokens=False)["input_ids"]
    return make_run(model or causal(), tok, ids, whole[len(ids) :], {}, torch.device("cpu"))


@pytest.mark.parametrize("precision", ["single", "double"])
@pytest.mark.parametrize("method", ["direct", "direct:alti", "raw", "rollout", "rollout:alti", "flow"])
def test_rows_are_those_of_the_plain_methods(method: str, precision: str) -> None:
    """The row of token t is the one of the position before it, in a capture of everything.

    ALTI takes the difference of two long sums, whose rounding depends on how many rows there are.
    """
    model = causal() if precision == "single" else copy.deepcopy(causal()).double()
    near = 1e-8 if precision == "double" else 1e-5 if method.endswith("alti") else 1e-6
    a = attribute(model, tokenizer(), ASK, ANSWER, methods=[method], check=0)
    run = run_of(a, model)
    base, _, edges = method.partition(":")
    whole = capture(model, None, inputs=dict(run.inputs), edges=edges or "attention")
    import attnflow

    scores = getattr(attnflow, base)(whole, layer=-1).scores[-1]
    p = run.prompt
    rows = scores[p - 1 : p - 1 + len(run.answer)]
    for u, unit in enumerate(a.units):
        np.testing.assert_allclose(a.scores[method][u], rows[unit.first : unit.last].mean(0), atol=near)


def test_sums_over_sources_are_sums_over_tokens_exactly() -> None:
    a = found(methods=["direct:alti", "gradient", "input_x_gradient", "rollout"], units="tokens")
    for name, scores in a.scores.items():
        by_source = sum(a.sums(name)[:, i] for i in range(len(a.sources)))
        others = scores[:, a.owners < 0].sum(1)
        assert (by_source + others == scores.sum(1)).all(), name
        np.testing.assert_allclose(a.shares(name).sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(sum(a.rest(name).values()), 1, atol=1e-12)


def test_every_character_has_one_owner_and_units_cover_the_answer() -> None:
    a = found(units="sentences")
    held = np.zeros(len(a.prompt), int)
    for s in a.sources:
        assert a.prompt[s.start : s.end] == s.text
        held[s.start : s.end] += 1
    assert held.max() == 1
    assert "".join(u.text for u in a.units[1:]) == a.answer == ANSWER
    assert a.units[1].last == a.units[2].first and a.units[2].last == a.units[0].last
    each = found(units="tokens")
    assert len(each.units) == 1 + each.units[0].last


def test_many_prompts_are_as_one_by_one() -> None:
    prompts, answers = [ASK, "The key of Milo is"], [ANSWER, " blue"]
    many = attribute(causal(), tokenizer(), prompts, answers, methods=["direct:alti"])  # type: ignore[arg-type]
    assert isinstance(many, list)
    for one, prompt, answer in zip(many, prompts, answers, strict=True):
        alone = attribute(causal(), tokenizer(), prompt, answer, methods=["direct:alti"])
        assert isinstance(alone, Attribution)
        np.testing.assert_array_equal(one.scores["direct:alti"], alone.scores["direct:alti"])
        np.testing.assert_array_equal(one.checks["mask"], alone.checks["mask"])


def test_messages_go_through_the_template() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": CONTEXT}]
    a = attribute(causal(), tokenizer(), messages, "Red.", methods=["direct"], check=0)
    assert isinstance(a, Attribution)
    assert [s.name for s in a.sources] == ["system 1", "user 2"] and a.prompt.startswith(
        "<|start|>system\nBe brief.<|end|>"
    )
    given = attribute(
        causal(), tokenizer(), [*messages, {"role": "assistant", "content": "Red."}], methods=["direct"], check=0
    )
    assert isinstance(given, Attribution)
    np.testing.assert_array_equal(given.scores["direct"], a.scores["direct"])
    by_sentence = attribute(causal(), tokenizer(), messages, "Red.", sources="sentences", methods=["direct"], check=0)
    assert isinstance(by_sentence, Attribution) and by_sentence.sources[1].name == "user 2, sentence 1"


def test_documents_by_name() -> None:
    docs = {"lora.txt": "The key of Lora is red.", "milo.txt": "The key of Milo is blue."}
    a = attribute(causal(), tokenizer(), {"context": docs, "question": QUESTION}, "Red.", methods=["direct"], check=0)
    assert isinstance(a, Attribution) and [s.name for s in a.sources] == ["lora.txt", "milo.txt", "question"]


def test_the_models_own_answer_and_nothing_changed() -> None:
    model = causal()
    before = fingerprint(model)
    a = attribute(model, tokenizer(), "The key of Lora is", max_new_tokens=4, methods=["direct", "gradient"])
    assert isinstance(a, Attribution) and a.units[0].last <= 4 and "The answer is the model's own." in a.notes
    assert fingerprint(model) == before


def test_a_model_writes_no_more_than_it_has_positions_for() -> None:
    tok = tokenizer()
    tiny_gpt = tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=len(tok), n_positions=24, n_embd=8, n_layer=1, n_head=1, eos_token_id=0)
    )
    prompt = "The key of Lora is red. The key of Milo is"
    tokens = len(tok(prompt)["input_ids"])
    a = attribute(tiny_gpt.eval(), tok, prompt, methods=["direct"], check=0)
    assert isinstance(a, Attribution) and a.units[0].last <= 24 - tokens
    with pytest.raises(AttnFlowError, match="has 2[0-9] tokens and the answer 1, and the model has 24 positions"):
        attribute(tiny_gpt, tok, prompt + prompt, methods=["direct"])


def test_a_decoder_has_as_many_positions_as_its_encoder() -> None:
    sizes = {
        f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    marks = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "decoder_start_token_id": 0}
    config = tf.BartConfig(
        vocab_size=len(tokenizer()), max_position_embeddings=16, d_model=8, **sizes, **marks, forced_eos_token_id=None
    )
    model = tf.BartForConditionalGeneration(config).eval()
    own = attribute(model, tokenizer(), "The key of Lora is", methods=["direct"], check=0)
    assert isinstance(own, Attribution) and own.units[0].last <= 16
    with pytest.raises(AttnFlowError, match="has 16 positions for each. Leave 8 tokens of the answer out"):
        attribute(model, tokenizer(), "The key of Lora is", " red" * 24, methods=["direct"])


def test_first_token_and_template_are_told_apart() -> None:
    a = found()
    assert a.owners[0] == -1
    with_first, without = a.sums(first=True), a.sums(first=False)
    np.testing.assert_array_equal(with_first, without)
    plain = attribute(causal(), tokenizer(), "The key of Lora is red. So", " red", methods=["direct"], check=0)
    assert isinstance(plain, Attribution) and plain.owners[0] == 0
    assert (plain.sums(first=True)[:, 0] > plain.sums(first=False)[:, 0]).all()


def test_contrast() -> None:
    a = attribute(causal(), tokenizer(), ASK, "red and", instead="blue", methods=["direct", "gradient"])
    assert isinstance(a, Attribution) and len(a.units) == 1
    one = attribute(causal(), tokenizer(), ASK, "red and", methods=["direct"])
    other = attribute(causal(), tokenizer(), ASK, "blue", methods=["direct"])
    assert isinstance(one, Attribution) and isinstance(other, Attribution)
    p = int((a.owners != -2).sum())
    np.testing.assert_allclose(
        a.scores["direct"][0, :p], one.scores["direct"][0, :p] - other.scores["direct"][0, :p], atol=1e-9
    )
    np.testing.assert_allclose(a.checks["mask"], one.checks["mask"][:1] - other.checks["mask"][:1], atol=1e-4)
    for name in a.scores:  # behind the prompt the two have other words, of which there is no difference
        assert (a.scores[name][:, p:] == 0).all() and a.rest(name)["answer"][0] == 0
    same = attribute(causal(), tokenizer(), ASK, "red", instead="red", methods=["direct", "gradient"])
    assert isinstance(same, Attribution)
    assert np.abs(same.scores["direct"][:, :p]).max() < 1e-9 and np.abs(same.scores["gradient"][:, :p]).max() < 1e-6


def test_gradients_against_autograd_at_the_embeddings() -> None:
    a = found(methods=["gradient", "input_x_gradient"])
    model, run = causal(), run_of(a)
    embeds = model.get_input_embeddings()(run.inputs["input_ids"]).detach().requires_grad_()
    logits = model(inputs_embeds=embeds).logits[0, run.prompt - 1 :]
    logp = logits.log_softmax(-1).gather(-1, torch.tensor(run.answer)[:, None])[:, 0]
    for u, unit in enumerate(a.units):
        slope = torch.autograd.grad(logp[unit.first : unit.last].sum(), embeds, retain_graph=True)[0][0]
        np.testing.assert_allclose(a.scores["gradient"][u], slope.abs().sum(-1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            a.scores["input_x_gradient"][u], (slope * embeds[0]).abs().sum(-1).detach(), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("model", [causal, seq2seq])
def test_checkpointing_changes_nothing(model: Any) -> None:
    from attnflow.answers.gradients import gradients

    net = model()
    before = fingerprint(net)
    tok = tokenizer()
    ids, answer = tok(CONTEXT)["input_ids"], tok(" red.")["input_ids"]
    kept, again = (make_run(net, tok, ids, answer, {}, torch.device("cpu")) for _ in range(2))
    spans = [(0, len(answer)), (0, 1)]
    for one, other in zip(gradients(kept, spans, True)[0], gradients(again, spans, False)[0], strict=True):
        torch.testing.assert_close(one, other)
    assert fingerprint(net) == before and all("forward" not in m.__dict__ for m in net.modules())


def test_encoder_decoder() -> None:
    model, tok = seq2seq(), tokenizer()
    a = attribute(
        model,
        tok,
        ASK,
        "It is red.",
        methods=["direct:alti", "direct", "rollout", "gradient"],
        check_by=["mask", "removal"],
    )
    assert isinstance(a, Attribution)
    ids = tok(a.prompt, add_special_tokens=False)["input_ids"]
    answer = tok("It is red.", add_special_tokens=False)["input_ids"]
    given = {"input_ids": torch.tensor([ids]), "decoder_input_ids": torch.tensor([[0, *answer[:-1]]])}
    whole = capture(model, inputs=given)
    for name, method in (("direct", direct), ("rollout", rollout)):
        np.testing.assert_allclose(a.scores[name][0], method(whole, layer=-1).scores[-1].mean(0), atol=1e-6)
    assert (a.owners[: len(ids)] != -2).all() and (a.owners[len(ids) :] == -2).all()
    mask = torch.ones(1, len(ids), dtype=torch.long)
    mask[0, a.owners[: len(ids)] == 0] = 0
    with torch.no_grad():
        plain, left = (
            model(**given, attention_mask=m).logits[0].log_softmax(-1).gather(-1, torch.tensor(answer)[:, None]).sum()
            for m in (torch.ones_like(mask), mask)
        )
    np.testing.assert_allclose(a.checks["mask"][0, 0], float(plain - left), atol=1e-4)


def test_long_inputs_refuse_what_needs_all_rows(monkeypatch: Any) -> None:
    from attnflow.answers import reading

    monkeypatch.setattr(reading, "STORED_BYTES", 1000)
    run = run_of(found())
    with pytest.raises(AttnFlowError, match="flow needs all rows of 3 layers.*methods=\\['direct:alti', 'rollout'\\]"):
        read(run, "flow")
    assert read(run, "direct:alti")[0].shape == (len(run.answer), run.positions)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": "The key of Lora is ", "answer": "red"}, "splits the answer 'red' differently after the prompt"),
        ({"answer": " "}, "The answer is ' ', which has no word to attribute"),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": {"context": " "}}, "The context is empty"),
        ({"prompt": {"text": "a"}}, "The prompt is a dict of 'text'"),
        ({"prompt": 3}, "The prompt is a int"),
        ({"prompt": "half \ud800 of a pair"}, "has half of a character (U+D800)"),
        ({"sources": ["nowhere"]}, "The source 'nowhere' is not in the prompt"),
        ({"sources": [(0, 9), (4, 12)]}, "share 5 characters"),
        ({"methods": ["blankout"]}, "'blankout' does not attribute an answer"),
        ({"methods": []}, "methods is empty"),
        ({"units": "letters"}, "units='letters' is not known"),
        ({"check": "some"}, "check='some' is not known"),
        ({"check_by": "hand"}, "check_by='hand' is not known"),
        ({"prompt": {"context": "The key of Lora is red. " * 90}}, "and the model has 512 positions"),
        ({"images": [1]}, "reads text only. Pass the processor"),
        ({"answer": None, "max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_bad_input(given: dict[str, Any], said: str) -> None:
    options = {"prompt": ASK, "answer": "red", "methods": ["direct"], "check": 0, **given}
    with pytest.raises(AttnFlowError, match=re.escape(said)):
        attribute(causal(), tokenizer(), options.pop("prompt"), options.pop("answer"), **options)


@pytest.mark.parametrize(
    ("prompt", "answer", "line"),
    [
        ("The key of Lora is ", "red", "'The key of Lora is', answer=' red')"),
        ("The key of Lo", "ra", "'The key of', answer=' Lora')"),
    ],
)
def test_the_line_to_paste_where_prompt_and_answer_share_a_token(prompt: str, answer: str, line: str) -> None:
    with pytest.raises(AttnFlowError, match=re.escape(f"attribute(model, tokenizer, {line}")):
        attribute(causal(), tokenizer(), prompt, answer, methods=["direct"], check=0)
    pasted = eval(f"dict(zip(('prompt', 'answer'), ({line.replace('answer=', '')}))")
    assert isinstance(attribute(causal(), tokenizer(), **pasted, methods=["direct"], check=0), Attribution)


def test_an_answer_whose_space_joins_the_template() -> None:
    """Both line breaks would be one token."""
    tok = copy.deepcopy(tokenizer())
    tok.add_tokens(["\n\n"])
    with pytest.raises(AttnFlowError, match=re.escape("The chat template ends the prompt:  answer='red'")):
        attribute(causal(), tok, ASK, "\nred", methods=["direct"], check=0)


def test_a_model_by_its_folder(tmp_path: Any) -> None:
    causal().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    by_name = attribute(str(tmp_path), None, ASK, ANSWER, methods=["direct"], check=0)
    assert isinstance(by_name, Attribution)
    np.testing.assert_allclose(by_name.scores["direct"], found().scores["direct"], atol=1e-6)


def test_a_template_that_the_tokenizer_lacks() -> None:
    with pytest.raises(AttnFlowError, match="has no chat template.*tokenizer.chat_template = "):
        attribute(causal(), tokenizer(template=False), [{"role": "user", "content": "Hi"}], "red")


def test_a_model_without_a_language_head() -> None:
    with pytest.raises(AttnFlowError, match="has no language head"):
        attribute(causal().model, tokenizer(), ASK, "red")


def test_the_recommended_methods_leave_out_what_a_model_refuses(monkeypatch: Any) -> None:
    from attnflow.answers import attribute as module
    from attnflow.errors import CaptureError

    def refusing(run: Any, method: str) -> Any:
        if method == "direct:alti":
            raise CaptureError("the parts cannot be told apart")
        return read(run, method)

    monkeypatch.setattr(module, "read", refusing)
    a = attribute(causal(), tokenizer(), ASK, "red", check=0)
    assert isinstance(a, Attribution) and a.method == "direct" and "direct:alti was left out" in a.notes[0]
    with pytest.raises(CaptureError):
        attribute(causal(), tokenizer(), ASK, "red", methods=["direct:alti"])


def test_tiny_tokenizer_and_text_agree() -> None:
    assert tiny.tokenizer().decode(tiny.tokenizer()(CONTEXT)["input_ids"]) == CONTEXT
