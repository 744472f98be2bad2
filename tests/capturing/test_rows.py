"""``capture(rows=…)``: the rows of a full capture, by the model's own kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from attnflow import Attention, AttnFlowError, capture, direct, raw, rollout
from attnflow.capturing.rows import row_numbers
from tests.capturing.test_restore import fingerprint
from tests.capturing.tiny import SMALL, _sharp

LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
SEQ2SEQ = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 40, "max_position_embeddings": 64,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2, "d_ff": 16, "vocab_size": 40}
BLOOM = {"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40}
ROWS = [3, -1, 0]


def build(kind: str, sizes: dict[str, Any], implementation: str = "sdpa", **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(tf, kind.split("For")[0].removesuffix("Model").removesuffix("LMHead") + "Config")(**sizes, **more)
    config._attn_implementation = implementation
    return _sharp(getattr(tf, kind)(config)).eval()


def llama(implementation: str = "sdpa", **more: Any) -> Any:
    return build("LlamaForCausalLM", LLAMA, implementation, **more)


MODELS = {
    "llama": lambda: llama(),
    "llama eager": lambda: llama("eager"),
    "bert": lambda: build("BertModel", SMALL),
    "mistral, window 4": lambda: build("MistralForCausalLM", LLAMA, sliding_window=4),
    "gemma2, soft-cap": lambda: build("Gemma2ForCausalLM", LLAMA, "eager", head_dim=8, sliding_window=4),
    "gpt_oss, sinks": lambda: build(
        "GptOssForCausalLM", LLAMA, "eager", head_dim=8, num_local_experts=2, num_experts_per_tok=1
    ),
    "bloom, tap": lambda: build("BloomForCausalLM", BLOOM, "eager"),
}  # fmt: skip


def ids(n: int = 9) -> list[int]:
    return torch.randint(3, 40, (n,), generator=torch.Generator().manual_seed(n)).tolist()


@pytest.mark.parametrize("heads", ["mean", "max", "all", 1])
@pytest.mark.parametrize("name", MODELS)
def test_the_rows_of_a_full_capture(name: str, heads: Any) -> None:
    model = MODELS[name]()
    before = fingerprint(model)
    whole, some = (capture(model, None, ids(), heads=heads, **given) for given in ({}, {"rows": ROWS}))
    assert some.only.rows == (3, 8, 0) and some.only.keys == whole.only.keys
    assert list(some.only.queries) == ["3", "8", "0"]
    np.testing.assert_allclose(some.weights, whole.weights[..., [3, 8, 0], :], atol=1e-6)
    assert fingerprint(model) == before


@pytest.mark.parametrize("edges", ["norm", "alti", "value_zeroing"])
@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith(("gpt_oss", "bloom"))])
def test_the_rows_of_other_edges(name: str, edges: str) -> None:
    model = MODELS[name]()
    whole, some = (capture(model, None, ids(), edges=edges, **given) for given in ({}, {"rows": ROWS}))
    np.testing.assert_allclose(some.weights, whole.weights[:, [3, 8, 0]], atol=1e-6)
    if edges != "value_zeroing":
        assert some.certificate is not None and max(some.certificate.values()) < 1e-3


def test_mixing_ratios_and_gradient_edges_of_some_rows() -> None:
    model = llama()
    whole, some = (capture(model, None, ids(), mixing=True, **given) for given in ({}, {"rows": ROWS}))
    for mine, all_of_them in zip(some.only.mixing or (), whole.only.mixing or (), strict=True):
        np.testing.assert_allclose(mine, all_of_them[[3, 8, 0]], atol=1e-6)
    whole, some = (capture(model, None, ids(), edges="gradient", **given) for given in ({}, {"rows": ROWS}))
    np.testing.assert_allclose(some.weights, whole.weights[:, [3, 8, 0]], atol=1e-6)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("edges", ["attention", "alti"])
@pytest.mark.parametrize("kind", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_rows_are_the_decoders(kind: str, edges: str, implementation: str) -> None:
    model = build(kind, SEQ2SEQ if kind.startswith("Bart") else T5, implementation, decoder_start_token_id=2)
    # In single precision the two kernels themselves differ by 2e-6 where scores are large and not scaled.
    model, close = model.double(), 1e-6
    given = {"input_ids": torch.tensor([ids(7)]), "decoder_input_ids": torch.tensor([ids(7)])}
    whole, some = (capture(model, inputs=given, edges=edges, **more) for more in ({}, {"rows": [1, -1]}))
    for block in ("decoder", "cross"):
        for mine, all_of_them in zip(some[block].weights, whole[block].weights, strict=True):
            np.testing.assert_allclose(mine, all_of_them[[1, 6]], atol=close)
    assert some["encoder"].rows is None and some["encoder"].weights[0].shape == (7, 7)
    np.testing.assert_allclose(direct(some).scores, direct(whole).scores[:, [1, 6]], atol=close)


def test_no_matrix_of_all_rows_is_made(monkeypatch: Any) -> None:
    """The kernel is given no mask, and the eager function sees two queries only."""
    from transformers.integrations import sdpa_attention

    from attnflow.capturing import plain

    masks, queries = [], []
    kernel, mine = torch.nn.functional.scaled_dot_product_attention, plain.attention

    def watched(*args: Any, **kwargs: Any) -> Any:
        masks.append(kwargs.get("attn_mask"))
        return kernel(*args, **kwargs)

    def noted(query: torch.Tensor, *rest: Any) -> Any:
        queries.append(query.shape[-2])
        return mine(query, *rest)

    monkeypatch.setattr(sdpa_attention.torch.nn.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(plain, "attention", noted)
    capture(llama(), None, ids(), rows=[2, 5])
    assert masks == [None] * 2 and set(queries) == {2}


def test_a_model_that_gives_its_mask_by_name(monkeypatch: Any) -> None:
    """As the towers of some models of images and text do."""
    from transformers.models.llama import modeling_llama

    real = modeling_llama.ALL_ATTENTION_FUNCTIONS

    class ByName:
        @staticmethod
        def get_interface(*given: Any) -> Any:
            function = real.get_interface(*given)
            return lambda module, q, k, v, mask, **more: function(module, q, k, v, attention_mask=mask, **more)

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", ByName)
    model = llama()
    whole, some = capture(model, None, ids()), capture(model, None, ids(), rows=[4])
    np.testing.assert_allclose(some.weights, whole.weights[:, [4]], atol=1e-6)


def test_methods_read_rows_or_say_what_they_need() -> None:
    model = llama()
    whole, some = capture(model, None, ids()), capture(model, None, ids(), rows=[4, 7])
    np.testing.assert_allclose(raw(some).scores, raw(whole).scores[:, [4, 7]], atol=1e-6)
    np.testing.assert_allclose(direct(some, position=1).scores, direct(whole, position=7).scores, atol=1e-6)
    with pytest.raises(AttnFlowError, match=r"holds 2 rows of 9 positions.*direct\(attention\)"):
        rollout(some)


def test_saved_and_loaded(tmp_path: Any) -> None:
    some = capture(llama(), None, ids(), rows=[4, 7])
    some.save(tmp_path / "a.safetensors")
    again = Attention.load(tmp_path / "a.safetensors")
    assert again.only.rows == (4, 7) and again.only.causal
    np.testing.assert_array_equal(again.weights, some.weights)


def test_texts_one_by_one_with_layers() -> None:
    from attnflow import demo

    texts = ["the key to the doors", "the author"]
    found = capture(demo.model(), demo.tokenizer(), texts, rows=-1, layers=[1])
    for one, text in zip(found, texts, strict=True):
        single = capture(demo.model(), demo.tokenizer(), text, layers=[1])
        np.testing.assert_allclose(one.weights[:, 0], single.weights[:, -1], atol=1e-6)


def test_padding_on_the_left_counts_no_row() -> None:
    given = {"input_ids": torch.tensor([[0, 0, *ids(6)]]), "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]])}
    model = llama()
    whole, some = capture(model, inputs=given), capture(model, inputs=given, rows=[0, 5])
    np.testing.assert_allclose(some.weights, whole.weights[:, [0, 5]], atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": [9]}, r"row 9 was asked for, but there are 9 output positions: use 0 to 8"),
        ({"rows": []}, r"rows=\[\], but there are 9"),
        ({"rows": [0, -9]}, r"name a position twice"),
        ({"rows": [0], "gradients": True}, r"gradients=, which needs the weights of all rows"),
        ({"rows": [0], "replace": lambda call, weights: None}, r"replace=, which needs"),
    ],
)
def test_bad_rows(given: dict[str, Any], said: str) -> None:
    with pytest.raises(AttnFlowError, match=said):
        capture(llama(), None, ids(), **given)


def test_bad_batches() -> None:
    with pytest.raises(AttnFlowError, match="batch of 2 in one dict"):
        capture(llama(), inputs={"input_ids": torch.tensor([ids(), ids()])}, rows=[0])
    with pytest.raises(AttnFlowError, match="without a text"):
        capture(llama(), rows=[0])


def test_a_list_of_texts_keeps_its_second_texts() -> None:
    from attnflow import demo

    model, words = demo.model(), demo.tokenizer()
    texts, pairs = ["the key", "the keys"], ["is here", "are here"]
    found = capture(model, words, texts, text_pair=pairs, rows=[0])
    for one, text, pair in zip(found, texts, pairs, strict=True):
        want = capture(model, words, text, text_pair=pair, rows=[0])
        assert one.tokens == want.tokens and one.tokens[-2:] == tuple(pair.split())
        np.testing.assert_array_equal(one.weights, want.weights)
    for given in ("is here", pairs[:1]):
        with pytest.raises(AttnFlowError, match="2 texts and 1 in text_pair: give one for each"):
            capture(model, words, texts, text_pair=given, rows=[0])


def test_a_list_of_texts_has_a_target_each() -> None:
    from attnflow import demo

    given: dict[str, Any] = {"edges": "gradient", "rows": [0]}
    model, words, texts = demo.model(), demo.tokenizer(), ["the key", "the keys"]
    found = capture(model, words, texts, target=[0, 1], **given)
    for one, text, target in zip(found, texts, (0, 1), strict=True):
        np.testing.assert_array_equal(one.weights, capture(model, words, text, target=target, **given).weights)


def test_scores_of_some_rows_know_which_positions_they_are_of() -> None:
    some = capture(llama(), None, ids(), rows=[4, 7])
    for method in (raw, direct):
        assert method(some, position=1).position == method(some).at(position=1).position == 7
        assert method(some).kept_rows == (4, 7)


def test_row_numbers() -> None:
    assert row_numbers(-1, 3) == (2,) and row_numbers((0, 1), 2) == (0, 1)
