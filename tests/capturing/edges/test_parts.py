"""Layers whose parts are known by hand, and what must not change them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from attnflow.capturing import plain
from attnflow.capturing.capture import capture
from attnflow.capturing.edges import chain, kernels, parts
from attnflow.capturing.reduce import Reduction
from attnflow.errors import CaptureError, SelectionError
from tests.capturing import tiny
from tests.zoo.check import differences, snapshot

IDS = {"input_ids": torch.tensor([[3, 1, 4, 5]])}


def gpt2(heads: int = 2, width: int = 8) -> Any:
    """One layer whose values are its normed inputs and whose projection is the identity."""
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": width, "n_head": heads, "vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2}
    model = tf.GPT2Model(tf.GPT2Config(**sizes)).eval()
    layer = model.h[0]
    with torch.no_grad():
        layer.attn.c_attn.weight.normal_()
        layer.attn.c_attn.weight[:, 2 * width :] = torch.eye(width)
        layer.attn.c_attn.bias.zero_()
        layer.attn.c_proj.weight.copy_(torch.eye(width))
        layer.attn.c_proj.bias.fill_(0.3)
    return model


def states(model: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The layer's input x, its norm, and the attention of each head."""
    x = model.wte(IDS["input_ids"]) + model.wpe(torch.arange(4))
    weights = capture(model, inputs=IDS, heads="all").only.weights[0]
    return x[0].detach().numpy(), model.h[0].ln_1(x)[0].detach().numpy(), weights


def parts_of(x: np.ndarray, v: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """T [n, n, e] of identity values: each head moves its own channels."""
    heads = len(weights)
    t = np.concatenate([weights[h][:, :, None] * np.split(v, heads, 1)[h][None] for h in range(heads)], -1)
    return t + np.eye(len(x))[:, :, None] * x[:, None]


def rows(c: np.ndarray) -> np.ndarray:
    return c / c.sum(-1, keepdims=True)


def test_identity_values():
    model = gpt2()
    x, v, weights = states(model)
    t = parts_of(x, v, weights)
    y = t.sum(1) + 0.3
    far = np.abs(y[:, None] - t).sum(-1)
    alti = rows(np.clip(np.abs(y).sum(-1)[:, None] - far, 0, None))
    got = capture(model, inputs=IDS, edges="norm")
    assert np.allclose(got.weights[0], rows(np.linalg.norm(t, axis=-1)), atol=1e-6)
    assert np.allclose(capture(model, inputs=IDS, edges="alti").weights[0], alti, atol=1e-5)
    assert (got.edges, got.residual_inside, got.only.causal) == ("norm", True, True)
    assert got.certificate is not None and got.certificate["self"] < 1e-6


def test_a_head_that_is_switched_off_brings_nothing():
    model = gpt2()
    with torch.no_grad():
        model.h[0].attn.c_proj.weight[4:] = 0
    x, v, weights = states(model)
    weights = np.stack([weights[0], np.zeros_like(weights[1])])
    t = parts_of(x, v, weights)
    got = capture(model, inputs=IDS, edges="norm").weights[0]
    assert np.allclose(got, rows(np.linalg.norm(t, axis=-1)), atol=1e-6)
    with torch.no_grad():
        model.h[0].attn.c_proj.weight.zero_()
    assert np.array_equal(capture(model, inputs=IDS, edges="norm").weights[0], np.eye(4))
    assert np.array_equal(capture(model, inputs=IDS, edges="alti").weights[0], np.eye(4))


def test_without_a_residual_and_with_equal_values_the_edges_are_the_attention():
    model = gpt2(heads=1)
    with torch.no_grad():
        model.wte.weight.zero_()
        model.wpe.weight.zero_()  # x = 0: the norm gives its bias for every position
        model.h[0].ln_1.bias.copy_(torch.randn(8))
        model.h[0].attn.c_attn.bias.normal_()
        model.h[0].attn.c_attn.bias[:8] = 0  # no queries: uniform attention
    x, _, weights = states(model)
    assert not x.any()
    assert np.allclose(capture(model, inputs=IDS, edges="norm").weights[0], weights[0], atol=1e-6)
    assert capture(model, inputs=IDS, mixing=True).only.mixing[0] == pytest.approx([0, 0.5, 2 / 3, 0.75], abs=1e-6)


@pytest.mark.parametrize("edges", ["norm", "alti"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mpnet", "bart"])
def test_a_batch_is_as_one_by_one(name: str, edges: str):
    model = tiny.model(name)
    long, short = torch.tensor([5, 6, 7, 8, 9, 3, 4]), torch.tensor([5, 9, 4])
    sides = ["right", "left"] if name in ("gpt2", "llama") else ["right"]
    for side in sides:
        ids, mask = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
        for row, one in enumerate((long, short)):
            at = slice(0, len(one)) if side == "right" else slice(7 - len(one), 7)
            ids[row, at], mask[row, at] = one, 1
        given = {"input_ids": ids, "attention_mask": mask}
        if name == "bart":
            given["decoder_input_ids"] = torch.tensor([[2, 5, 6], [2, 9, 4]])
        both = capture(model, inputs=given, edges=edges)
        for row, one in enumerate((long, short)):
            alone = {"input_ids": one[None], "attention_mask": torch.ones(1, len(one), dtype=torch.long)}
            if name == "bart":
                alone["decoder_input_ids"] = given["decoder_input_ids"][row : row + 1]
            if name in ("gpt2", "llama"):
                alone["position_ids"] = torch.arange(len(one))[None]
            single = capture(model, inputs=alone, edges=edges)
            for block in single.blocks:
                for a, b in zip(both[row][block].weights, single[block].weights, strict=True):
                    assert np.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "falcon"])
def test_half_precision(name: str):
    wide = capture(tiny.model(name), inputs={"input_ids": torch.tensor([tiny.IDS])}, edges="norm")
    half = capture(tiny.model(name).to(torch.bfloat16), inputs={"input_ids": torch.tensor([tiny.IDS])}, edges="norm")
    assert half.weights.dtype == np.float32
    assert np.abs(half.weights - wide.weights).max() < 0.05
    assert 1e-5 < half.certificate["self"] < 3.2e-2


def test_cross_attention_keeps_the_share_of_the_residual_apart():
    model = tiny.model("bart")
    given = {"input_ids": torch.tensor([tiny.IDS]), "decoder_input_ids": torch.tensor([[2, 5, 6]])}
    got = capture(model, inputs=given, edges="norm")
    cross = got["cross"]
    assert cross.weights[0].shape == (3, 7) and np.allclose(cross.weights[0].sum(-1), 1, atol=1e-6)
    assert cross.mixing is not None and all((r > 0).all() and (r < 1).all() for r in cross.mixing)
    assert got["decoder"].mixing is None


def test_generated_tokens_have_their_own_position():
    model = tiny.model("gpt2")
    prompt = torch.tensor([[5, 6, 7]])
    with capture(model, edges="norm") as taken:
        out = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    whole = capture(model, inputs={"input_ids": out[:, :-1]}, edges="norm")
    assert np.allclose(taken.attention.weights, whole.weights, atol=1e-5)
    assert taken.attention.edges == "norm" and taken.attention.residual_inside


class Bent(nn.Module):
    """A projection with a bend in it: its parts do not add up."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x))


def test_a_layer_that_is_not_linear_is_refused_and_left_as_it_was():
    model = tiny.model("bert")
    model.encoder.layer[1].attention.output.dense = Bent(model.encoder.layer[1].attention.output.dense)
    before = snapshot(model)
    words = r"encoder.layer.1.attention.self .BertSelfAttention, layer 1. .*'tanh'.*Use edges='value_zeroing'"
    with pytest.raises(CaptureError, match=words):
        capture(model, inputs={"input_ids": torch.tensor([tiny.IDS])}, edges="norm")
    assert differences(before, snapshot(model)) == []
    # The layer that can be decomposed still is.
    got = capture(model, inputs={"input_ids": torch.tensor([tiny.IDS])}, edges="norm", layers=0)
    assert got.layers == (0,)


def test_a_sum_that_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    from attnflow.capturing.edges import parts

    true = parts.Parts.attention
    monkeypatch.setattr(parts.Parts, "attention", lambda found: true(found) * 1.01)
    with pytest.raises(CaptureError, match=r"add up to something else than the model computed .relative error 0.0"):
        capture(tiny.model("llama"), inputs={"input_ids": torch.tensor([tiny.IDS])}, edges="norm")


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_the_product_of_the_model_itself_is_taken_where_it_is_one(name: str, monkeypatch: pytest.MonkeyPatch):
    """The certificate reads the model's own projection, also behind a norm; edges are the same without that."""
    taken: list[bool] = []
    true = chain._State._off

    def off(state: Any) -> float:
        found = true(state)
        taken.append(0 < found < 1e-5)
        return found

    monkeypatch.setattr(chain._State, "_off", off)
    model, given = tiny.model(name), {"input_ids": torch.tensor([tiny.IDS])}
    wanted = capture(model, inputs=given, edges="norm").only
    assert taken and all(taken)
    taken.clear()
    monkeypatch.setattr(chain, "_direction", lambda width, *_: torch.full((width,), float("nan")))
    found = capture(model, inputs=given, edges="norm")
    assert taken and not any(taken)
    assert np.array_equal(found.only.weights, wanted.weights)
    assert found.certificate is not None and max(found.certificate.values()) < 1e-5


def test_a_projection_that_was_written_to_behind_torchs_back_is_refused():
    model, given = tiny.model("llama"), {"input_ids": torch.tensor([tiny.IDS])}

    def spoil(module: Any, args: Any, out: torch.Tensor) -> None:
        out.data[:, 1] *= 2

    with (
        model.model.layers[1].self_attn.o_proj.register_forward_hook(spoil),
        pytest.raises(CaptureError, match=r"add up to something else than the model computed .relative error 0.[2-9]"),
    ):
        capture(model, inputs=given, edges="norm")


def test_what_cannot_be_asked_for():
    model, given = tiny.model("bert"), {"input_ids": torch.tensor([tiny.IDS])}
    with pytest.raises(SelectionError, match="edges='values' is not known. Use 'attention', 'norm', 'alti'"):
        capture(model, inputs=given, edges="values")
    with pytest.raises(SelectionError, match="edges='norm' and heads='max', but a part holds what all heads brought"):
        capture(model, inputs=given, edges="norm", heads="max")
    with pytest.raises(SelectionError, match="cannot be had together with gradients= or replace="):
        capture(model, inputs=given, edges="attention", mixing=True, replace=lambda call, weights: None)


def test_no_trace_is_left_in_the_model_and_in_the_inputs():
    model, embedded = tiny.model("bert"), torch.randn(1, 5, 16)
    before = snapshot(model)
    got = capture(model, inputs={"inputs_embeds": embedded}, edges="alti")
    assert got.weights.shape == (2, 5, 5)
    assert differences(before, snapshot(model)) == []
    assert not vars(embedded)
    assert not any("_attnflow" in name for t in [*model.buffers(), *model.parameters()] for name in vars(t))


def test_other_devices_compute_the_same():
    torch.manual_seed(0)
    w, heads, y = torch.rand(2, 3, 5, 4), torch.randn(2, 3, 4, 6), torch.randn(2, 5, 6)
    w[0, :, 2, 1] = 0
    scale = torch.rand(2, 5)
    one, two = kernels.distances(w, heads, scale, y), kernels._by_products(w, heads, scale, y)
    assert torch.allclose(one, two, atol=1e-5) and one[0, 2, 1] == 0
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        two = kernels.distances(w, heads, scale, y)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, two)
    later = kernels.distances(w, heads[:, :, 3:], scale, y, 3)
    assert torch.equal(later, one[..., 3:])


@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize(("n", "width"), [(1, 1), (6, 33), (41, 100)])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_distances_are_those_of_the_vectors(count: int, n: int, width: int, precision: torch.dtype):
    """Rows and coordinates that fill no whole vector, causal rows, and a value of zero, which brings nothing."""
    torch.manual_seed(count)
    w, heads = torch.rand(2, count, n, n, dtype=precision).tril(), torch.randn(2, count, n, width, dtype=precision)
    y, scale = torch.randn(2, n, width, dtype=precision), torch.rand(2, n, dtype=precision)
    heads[1, :, n // 2] = 0
    t = torch.einsum("bhij,bhje->bije", w, heads) * scale[..., None, None]
    wanted = (y.abs().sum(-1)[..., None] - (y[:, :, None] - t).abs().sum(-1)) * w.sum(1).ne(0)
    found = kernels.distances(w, heads, scale, y)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4 if precision == torch.float32 else 1e-10)
    assert not found[1, :, n // 2].any() and torch.equal(found, found.tril())


def test_memory_that_is_used_again_holds_nothing_of_the_call_before():
    """A layer that sees a window after one that sees all before, and the other way round."""
    torch.manual_seed(0)
    low = torch.finfo(torch.float32).min
    full = torch.full((40, 40), low).triu(1)[None, None]
    window = full + torch.full((40, 40), low).tril(-5)
    window[window < low] = low
    query, key, value = torch.randn(3, 1, 4, 40, 8).unbind()
    held, every = plain.Held.of(query, key[:, :2]), Reduction("all", torch.float32)
    for mask in (full, window, window, full, None, window):
        given = (query, key[:, :2], value[:, :2], mask, None, every, 16)
        wanted, found = plain.attention(*given, {}), plain.attention(*given, {}, held)
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])
    assert held.fits(query, key) and not held.fits(query[:, :, :3], key)


def test_lengths_are_those_of_the_vectors():
    torch.manual_seed(0)
    w, heads = torch.rand(2, 3, 5, 70), torch.randn(2, 3, 70, 6)
    w[0, :, 2] = 0
    w[1, 0, 3, 64:] = 0
    t = torch.einsum("bhij,bhje->bije", w, heads)
    found = kernels.lengths(w, gram(heads)[0])
    assert torch.allclose(found, t.norm(dim=-1), atol=1e-5) and not found[0, 2].any()


def gram(vectors: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``products`` of head vectors [B, H, m, e] that are given: each head's matrix leaves its values as they are."""
    heads, wide = vectors.shape[1], vectors.shape[-1]
    return kernels.products(vectors, torch.eye(wide, dtype=vectors.dtype).repeat(heads, 1), residual)


@pytest.mark.parametrize("shape", [(1, 1, 7, 6, 5), (2, 1, 40, 8, 96), (5, 5, 130, 3, 50), (8, 2, 300, 16, 49)])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_products_are_those_of_a_gram_matrix(shape: tuple[int, ...], precision: torch.dtype):
    """Heads that share values; fewer and more positions and channels than are taken at once; with a residual or not."""
    heads, groups, m, width, wide = shape
    torch.manual_seed(0)
    values, matrix = (
        torch.randn(2, groups, m, width, dtype=precision),
        torch.randn(heads * width, wide, dtype=precision),
    )
    residual = torch.randn(2, m, wide, dtype=precision)
    vectors = values.repeat_interleave(heads // groups, 1) @ matrix.view(heads, width, wide)
    products = torch.einsum("bhje,bgje->bjhg", vectors, vectors)
    one, other = torch.triu_indices(heads, heads)
    wanted = (products[..., one, other] * (1 + (one != other))).transpose(1, 2)
    size = {"rtol": 1e-4, "atol": 1e-3} if precision == torch.float32 else {}
    for found in (kernels.products, kernels._products_by_vectors):
        pairs, beside = found(values, matrix, residual)
        torch.testing.assert_close(pairs, wanted, **size)
        torch.testing.assert_close(beside, torch.einsum("bhje,bje->bhj", vectors, residual), **size)
    # The same of a matrix that lies in memory the other way round, and without a residual.
    pairs, beside = kernels.products(values, matrix.T.contiguous().T)
    torch.testing.assert_close(pairs, wanted, **size)
    assert not beside.any()


@pytest.mark.parametrize("edges", ["norm", "alti"])
@pytest.mark.parametrize("name", ["bert", "llama", "gemma2", "bart"])
def test_rows_that_are_computed_again(name: str, edges: str, monkeypatch: pytest.MonkeyPatch):
    """Of a long input only some rows of the weights of all heads are held."""
    model = tiny.model(name)
    given = {"input_ids": torch.tensor([tiny.IDS, tiny.IDS[::-1]])}
    if name == "bart":
        given["decoder_input_ids"] = torch.tensor([[2, 5, 6]] * 2)
    wanted = capture(model, inputs=given, edges=edges, mixing=True)
    monkeypatch.setattr(plain, "HELD", 100)
    found = capture(model, inputs=given, edges=edges, mixing=True)
    for one, other in zip(found, wanted, strict=True):
        for block, same in zip(one.blocks.values(), other.blocks.values(), strict=True):
            assert np.allclose(block.weights, same.weights, atol=1e-6)
            assert np.allclose(block.mixing, same.mixing, atol=1e-6)
        assert one.certificate is not None and max(one.certificate.values()) < 1e-5


@pytest.mark.parametrize("heads", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [40, 700])
def test_products_and_lengths_equal_sums_of_vectors(heads, n):
    """Causal rows, which end early, over more positions than the kernel reads at a time."""
    torch.manual_seed(0)
    vectors = torch.randn(2, heads, n, 6, dtype=torch.float64)
    weights = torch.rand(2, heads, n, n, dtype=torch.float64).tril()
    weights[:, :, 3] = 0
    parts = torch.einsum("bhij,bhje->bije", weights, vectors)
    found = kernels.lengths(weights, gram(vectors)[0])
    torch.testing.assert_close(found, parts.norm(dim=-1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("start", [0, 30])
def test_lengths_with_a_residual_in_the_column_of_each_position_itself(start: int):
    """Scaled parts, of which that of the own position holds the residual; a position may have no weights at all."""
    torch.manual_seed(0)
    n, m = 70, 100
    heads, residual = torch.randn(2, 3, m, 6, dtype=torch.float64), torch.randn(2, n, 6, dtype=torch.float64)
    weights, scale = torch.rand(2, 3, n, m, dtype=torch.float64), torch.randn(2, n, dtype=torch.float64)
    weights[:, :, 5] = 0
    own = torch.arange(n) + start
    laid = torch.zeros(2, m, 6, dtype=torch.float64)
    laid[:, own] = residual
    pairs, given = gram(heads, laid)
    beside = kernels.Beside(own, given, residual.square().sum(-1))
    parts = torch.einsum("bhij,bhje->bije", weights, heads) * scale[..., None, None]
    parts[:, torch.arange(n), own] += residual
    for found in (kernels.lengths, kernels._lengths_by_products):
        torch.testing.assert_close(found(weights, pairs, scale, beside), parts.norm(dim=-1), rtol=1e-9, atol=1e-9)


def test_distances_of_rows_from_the_model():
    torch.manual_seed(0)
    mine, other, model = torch.randn(3, 2, 5, 7).unbind()
    model[0, 1, 2] = float("nan")
    for added in (None, other):
        far, size = kernels.apart(mine, added, model)
        torch.testing.assert_close(size, model.norm(dim=-1), equal_nan=True)
        expected = (mine if added is None else mine + added) - model
        torch.testing.assert_close(far, expected.norm(dim=-1), equal_nan=True)


def test_own_positions_in_any_order_are_the_same_parts():
    """Positions that follow one by one are read as slices, others one by one."""
    torch.manual_seed(0)
    weights, values, residual = torch.rand(1, 2, 4, 9), torch.randn(1, 2, 9, 3), torch.randn(1, 4, 6)
    found = {}
    for name, own in {"one by one": torch.arange(4) + 5, "in any order": torch.tensor([8, 6, 5, 7])}.items():
        sizes = parts.Sizes(1, 2, 4, 9, 6)
        given = parts.Parts(weights, values, own, sizes, torch.eye(6), residual=residual, y=residual)
        assert (given.start is None) == (name == "in any order")
        t = torch.einsum("bhij,bhjd->bijhd", weights, values).flatten(3)
        t[:, torch.arange(4), own] += residual
        expected = t.norm(dim=-1)
        torch.testing.assert_close(parts.norm(given)[0], expected)
        torch.testing.assert_close(
            parts.alti(given)[0].clamp(min=0),
            (residual.abs().sum(-1)[..., None] - (residual[:, :, None] - t).abs().sum(-1)).clamp(min=0),
            atol=1e-5, rtol=1e-5,
        )  # fmt: skip
        found[name] = parts.mixing(given)
    assert not torch.equal(found["one by one"], found["in any order"])
