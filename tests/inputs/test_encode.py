"""Every form of input becomes one batch with named positions, and every wrong one an error that says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding, PerceiverConfig, PerceiverForMaskedLM, PreTrainedTokenizerFast

from attnflow import AttnFlowError
from attnflow.errors import InputError
from attnflow.inputs.encode import encode
from attnflow.inputs.limits import position_limit
from attnflow.tokens import group_words
from tests.capturing import tiny

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "cab", "##inet", "##s", "is", "."]


def wordpiece(pad: bool = True) -> Any:
    raw = Tokenizer(models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    raw.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    named = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **named, **({"pad_token": "[PAD]"} if pad else {}))


def unsplit() -> Any:
    """A tokenizer that does not split at words, as Llama's: its own word ids are all 0."""
    vocabulary = {c: i for i, c in enumerate(["<unk>", *"▁thekyscabino."])}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")


TEXT = "the key cabinets [MASK]."


def test_a_text_and_its_words() -> None:
    inputs = encode(tiny.model("bert"), wordpiece(), TEXT)
    tokens = inputs.tokens[0]
    assert tokens == ("[CLS]", "the", "key", "cab", "##inet", "##s", "[MASK]", ".", "[SEP]")
    assert tokens.special == (True, False, False, False, False, False, False, False, True)
    assert tokens.marks == {"cls": 0, "mask": 6}
    assert group_words(tokens).tokens == ("[CLS]", "the", "key", "cabinets", "[MASK]", ".", "[SEP]")
    assert inputs.single and inputs.positions == (tuple(range(9)),) and inputs.length == 9


def test_words_of_a_tokenizer_that_splits_at_none() -> None:
    tokens = encode(tiny.model("llama"), unsplit(), "the key is").tokens[0]
    assert group_words(tokens).tokens == ("the", "key", "is")


@pytest.mark.parametrize(
    "form",
    [
        lambda t: t(TEXT, return_tensors="pt"),
        lambda t: dict(t(TEXT, return_tensors="pt")),
        lambda t: t(TEXT),
        lambda t: t(TEXT)["input_ids"],
        lambda t: torch.tensor(t(TEXT)["input_ids"]),
        lambda t: torch.tensor([t(TEXT)["input_ids"]]),
        lambda t: np.array(t(TEXT)["input_ids"]),
        lambda t: t(TEXT, padding="max_length", max_length=14, return_tensors="pt"),
    ],
)
def test_all_forms_name_the_same_tokens(form: Any) -> None:
    tokenizer, model = wordpiece(), tiny.model("bert")
    want = encode(model, tokenizer, TEXT).tokens[0]
    got = encode(model, tokenizer, form(tokenizer))
    assert got.single and len(got) == 1
    assert got.tokens[0] == want
    assert group_words(got.tokens[0]).tokens == group_words(want).tokens
    assert model(**got.batch).last_hidden_state.shape[0] == 1


@pytest.mark.parametrize(
    "form",
    [
        lambda t: ["the key", "is"],
        lambda t: t(["the key", "is"], padding=True, return_tensors="pt"),
        lambda t: t(["the key", "is"], padding=True, padding_side="left", return_tensors="pt"),
        lambda t: [[2, 5, 6, 3], [2, 10, 3]],
    ],
)
def test_lists(form: Any) -> None:
    tokenizer = wordpiece()
    got = encode(tiny.model("bert"), tokenizer, form(tokenizer))
    assert not got.single
    assert got.tokens == (("[CLS]", "the", "key", "[SEP]"), ("[CLS]", "is", "[SEP]"))


@pytest.mark.parametrize("rows", [[["a"], ["b"]], [[1, 2], ["x"]], [[["a"]]], (("a",),), [[1.5, 2]], [[[1]]]])
def test_rows_that_are_no_ids(rows: Any) -> None:
    with pytest.raises(InputError, match=r"Text \d \(from 0\) is the .*: give a str, or a row of ids"):
        encode(tiny.model("bert"), wordpiece(), rows)


def test_a_list_of_one_is_a_list() -> None:
    assert not encode(tiny.model("bert"), wordpiece(), ["the key"]).single


def test_padding_without_a_pad_token() -> None:
    tokenizer = wordpiece(pad=False)
    got = encode(tiny.model("bert"), tokenizer, ["the key", "is"])
    assert got.batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert got.settings["padding"] == "right" and "no pad token" in got.notes[0]
    assert tokenizer.pad_token is None


def test_ids_without_a_tokenizer_are_numbered() -> None:
    assert encode(tiny.model("bert"), None, [5, 6, 7]).tokens[0] == ("0", "1", "2")


@pytest.mark.parametrize("name", ["inputs", ["inputs", "task"]])
def test_a_model_says_how_its_main_inputs_are_called(name: Any) -> None:
    class Own(torch.nn.Module):
        main_input_name = name

        def forward(self, inputs: Any = None, input_ids: Any = None, task: Any = None) -> None: ...

    given = {"inputs": torch.ones(1, 3, 2)}
    assert encode(Own(), None, None, inputs=given).batch["inputs"] is given["inputs"]
    with pytest.raises(InputError, match="inputs"):
        encode(Own(), None, None, inputs={"attention_mask": torch.ones(1, 3)})


@pytest.mark.parametrize("one", [np.int64(5), np.array(5), torch.tensor(5)])
def test_one_number_is_no_row_of_ids(one: Any) -> None:
    with pytest.raises(InputError, match=r"ids have shape \(\): give one row of ids"):
        encode(tiny.model("bert"), None, one)


def test_a_processor_is_asked_for_its_tokenizer() -> None:
    processor = type("Processor", (), {"tokenizer": wordpiece()})()
    assert encode(tiny.model("bert"), processor, "the key").tokens[0][1:-1] == ("the", "key")


def test_left_padding_gets_its_own_positions() -> None:
    ids, mask = torch.tensor([[0, 0, 5, 6]]), torch.tensor([[0, 0, 1, 1]])
    got = encode(tiny.model("gpt2"), None, {"input_ids": ids, "attention_mask": mask})
    assert got.batch["position_ids"].tolist() == [[0, 0, 0, 1]]
    assert "position_ids" in got.settings
    own = encode(tiny.model("roberta"), None, {"input_ids": ids, "attention_mask": mask})
    assert "position_ids" not in own.batch


def test_decoders() -> None:
    model, tokenizer = tiny.model("t5"), wordpiece()
    free = encode(model, tokenizer, "the key", max_new_tokens=3)
    assert free.settings["decoder"] == "the model's own greedy output"
    assert free.batch["decoder_input_ids"].shape[1] <= 4
    told = encode(model, tokenizer, ["the key", "is"], text_target=["is the key", "is"])
    assert told.settings["decoder"] == "text_target"
    assert told.decoder_tokens == (("[PAD]", "[CLS]", "is", "the", "key"), ("[PAD]", "[CLS]", "is"))
    given = encode(model, None, {"input_ids": torch.tensor([[5, 6]]), "decoder_input_ids": torch.tensor([[0, 7]])})
    assert given.settings["decoder"] == "given" and given.decoder_positions == ((0, 1),)


def test_a_decoder_that_cannot_generate_gets_its_start_token() -> None:
    model = tiny.model("bart").model
    got = encode(model, None, [5, 6])
    assert got.settings["decoder"] == "start token" and got.batch["decoder_input_ids"].tolist() == [[2]]


def test_pictures() -> None:
    got = encode(tiny.model("vit"), inputs={"pixel_values": torch.randn(2, 3, 32, 32)})
    assert len(got) == 2 and got.tokens[0][:2] == ("[CLS]", "patch 0,0") and got.text_key == "pixel_values"


def test_a_main_input_with_a_name_of_its_own() -> None:
    """Perceiver's forward takes input_ids too, and its main input is called inputs."""
    sizes = {"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 1}
    model = PerceiverForMaskedLM(PerceiverConfig(**sizes, vocab_size=40, max_position_embeddings=16)).eval()
    given = {"inputs": torch.arange(3, 9)[None], "attention_mask": torch.ones(1, 6)}
    assert set(encode(model, inputs=given).batch) == set(given)
    with pytest.raises(InputError, match="reads input_ids or inputs, and attention_mask was given"):
        encode(model, inputs={"attention_mask": torch.ones(1, 6)})


def test_limits() -> None:
    assert position_limit(tiny.model("bert")) == 512
    assert position_limit(tiny.model("roberta")) == 511
    assert position_limit(tiny.model("t5")) is None


@pytest.mark.parametrize(
    ("name", "tokenizer", "text", "words"),
    [
        ("bert", wordpiece(), "", "The text '' is empty: it has 0 tokens of its own"),
        ("bert", wordpiece(), ["the", " "], "Text 1 ' ' is empty"),
        ("bert", wordpiece(), [], "empty list"),
        ("bert", None, "the key", "needs a tokenizer and tokenizer is None"),
        ("bert", None, None, "Neither text nor inputs"),
        ("bert", None, [5, 99], r"gives id 99, and the model \(BertModel\) has 40 embeddings, ids 0 to 39"),
        ("bert", None, [5] * 600, r"600 tokens and the model has 512 positions.*max_length=512"),
        ("bert", None, [-1, 5], "ids are not negative"),
        ("bert", None, [5.0, 6.0], "list of float"),
        ("bert", None, torch.ones(2, 3), "whole numbers"),
        ("bert", None, torch.ones(2, 3, 4, dtype=torch.long), r"shape \(2, 3, 4\)"),
        ("bert", None, [[5], []], "Text 1 has 0 tokens"),
        ("bert", None, {}, "empty dict"),
        ("bert", None, 3, "text is a int"),
        ("bert", None, [{"role": "user", "content": "hi"}], "apply_chat_template"),
        ("bert", None, [5, "the"], "list of int, str"),
        ("bert", None, {"input_ids": [[5, 6], [7]]}, "rows of 1 to 2 entries.*padding=True"),
        (
            "bert", None, {"input_ids": torch.tensor([[5]]), "attention_mask": torch.tensor([[0]])},
            "Row 0 of attention_mask is 0 everywhere",
        ),
    ],
)  # fmt: skip
def test_wrong_inputs(name: str, tokenizer: Any, text: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode(tiny.model(name), tokenizer, text)


def test_wrong_targets() -> None:
    with pytest.raises(AttnFlowError, match="BertModel has no decoder"):
        encode(tiny.model("bert"), wordpiece(), "the key", text_target="is")
    with pytest.raises(AttnFlowError, match="2 text_target for 1 texts"):
        encode(tiny.model("t5"), wordpiece(), "the key", text_target=["is", "is"])
    with pytest.raises(AttnFlowError, match="text_target needs a tokenizer"):
        encode(tiny.model("t5"), None, [5], text_target="is")


def test_the_tokenizer_is_left_alone() -> None:
    tokenizer = wordpiece()
    before = (len(tokenizer), tokenizer.padding_side, tokenizer.special_tokens_map, tokenizer.model_max_length)
    encode(tiny.model("bert"), tokenizer, ["the key", "is"])
    encode(tiny.model("bert"), tokenizer, BatchEncoding({"input_ids": torch.tensor([[5, 6]])}))
    after = (len(tokenizer), tokenizer.padding_side, tokenizer.special_tokens_map, tokenizer.model_max_length)
    assert before == after


CHAT = "<|im_start|>user\nthe key<|im_end|>\n<|im_start|>assistant\n"


def chat() -> Any:
    """A byte-level tokenizer with the marks of a chat, of which one is in no list of special tokens, as in Llama 3."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|end|>", "<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", unk_token="<|end|>", extra_special_tokens=["<|im_start|>"]
    )


@pytest.mark.parametrize("text", [CHAT, "the key<|end|>is"])
def test_special_tokens_do_not_depend_on_how_the_text_was_given(text: str) -> None:
    tokenizer, model = chat(), tiny.model("llama", vocab_size=300)
    want = encode(model, tokenizer, text).tokens[0]
    assert [t for t, s in zip(want, want.special, strict=True) if s] == [t for t in want if t.startswith("<|")]
    for form in (tokenizer(text), tokenizer(text)["input_ids"], tokenizer(text, return_tensors="pt")):
        got = encode(model, tokenizer, form).tokens[0]
        assert got.special == want.special
        assert [w is None for w in got.word_ids] == list(got.special)
        assert group_words(got).members == group_words(want).members


def test_masks_and_unknown_words_are_words() -> None:
    tokens = encode(tiny.model("bert"), wordpiece(), "the [MASK] zebra").tokens[0]
    assert tokens == ("[CLS]", "the", "[MASK]", "[UNK]", "[SEP]")
    assert tokens.special == (True, False, False, False, True)


def paired() -> Any:
    tokenizer = wordpiece()
    marks = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", marks
    )
    return tokenizer


@pytest.mark.parametrize(
    "given",
    [
        lambda t: ("the cabinets", {"text_pair": "the key"}),
        lambda t: ({"text": "the cabinets", "text_pair": "the key"}, {}),
        lambda t: ([("the cabinets", "the key")], {}),
        lambda t: (["the cabinets"], {"text_pair": ["the key"]}),
        lambda t: (t("the cabinets", "the key"), {}),
    ],
)
def test_pairs_of_texts(given: Any) -> None:
    tokenizer = paired()
    text, options = given(tokenizer)
    got = encode(tiny.model("bert"), tokenizer, text, **options)
    want = tokenizer("the cabinets", "the key")
    assert got.batch["input_ids"].tolist() == [want["input_ids"]]
    assert got.batch["token_type_ids"].tolist() == [want["token_type_ids"]]
    assert group_words(got.tokens[0]).tokens == ("[CLS]", "the", "cabinets", "[SEP]", "the", "key", "[SEP]")
    assert got.single == (not isinstance(text, list))


def test_pairs_that_do_not_fit() -> None:
    model, tokenizer = tiny.model("bert"), paired()
    with pytest.raises(InputError, match="2 texts and 1 in text_pair: give one second text for each"):
        encode(model, tokenizer, ["the key", "is"], text_pair="the")
    with pytest.raises(InputError, match="text_pair= belongs to a text"):
        encode(model, tokenizer, torch.tensor([5, 6]), text_pair="the")


def test_texts_are_cut_where_that_is_asked_for() -> None:
    model, tokenizer = tiny.model("bert", max_position_embeddings=32), wordpiece()
    long = "the key " * 60
    with pytest.raises(InputError, match=r"122 tokens and the model has \d+ positions. Cut it:  truncation=True"):
        encode(model, tokenizer, long)
    limit = position_limit(model)
    cut = encode(model, tokenizer, long, truncation=True)
    assert cut.length == limit and cut.notes == (f"The text was cut to {limit} of 122 tokens.",)
    short = encode(model, tokenizer, ["the key is", long], max_length=5)
    assert [len(t) for t in short.tokens] == [5, 5]
    assert short.settings["max_length"] == 5 and len(short.notes) == 1
    assert encode(model, tokenizer, "the key", max_length=30).notes == ()
    with pytest.raises(InputError, match="truncation= cuts a text, and a Tensor was given"):
        encode(model, tokenizer, torch.tensor([5, 6]), truncation=True)
    with pytest.raises(AttnFlowError, match="max_length=1"):
        encode(model, tokenizer, long, max_length=1)
