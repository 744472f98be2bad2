"""The module that looks words up is found by watching, in every family, and the fall-backs are taken in order."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from attnflow import gradient
from attnflow.errors import InputError
from attnflow.inputs.embedding import _found, find
from tests.tiny_models import IDS, TEXT, state, tiny

EXPECTED = {
    "bert": "bert.embeddings.word_embeddings",
    "t5": "encoder.embed_tokens, decoder.embed_tokens",
    "bart": "model.encoder.embed_tokens, model.decoder.embed_tokens",
    "xlnet": "transformer.word_embedding",
    "llama": "model.embed_tokens",
}


def inputs_of(name):
    given = {"input_ids": torch.tensor([IDS])}
    if name in ("t5", "bart", "pegasus"):
        given["decoder_input_ids"] = torch.tensor([[2, *IDS[1:]]])
    return given


@pytest.mark.parametrize("name", TEXT)
def test_it_is_found_and_the_output_stays_as_it_was(name):
    model, given = tiny(name), inputs_of(name)
    before = state(model)
    embedder = find(model, given)
    assert embedder.route == "hook" and EXPECTED.get(name, embedder.name) == embedder.name
    with torch.no_grad():
        plain = model(**given)
        again = embedder.run(model, given, embedder.embeddings(model, given))
    key = "logits" if "logits" in plain else "last_hidden_state"
    torch.testing.assert_close(plain[key], again[key])
    assert state(model) == before


@pytest.mark.parametrize("name", ["bert", "xlnet", "t5", "bart"])
def test_a_batch_of_other_embeddings_goes_to_the_right_rows(name):
    model, given = tiny(name), inputs_of(name)
    embedder = find(model, given)
    own = embedder.embeddings(model, given)
    other = [torch.randn(3, *e.shape[1:], generator=torch.Generator().manual_seed(0)) for e in own]
    with torch.no_grad():
        together = embedder.run(model, given, other).logits
        for i in range(3):
            alone = embedder.run(model, given, [o[i : i + 1] for o in other]).logits
            torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-5)


def test_decoder_ids_equal_to_the_encoders_are_told_apart():
    given = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([IDS])}
    embedder = find(tiny("bart"), given)
    assert [s.ids for s in embedder.slots] == ["input_ids", "decoder_input_ids"]
    own = embedder.embeddings(tiny("bart"), given)
    changed = [own[0], torch.zeros_like(own[1])]
    with torch.no_grad():
        encoded = embedder.run(tiny("bart"), given, changed).encoder_last_hidden_state
        plain = tiny("bart")(**given).encoder_last_hidden_state
    torch.testing.assert_close(encoded, plain)


def test_what_a_model_goes_on_with_is_the_sum_of_its_tables():
    model, ids = tiny("bert"), torch.tensor([IDS])
    before, tables = state(model), model.bert.embeddings
    (found,) = find(model, {"input_ids": ids}).sums(model, {"input_ids": ids})
    known = tables.word_embeddings(ids) + tables.position_embeddings.weight[: len(IDS)]
    torch.testing.assert_close(found, (known + tables.token_type_embeddings.weight[0]).detach())
    assert state(model) == before


def test_each_side_of_an_encoder_decoder_has_its_own_sum():
    model, given = tiny("t5"), inputs_of("t5")  # T5 adds nothing to its words
    embedder = find(model, given)
    for found, own in zip(embedder.sums(model, given), embedder.embeddings(model, given), strict=True):
        torch.testing.assert_close(found, own)


class Padder(nn.Module):
    """Adds an id of its own before it looks up, as Longformer does, and refuses inputs_embeds."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.config = None

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids):
        return {"logits": self.table(nn.functional.pad(input_ids, (0, 1))).sum(1)}


def test_a_model_that_changes_its_ids_is_reached_through_the_module_that_it_names():
    model = Padder().eval()
    given = {"input_ids": torch.tensor([[1, 2, 3]])}
    embedder = find(model, given)
    assert embedder.route == "get_input_embeddings"
    assert embedder.embeddings(model, given)[0].shape == (1, 4, 4)
    # The logits are sums of embeddings: one dimension has gradient 1, at every token, and the padding has no score.
    assert gradient(model, text=[1, 2, 3]).scores.tolist() == [[1.0, 1.0, 1.0]]


class Nameless(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 4))

    def forward(self, input_ids):
        return {"logits": self.table[input_ids].sum(1)}


def test_a_model_without_any_way_says_what_was_tried():
    with pytest.raises(InputError) as caught:
        find(Nameless().eval(), {"input_ids": torch.tensor([[1, 2]])})
    message = str(caught.value)
    assert "Nameless gave no way to its word embeddings (hook: no such module is called with the ids" in message
    assert "blankout(model, tokenizer, text, blank='mask')" in message


def test_inputs_without_ids_are_refused():
    with pytest.raises(InputError, match="Word embeddings need input_ids, and the inputs are pixel_values"):
        find(tiny("vit"), {"pixel_values": torch.zeros(1, 3, 24, 24)})


def test_what_was_found_is_remembered_as_long_as_the_model_lives():
    model = Padder().eval()
    find(model, {"input_ids": torch.tensor([[1, 2, 3]])})
    assert model in _found
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_hooks_are_gone_after_an_error_inside_the_model():
    class Broken(Padder):
        def forward(self, input_ids):
            self.table(input_ids)
            raise RuntimeError("inside")

    model = Broken().eval()
    with pytest.raises(RuntimeError, match="inside"):
        find(model, {"input_ids": torch.tensor([[1, 2]])})
    assert not model.table._forward_hooks


def test_a_model_that_changes_from_call_to_call_is_named():
    class Fickle(Padder):
        """Looks its words up every other time."""

        calls = 0

        def forward(self, input_ids):
            self.calls += 1
            found = self.table(input_ids) if self.calls < 3 else self.table.weight[input_ids]
            return {"logits": found.sum(1)}

    model, given = Fickle().eval(), {"input_ids": torch.tensor([[1, 2, 3]])}
    embedder = find(model, given)
    with pytest.raises(InputError, match="changes from call to call. Use route='inputs_embeds'"):
        embedder.run(model, given, embedder.embeddings(model, given))
