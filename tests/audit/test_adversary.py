"""Adversarial attention: known optima, what must hold of any candidate, and what must not matter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import brentq

from attnflow.audit import adversary
from attnflow.audit.adversary import _verdict
from attnflow.audit.instances import inputs_of, open_texts, outputs_of
from attnflow.audit.intervention import find_intervention, forward, lower_layers_once, replaced
from attnflow.audit.measures import LN2, jsd
from attnflow.errors import AttnFlowError
from tests import standin
from tests.audit.hand import HandModel, causal, classifier, masked, own, softmax, state

TEXTS = ["the key to the cabinets", "the men near the table", "the author of the books is near"]
QUICK = {"steps": 30, "candidates": 2}


def test_the_known_optimum_of_two_tokens_with_the_output_in_the_way():
    model = HandModel([1.0, 0.0], [[2.0, 0.0], [0.0, 1.0]])
    weights, values, before = own(model, [0, 1])
    epsilon = 0.05

    def change(a):
        return softmax(np.array([a, 1 - a]) @ values)[0] - before[0]

    # More weight on token 0 raises class 0: the two ends of what is allowed are where the change is ±ε.
    ends = [1.0 if change(1) < epsilon else brentq(lambda a: change(a) - epsilon, 0, 1)]
    ends += [0.0 if change(0) > -epsilon else brentq(lambda a: change(a) + epsilon, 0, 1)]
    known = max(float(jsd(weights, [a, 1 - a])) for a in ends)
    found = adversary(model, None, [[0, 1]], epsilon=epsilon, steps=150, lr=0.05).records.iloc[0]
    assert known * 0.97 <= found["jsd"] <= known + 1e-6
    assert found["tvd"] <= epsilon
    assert abs(softmax(np.array(found["adversarial"]) @ values) - before).sum() / 2 == pytest.approx(
        found["tvd"], abs=1e-6
    )


def test_with_equal_values_everything_goes_to_the_least_attended_token():
    model = HandModel([1.5, 0.0], [[2.0, 0.0], [2.0, 0.0]])
    weights, *_ = own(model, [0, 1])
    known = float(jsd(weights, [0.0, 1.0]))
    found = adversary(model, None, [[0, 1]], steps=120, lr=0.1).records.iloc[0]
    assert found["bound"] == pytest.approx(known, abs=1e-6)
    assert known * 0.97 < found["jsd"] <= known + 1e-9 and found["tvd"] < 1e-6
    assert found["adversarial"][1] > 0.98


def test_where_every_change_is_too_much_the_models_own_weights_are_left():
    model = HandModel([0.0, 0.0], [[400.0, 0.0], [0.0, 400.0]])
    found = adversary(model, None, [[0, 1]], epsilon=1e-6, steps=5)
    row = found.records.iloc[0]
    assert row["jsd"] == 0 and row["tvd"] == 0 and row["within"] == 0
    assert row["adversarial"] == row["attention"] == [0.5, 0.5]
    assert "For 0 of 1 texts" in found.verdict and "for 1 none further than 0.05 were found" in found.verdict
    assert "For 1 no candidate came within ε at any step" in found.verdict


@pytest.mark.parametrize("options", [
    {}, {"rows": "all", "layers": "all"}, {"heads": [0, 2]}, {"share_heads": True}, {"fix_special": True},
    {"start": "own"}, {"candidates": 1, "start": "own"}, {"layers": 0},
])  # fmt: skip
def test_what_holds_of_any_candidate(options):
    model = classifier()
    found = adversary(model, standin.tokenizer(), TEXTS[:2], epsilon=0.3, **{**QUICK, **options}).records
    assert ((found["jsd"] >= 0) & (found["jsd"] <= found["bound"] + 1e-6) & (found["bound"] <= LN2)).all()
    assert (found["tvd"] <= 0.3).all() and (found["jsd"] > 0).any()
    for _, row in found.iterrows():
        assert sum(row["attention"]) == pytest.approx(1, abs=1e-5) == pytest.approx(sum(row["adversarial"]), abs=1e-5)
        assert len(row["tokens"]) == len(row["attention"])
    if options.get("fix_special"):
        pairs = [(row["attention"], row["adversarial"]) for _, row in found.iterrows()]
        assert all(a[i] == pytest.approx(b[i], abs=1e-6) for a, b in pairs for i in (0, -1))


def test_the_weights_found_give_the_output_that_is_claimed():
    model = classifier()
    found = adversary(model, standin.tokenizer(), TEXTS[:1], heads=1, epsilon=0.2, **QUICK).records.iloc[0]
    (instance,) = open_texts(TEXTS[:1]).instances(model, standin.tokenizer())

    def swap(call, weights):
        if call.layer != 1:
            return None
        new = weights.clone()
        new[:, 1, 0] = torch.tensor(found["adversarial"])
        return new

    with torch.no_grad():
        before = model(**instance.example.inputs).logits.softmax(-1)
        with replaced(model, swap) as records:
            after = forward(model, instance.example.inputs, records).logits.softmax(-1)
    assert float((before - after).abs().sum() / 2) == pytest.approx(found["tvd"], abs=1e-5)
    assert float(jsd(found["attention"], found["adversarial"])) == pytest.approx(found["jsd"], abs=1e-5)


def test_a_batch_is_its_texts_one_by_one():
    model, tokenizer = classifier(), standin.tokenizer()
    whole = adversary(model, tokenizer, TEXTS, epsilon=0.1, **QUICK).records
    single = adversary(model, tokenizer, TEXTS, epsilon=0.1, batch_size=1, **QUICK).records
    assert list(whole["number"]) == [0, 1, 2]
    assert np.allclose(whole["jsd"], single["jsd"], atol=1e-4) and np.allclose(whole["tvd"], single["tvd"], atol=1e-4)


@pytest.mark.parametrize("kind", ["masked", "gpt2", "llama", "gpt-oss", "gemma2", "mpt"])
def test_language_models(kind):
    if kind == "masked":
        model, tokenizer, texts = masked(), standin.tokenizer(), ["the key to the [MASK]", "the [MASK] is near to"]
    else:
        model, tokenizer, texts = causal(kind), None, [[5, 6, 7, 8], [9, 3, 4, 7]]
    found = adversary(model, tokenizer, texts, epsilon=0.2, start="own", **QUICK)
    assert (found.records["jsd"] > 0).all() and (found.records["tvd"] <= 0.2).all()


@pytest.mark.parametrize("kind", ["classifier", "gpt2", "llama", "gemma2", "bloom"])
def test_layers_below_are_left_out_and_the_output_is_the_same(kind):
    model = classifier() if kind == "classifier" else causal(kind)
    texts = [[5, 6, 7, 8], [9, 3, 4, 7], [5, 5, 6, 6]]
    instances = list(open_texts(texts).instances(model, None))
    intervention = find_intervention(model, instances[0], -1, None, "position", False)
    names = []

    def run(copies):
        return outputs_of(instances, forward(model, inputs_of(instances, copies), records), copies)

    with torch.no_grad(), replaced(model, lambda call, w: names.append(call.layer)) as records:
        plain = run(3)
        assert set(names) == {0, 1}
        with lower_layers_once(model, intervention, len(instances), run) as known:
            names.clear()
            known.copies = 3
            assert known.layers == 1 and torch.allclose(run(3), plain, atol=1e-6) and set(names) == {1}
        names.clear()
        assert torch.equal(run(3), plain) and set(names) == {0, 1}


def test_a_shared_layer_is_never_left_out():
    from transformers import AlbertConfig, AlbertForSequenceClassification

    sizes = {"hidden_size": 16, "embedding_size": 8, "num_attention_heads": 4, "intermediate_size": 16}
    torch.manual_seed(0)
    model = AlbertForSequenceClassification(AlbertConfig(**sizes, num_hidden_layers=3, vocab_size=40)).eval()
    found = adversary(model, None, [[5, 6, 7, 8]], layers=[1, 2], epsilon=0.5, start="own", **QUICK).records
    assert found["jsd"][0] > 0


def test_layers_that_do_not_give_the_same_are_run():
    model = classifier()
    (instance,) = open_texts([[5, 6, 7, 8]]).instances(model, None)
    intervention = find_intervention(model, instance, -1, None, "position", False)
    drift = iter(range(100))

    def run(copies):
        return outputs_of([instance], forward(model, inputs_of([instance], copies), records), copies) + next(drift)

    looking = replaced(model, lambda call, w: None)
    with torch.no_grad(), looking as records, lower_layers_once(model, intervention, 1, run) as known:
        assert known.layers == 0
        # The capture itself watches the forward of the model; the layers below have their own.
        assert all("forward" not in m.__dict__ for m in model.base_model.encoder.modules())


@pytest.mark.parametrize("how", ["well", "error", "interrupt"])
@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_as_it_was(how, training, monkeypatch):
    model, tokenizer = classifier().train(training), standin.tokenizer()
    model.classifier.weight.requires_grad_(False)
    before, steps = state(model), iter(range(100))
    kind = {"error": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)
    if kind is not None:
        real = torch.optim.Adam.step

        def stop(self, *args):
            if next(steps) == 2:
                raise kind("stop")
            return real(self, *args)

        monkeypatch.setattr(torch.optim.Adam, "step", stop)
        with pytest.raises(kind):
            adversary(model, tokenizer, TEXTS, **QUICK)
    else:
        with torch.inference_mode():
            adversary(model, tokenizer, TEXTS, **QUICK)
    assert state(model) == before


def test_result_says_where_and_shows_pairs():
    done = []
    found = adversary(
        classifier(), standin.tokenizer(), TEXTS, labels=["a", "b", "b"], layers=[0, 1], examples=2, epsilon=0.3,
        progress=lambda i, n: done.append((i, n)), start="own", **QUICK,
    )  # fmt: skip
    assert done[-1] == (3, 3) and list(found.table["class"]) == ["a", "b", "all"]
    assert "layers 0, 1 (the row of the output position)" in found.verdict and "TVD of 0.3" in found.verdict
    assert found.settings["layers"] == [0, 1] and found.settings["distributions"] == "one distribution for each head"
    assert len(found.examples) == 2
    title, pair = next(iter(found.examples.items()))
    assert list(pair.columns) == ["token", "model's own", "adversarial"] and title in found.to_markdown()
    assert "adversarial</th>" in found.to_html()
    assert len(found.plot().patches) > 0


def judged(jsd, bound, within, classes="a"):
    records = pd.DataFrame({"class": classes, "jsd": jsd, "bound": bound, "within": within})
    return _verdict(records, SimpleNamespace(describe=lambda: "layer 1"), 0.01)


def test_a_verdict_on_made_up_records_where_most_weights_can_be_moved():
    # Half of what is possible is not more than half, and 0.05 is not below it.
    said = judged([0.5, 0.4, 0.31, 0.3, 0.05], [0.6, 0.6, 0.6, 0.6, 0.5], [5, 5, 1, 2, 1])
    assert said.startswith("With the output within a TVD of 0.01, the attention of layer 1 could be moved by a mean")
    share = (0.5 / 0.6 + 0.4 / 0.6 + 0.31 / 0.6 + 0.5 + 0.1) / 5
    assert f"a mean JSD of 0.312 (at most 0.693; {share:.0%} of the furthest possible" in said
    assert "For 3 of 5 texts weights more than half as far as possible give nearly the same output" in said
    assert said.endswith("for 0 none further than 0.05 were found.")


def test_a_verdict_on_made_up_records_where_no_adversary_was_found():
    said = judged([0.0, 0.04, 0.06], [0.6, 0.6, 0.6], [0, 0, 3])
    assert "For 0 of 3 texts weights more than half as far" in said
    assert "for 2 none further than 0.05 were found. For 2 no candidate came within ε at any step" in said
    assert "may be the search's fault" in said


def test_a_verdict_takes_the_bound_of_each_text_and_tells_classes_apart():
    # 0.2 is far where no weights could be further than 0.3; a text that cannot move is no share of anything.
    said = judged([0.2, 0.2, 0.0], [0.3, 0.6, 0.0], [1, 1, 1], ["a", "b", "b"])
    assert "50% of the furthest possible" in said and "For 1 of 3 texts" in said
    assert " By class: a 0.200, b 0.100." in said and "for 1 none further" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, "epsilon=0, but a TVD is between 0 and 1"),
        ({"epsilon": 1.5}, "epsilon=1.5, but a TVD"),
        ({"candidates": 0}, "candidates=0, but at least 1 is needed"),
        ({"steps": 0}, "steps=0, but at least 1 is needed"),
        ({"batch_size": 0}, "batch_size=0, but at least 1 is needed"),
        ({"start": "here"}, "start='here' is not known. Use one of: 'random', 'own'"),
        ({"layers": 9}, "layer=9, but the layers with attention are 0, 1"),
        ({"heads": [4]}, r"heads=\(4,\), but the model has 4 heads"),
        ({"rows": "some"}, "rows='some' is not known"),
        ({"labels": []}, "0 labels for 3 texts"),
    ],
)
def test_errors_name_both_facts(options, message):
    with pytest.raises(AttnFlowError, match=message):
        adversary(classifier(), standin.tokenizer(), TEXTS, **options)


def test_attention_in_bands_cannot_be_changed():
    from transformers import LongformerForSequenceClassification

    model = LongformerForSequenceClassification(causal("longformer").config).eval()
    with pytest.raises(AttnFlowError, match="LongformerForSequenceClassification was not seen as a matrix of tokens"):
        adversary(model, None, [[5, 6, 7, 8]], **QUICK)
