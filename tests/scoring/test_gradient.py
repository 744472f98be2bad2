"""Captum's results against gradients taken by hand, and one route against the other."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest
import torch

from attnflow import gradient
from attnflow.errors import AttnFlowWarning, CaptureError, InputError, SelectionError
from attnflow.inputs.embedding import find
from attnflow.inputs.example import one_example
from attnflow.scoring.gradient import (
    CANCELLING,
    METHODS,
    NOISE,
    REDUCTIONS,
    SCALELESS,
    gradient_of,
    reductions_of,
    scale_share,
)
from tests.tiny_models import FAMILIES, IDS, TEXT, state, tiny, tokenizer

POSITION = {"bert-mlm": 3}


def by_hand(name, score=lambda row: row.argmax().item(), value=None):
    """∂(target logit)/∂(word embeddings), through inputs_embeds and plain autograd: no hook, no Captum."""
    model = tiny(name)
    ids = torch.tensor([IDS])
    words = model.get_input_embeddings()(ids).detach().requires_grad_()
    out = model(inputs_embeds=words, attention_mask=torch.ones_like(ids))
    row = out.logits[0] if out.logits.ndim == 2 else out.logits[0, POSITION.get(name, -1)]
    target = value(row) if value else row[score(row)]
    (grad,) = torch.autograd.grad(target, words)
    return grad[0].double(), words[0].detach().double()


PLAIN = [n for n in TEXT if n not in ("t5", "bart", "pegasus", "base")]


@pytest.mark.parametrize("name", PLAIN)
def test_saliency_equals_the_gradient_by_hand(name):
    grad, words = by_hand(name)
    found = gradient(tiny(name), text=IDS, position=POSITION.get(name))
    np.testing.assert_allclose(found.scores[0], grad.abs().sum(-1).numpy(), rtol=1e-4, atol=1e-6)
    times = gradient(tiny(name), text=IDS, position=POSITION.get(name), method="input_x_gradient", reduce="sum")
    np.testing.assert_allclose(times.scores[0], (grad * words).sum(-1).numpy(), rtol=1e-4, atol=1e-6)
    assert found.settings["route"] == "hook" and float(grad.abs().max()) > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TEXT)
def test_two_routes_agree_in_every_family(name, method):
    options = {"method": method, "position": POSITION.get(name), "steps": 8}
    if FAMILIES[name][1].endswith("Generation"):
        options["max_new_tokens"] = 3
    hook = gradient(tiny(name), text=IDS, route="hook", **options)
    given = gradient(tiny(name), text=IDS, route="inputs_embeds", **options)
    assert hook.settings["route"] == "hook" and given.settings["route"] == "inputs_embeds"
    np.testing.assert_allclose(hook.scores, given.scores, rtol=1e-4, atol=1e-6)
    assert hook.scores.max() > 0


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta"])
def test_the_whole_embedding_block_in_inputs_embeds_would_be_wrong(name):
    """The trap: positions and norm applied twice. The gradient through it differs, so the test above can fail."""
    model, ids = tiny(name), torch.tensor([IDS])
    block = next(m for n, m in model.named_modules() if n.endswith(".embeddings"))
    with torch.no_grad():
        twice = model(inputs_embeds=block(ids)).logits
        once = model(ids).logits
    assert not torch.allclose(twice, once, atol=1e-3)


def test_a_route_that_changes_the_output_is_refused_and_the_hook_is_not():
    """Pegasus scales what it looks up, but not what it is given: there the routes are not equivalent."""
    model = tiny("pegasus", scale_embedding=True)
    assert gradient(model, text=IDS, max_new_tokens=2).settings["route"] == "hook"
    with pytest.raises(InputError, match="gave no way to its word embeddings .inputs_embeds: the output changes by"):
        gradient(model, text=IDS, max_new_tokens=2, route="inputs_embeds")


def test_reductions_by_hand():
    grad, _ = by_hand("bert")
    naive = {
        "abs_sum": grad.abs().sum(-1), "l2": (grad**2).sum(-1).sqrt(), "sum": grad.sum(-1), "mean": grad.mean(-1),
        "max": grad.abs().max(-1).values, "abs_of_sum": grad.sum(-1).abs(),
    }  # fmt: skip
    for name, expected in naive.items():
        found = gradient(tiny("bert"), text=IDS, reduce=name)
        np.testing.assert_allclose(found.scores[0], expected.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert set(naive) | {"paper"} == set(REDUCTIONS)


def test_the_papers_reduction_is_the_sum_of_the_gradient_of_p0_minus_p1():
    grad, _ = by_hand("bert", value=lambda row: row.softmax(-1)[0] - row.softmax(-1)[1])
    found = gradient(tiny("bert"), text=IDS, reduce="paper")
    np.testing.assert_allclose(found.scores[0], grad.sum(-1).abs().numpy(), rtol=1e-4, atol=1e-7)
    assert found.settings["target"] == [0, 1] and found.settings["score"] == "prob"


def test_the_papers_reduction_contrasts_with_the_next_best_of_many():
    def value(row):
        best = row.topk(2).indices
        return row.softmax(-1)[best[0]] - row.softmax(-1)[best[1]]

    grad, _ = by_hand("llama", value=value)
    found = gradient(tiny("llama"), text=IDS, reduce="paper")
    np.testing.assert_allclose(found.scores[0], grad.sum(-1).abs().numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_integrated_gradients_report_how_complete_they_are(name):
    model, inputs = tiny(name), {"input_ids": torch.tensor([IDS])}
    found = gradient(model, text=IDS, method="integrated_gradients", reduce="sum", steps=64, batch_size=50)
    with torch.no_grad():
        zero = find(model, inputs).run(model, inputs, [torch.zeros(1, len(IDS), 16)]).logits
    zero = zero[0] if zero.ndim == 2 else zero[0, -1]
    gap = found.settings["value"] - float(zero[found.settings["target"]])
    assert found.settings["convergence_delta"] == pytest.approx(abs(found.scores.sum() - gap), abs=1e-4)
    near = gradient(model, text=IDS, method="integrated_gradients", baseline=9, steps=64)
    assert near.settings["convergence_delta"] < 0.05 and near.settings["baseline"] == 9


def test_a_baseline_may_be_a_token():
    model = tiny("bert")
    by_name = gradient(model, tokenizer(), "the film was great", method="integrated_gradients", baseline="pad")
    by_id = gradient(model, tokenizer(), "the film was great", method="integrated_gradients", baseline=0)
    zero = gradient(model, tokenizer(), "the film was great", method="integrated_gradients")
    np.testing.assert_allclose(by_name.scores, by_id.scores)
    assert not np.allclose(by_name.scores, zero.scores)


def test_batches_do_not_change_integrated_gradients():
    a = gradient(tiny("bert"), text=IDS, method="integrated_gradients", batch_size=32)
    b = gradient(tiny("bert"), text=IDS, method="integrated_gradients", batch_size=5)
    np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-7)


def test_chance_is_fixed_and_the_callers_is_left_alone():
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    a = gradient(tiny("bert"), text=IDS, method="gradient_shap", batch_size=7)
    assert (torch.rand(1), np.random.rand()) == expected
    b = gradient(tiny("bert"), text=IDS, method="gradient_shap", batch_size=7)
    np.testing.assert_array_equal(a.scores, b.scores)


def test_a_list_gives_a_list_and_padding_changes_nothing():
    texts = ["the film was great", "the key to the cabinets is on the table"]
    together = gradient(tiny("bert"), tokenizer(), texts)
    for text, found in zip(texts, together, strict=True):
        alone = gradient(tiny("bert"), tokenizer(), text)
        assert found.tokens == alone.tokens
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-5)
    batch = tokenizer()(texts, padding=True, return_tensors="pt")
    np.testing.assert_allclose(gradient(tiny("bert"), tokenizer(), batch)[0].scores, together[0].scores, rtol=1e-5)


def test_words_are_sums_of_pieces():
    found = gradient(tiny("bert"), tokenizer(), "the cabinets")
    assert found.tokens == ("[CLS]", "the", "cab", "##inets", "[SEP]")
    assert found.words().scores[0, 2] == pytest.approx(found.scores[0, 2:4].sum())


def test_image_patches_by_hand():
    model, image = tiny("vit"), torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    pixels = image.clone().requires_grad_()
    row = model(pixels).logits[0]
    (grad,) = torch.autograd.grad(row[row.argmax()], pixels)
    found = gradient(model, inputs={"pixel_values": image})
    assert found.tokens[1] == "patch 0,0" and np.isnan(found.scores[0, 0]) and len(found.tokens) == 10
    patch = grad[0, :, 8:16, 16:24].abs().sum()
    assert found.scores[0, found.tokens.index("patch 1,2")] == pytest.approx(float(patch), rel=1e-4)
    whole = gradient(model, inputs={"pixel_values": image}, method="integrated_gradients", reduce="sum", steps=64)
    assert whole.settings["convergence_delta"] < 1e-2


@pytest.mark.parametrize("name", ["bert", "t5", "vit", "llama"])
def test_nothing_of_the_model_is_changed_also_on_failure(name):
    model = tiny(name)
    before = state(model)
    given = {"inputs": {"pixel_values": torch.zeros(1, 3, 24, 24)}} if name == "vit" else {"text": IDS}
    with torch.inference_mode():
        gradient(model, **given, method="integrated_gradients", steps=2)
    with pytest.raises(SelectionError):
        gradient(model, **given, target=10**6)

    def broken(outputs):
        raise RuntimeError("broken target")

    with pytest.raises(RuntimeError, match="broken target"):
        gradient(model, **given, target=broken)
    assert state(model) == before


def test_dropout_is_off_while_it_runs_and_on_again_after():
    model = tiny("bert")
    calm = gradient(model, text=IDS)
    model.train()
    try:
        np.testing.assert_allclose(gradient(model, text=IDS).scores, calm.scores, rtol=1e-5)
        assert model.training and all(m.training for m in model.modules())
    finally:
        model.eval()


def test_a_callers_grad_is_kept():
    model = tiny("bert")
    weight = next(model.parameters())
    weight.grad = torch.full_like(weight, 2.0)
    try:
        gradient(model, text=IDS)
        assert torch.equal(weight.grad, torch.full_like(weight, 2.0))
    finally:
        weight.grad = None


def test_errors_name_the_choices():
    model = tiny("bert")
    with pytest.raises(SelectionError, match="method='lime' is not known. Use one of: saliency, input_x_gradient"):
        gradient(model, text=IDS, method="lime")
    with pytest.raises(SelectionError, match="reduce='l3' is not known. Use one of: abs_sum, l2"):
        gradient(model, text=IDS, reduce="l3")
    with pytest.raises(SelectionError, match="route='x' is not known. Use 'auto', 'hook'"):
        gradient(model, text=IDS, route="x")
    with pytest.raises(SelectionError, match="steps=0, but at least 1"):
        gradient(model, text=IDS, steps=0)
    with pytest.raises(SelectionError, match="baseline='mask', but no tokenizer is given. Use 'zero' or the id"):
        gradient(model, text=IDS, method="integrated_gradients", baseline="mask")
    with pytest.raises(SelectionError, match="baseline='pad', but an image has no tokens. Use baseline='zero'"):
        pixels = {"pixel_values": torch.zeros(1, 3, 24, 24)}
        gradient(tiny("vit"), inputs=pixels, method="integrated_gradients", baseline="pad")
    with pytest.raises(CaptureError, match="model is a list, not a torch module"):
        gradient([1], text=IDS)
    with pytest.raises(InputError, match="'no-such-model' could not be loaded.*Give a folder"):
        gradient("no-such-model", text=IDS)
    with pytest.raises(InputError, match="Nothing to score in inputs_embeds"):
        gradient(model, inputs={"inputs_embeds": torch.zeros(1, 3, 16)})


def test_a_path_with_too_few_steps_says_how_far_off_it_is():
    with pytest.warns(AttnFlowWarning, match=r"integrated_gradients: the scores miss F\(x\) − F\(baseline\).*steps=4"):
        found = gradient(tiny("bert"), tokenizer(), [1, 5, 6, 7, 2], method="integrated_gradients", steps=1)
    assert "after 1 steps" in found.notes[-1]
    near = gradient(tiny("bert"), tokenizer(), [1, 5, 6, 7, 2], method="integrated_gradients", steps=64)
    assert not any("miss" in note for note in near.notes)


# Whether everything that reads the word embeddings reads them through a norm that removes the mean.
@pytest.mark.parametrize(
    ("name", "cancels"), [("bert", True), ("distilbert", True), ("roberta", True), ("gpt2", True), ("llama", False)]
)
def test_adding_to_all_dimensions_changes_nothing_behind_a_layer_norm(name, cancels):
    """The shift-invariance that makes Σg zero, shown on the model itself, and the ratio that follows from it."""
    model, ids = tiny(name), torch.tensor([IDS])
    words = model.get_input_embeddings()(ids).detach()
    with torch.no_grad():
        moved = [model(inputs_embeds=words + shift, attention_mask=torch.ones_like(ids)).logits for shift in (0.0, 0.3)]
    assert torch.allclose(*moved, atol=1e-4) is cancels
    grad, _ = by_hand(name)
    assert (float(grad.sum(-1).abs().sum() / grad.abs().sum()) < NOISE) is cancels


def test_rounding_error_is_a_doubt_and_says_nothing_of_what_was_drawn_on():
    from attnflow.views.terminal import head

    with pytest.warns(AttnFlowWarning, match="rounding error"):
        noise = gradient(tiny("bert"), None, IDS, reduce="abs_of_sum")
    assert noise.rounding < NOISE and "the scores are rounding error: " in noise.informative.doubts[0]
    assert noise.informative.to_dict()["rounding"] == noise.rounding
    assert head([noise]) == []
    size = gradient(tiny("bert"), None, IDS)
    assert size.rounding is None and "rounding" not in size.informative.line and head([size])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no norm takes the mean away
        assert gradient(tiny("llama"), None, IDS, reduce="abs_of_sum").rounding is None


# Whether all that is made of words, positions and types goes through a norm: a residual connection keeps the scale.
@pytest.mark.parametrize(("name", "scaleless"), [
    *((name, True) for name in ("bert", "roberta", "distilbert", "albert", "deberta-v2", "bloom", "bart")),
    *((name, False) for name in ("gpt2", "gpt-neox", "llama", "t5", "xlnet", "pegasus")),
])  # fmt: skip
def test_the_scale_of_the_embeddings_is_ignored_behind_a_norm_alone(name, scaleless):
    model, before = tiny(name), state(tiny(name))
    example = one_example(model, None, IDS)
    assert (scale_share(example, example.goal(None, None, "logit")[0]) < SCALELESS) is scaleless
    assert state(model) == before


def test_the_share_left_of_the_product_by_hand():
    example = one_example(tiny("gpt2"), None, IDS)
    grad, words = by_hand("gpt2")
    product = grad * (words + tiny("gpt2").transformer.wpe.weight[: len(IDS)].detach())
    known = float(product.sum(-1).abs().sum() / product.abs().sum())
    assert scale_share(example, example.goal(None, None, "logit")[0]) == pytest.approx(known, rel=1e-4)


@pytest.mark.parametrize("reduce", CANCELLING)
def test_a_sum_of_dimensions_that_cancel_is_warned_of_with_its_ratio(reduce):
    with pytest.warns(AttnFlowWarning, match=r"\|Σg\| / Σ\|g\| is \de-\d\d, which is rounding error") as seen:
        found = gradient(tiny("bert"), text=IDS, reduce=reduce)
    assert found.notes[0] == str(seen[0].message) and "reduce='abs_sum'" in found.notes[0]


@pytest.mark.parametrize(("name", "options"), [
    ("bert", {"reduce": "abs_sum"}), ("bert", {"reduce": "l2"}), ("llama", {"reduce": "abs_of_sum"}),
    ("bert", {"reduce": "sum", "method": "input_x_gradient"}),
])  # fmt: skip
def test_a_sum_that_says_something_is_not_warned_of(name, options, recwarn):
    assert gradient(tiny(name), text=IDS, **options).notes == ()
    assert not [w for w in recwarn if issubclass(w.category, AttnFlowWarning)]


@pytest.mark.parametrize("method", METHODS)
def test_several_reductions_of_one_gradient_are_those_of_one_each(method):
    example = one_example(tiny("bert"), tokenizer(), [*IDS])
    goal, _ = example.goal(None, None, "logit")
    reduces = [name for name in REDUCTIONS if name != "paper"]
    with pytest.warns(AttnFlowWarning) if method == "saliency" else contextlib.nullcontext():
        together = reductions_of(example, goal, reduces, method=method, steps=8)
        for reduce in reduces:
            alone = gradient_of(example, goal, method=method, reduce=reduce, steps=8)
            assert together[reduce].scores.tolist() == alone.scores.tolist()
            assert together[reduce].settings == alone.settings and together[reduce].notes == alone.notes


def test_the_papers_reduction_does_not_share_a_gradient():
    example = one_example(tiny("bert"), tokenizer(), [*IDS])
    goal, _ = example.goal(None, None, "logit")
    with pytest.raises(SelectionError, match="reduce='paper' is of p₀ − p₁ and cannot share a gradient"):
        reductions_of(example, goal, ("abs_sum", "paper"))
