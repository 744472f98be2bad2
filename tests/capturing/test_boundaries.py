"""Where a run begins and ends, whoever calls the model: other threads, wrappers, forward() itself."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attnflow import AttnFlowError, capture
from tests import standin
from tests.capturing import tiny
from tests.capturing.test_generate import GREEDY, close
from tests.capturing.test_restore import fingerprint

TEXTS = ["the key to the cabinets is on the table", "a book"]


@pytest.mark.parametrize("name", ["mpnet", "bert", "t5"])
@pytest.mark.parametrize("own", [False, True])
def test_another_thread_runs_the_model_meanwhile(name: str, own: bool) -> None:
    model = tiny.model(name)
    ids, other = torch.tensor([tiny.IDS]), torch.tensor([[8, 9, 3]])
    decoder = {"decoder_input_ids": ids[:, :4]} if name == "t5" else {}
    expected = capture(model, inputs={"input_ids": ids, **decoder})
    over = threading.Event()

    def serve() -> None:
        with torch.no_grad():
            while not over.is_set():
                model(input_ids=other, **{k: v[:, :2] for k, v in decoder.items()})

    server = threading.Thread(target=serve)
    server.start()
    try:
        for _ in range(30):
            if own:
                with capture(model) as taken, torch.no_grad():
                    model(input_ids=ids, **decoder)
                close(taken.attention, expected)
            else:
                close(capture(model, inputs={"input_ids": ids, **decoder}), expected)
    finally:
        over.set()
        server.join()


@pytest.mark.parametrize("name", ["bert", "bert-classifier", "gpt2", "mpnet", "albert"])
def test_forward_called_directly(name: str) -> None:
    model = tiny.model(name)
    with capture(model) as taken, torch.no_grad():
        model.forward(torch.tensor([tiny.IDS]))
        model.forward(torch.tensor([tiny.IDS[:4]]))
    first, second = taken.attentions
    close(first, capture(model, None, tiny.IDS))
    close(second, capture(model, None, tiny.IDS[:4]))


def test_a_part_that_is_called_alone() -> None:
    model = tiny.model("bert")
    with capture(model) as taken, torch.no_grad():
        for length in (7, 4):
            hidden = model.embeddings(torch.tensor([tiny.IDS[:length]]))
            for layer in model.encoder.layer:
                hidden = layer(hidden)
    assert [a.weights.shape for a in taken.attentions] == [(2, 7, 7), (2, 4, 4)]
    np.testing.assert_allclose(taken.attentions[1].weights, capture(model, None, tiny.IDS[:4]).weights, atol=1e-6)


class Around(nn.Module):
    """Something around a model that runs it by other ways than its own forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.inner(input_ids=input_ids)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.generate(*args, **kwargs)


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_generate_of_a_wrapper(name: str) -> None:
    model, tokenizer = tiny.model(name), standin.tokenizer()
    with capture(model, tokenizer) as expected:
        model.generate(torch.tensor([tiny.IDS]), **GREEDY)
    with capture(Around(model), tokenizer) as taken:
        taken._model.generate(torch.tensor([tiny.IDS]), **GREEDY)
    close(taken.attention, expected.attention)
    for key in taken.attention.blocks:
        assert taken.attention[key].keys == expected.attention[key].keys


def test_peft() -> None:
    peft = pytest.importorskip("peft")
    model = tiny.model("llama")
    tuned = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])).eval()
    ids = torch.tensor([tiny.IDS, [0, 0, 0, *tiny.IDS[:4]]])
    mask = (ids != 0).long()
    with capture(tuned, standin.tokenizer()) as taken:
        out = tuned.generate(input_ids=ids, attention_mask=mask, **GREEDY)
    first, second = taken.attentions
    close(first, capture(tuned, None, out[0, :-1].tolist()), atol=2e-5)
    close(second, capture(tuned, None, out[1, 3:-1].tolist()), atol=2e-5)
    assert len(first.tokens) == 12 and len(second.tokens) == 9 and second.tokens[0] == first.tokens[0] != "0"


class Siamese(nn.Module):
    """Runs one encoder on two texts."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a, b = self.encoder(input_ids=left)[0], self.encoder(input_ids=right)[0]
        return (a.mean(1) * b.mean(1)).sum(-1)


@pytest.mark.parametrize("name", ["bert", "mpnet", "albert"])
def test_an_encoder_that_is_run_twice_gives_two_results(name: str) -> None:
    model, pair = tiny.model(name), {"left": torch.tensor([tiny.IDS]), "right": torch.tensor([tiny.IDS[:3]])}
    expected = [capture(model, None, x[0].tolist()) for x in pair.values()]
    taken = capture(Siamese(model), None, inputs=pair)
    with capture(Siamese(model)) as own, torch.no_grad():
        own._model(**pair)
    for found in (taken, own.attentions):
        assert len(found) == 2
        for one, other in zip(found, expected, strict=True):
            close(one, other)


def test_a_sentence_transformer() -> None:
    library = pytest.importorskip("sentence_transformers")
    model, tokenizer = standin.model(layers=2), standin.tokenizer()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        embedder = library.SentenceTransformer(folder, device="cpu")
    words = embedder[0]
    expected = capture(model, tokenizer, TEXTS)
    before = fingerprint(words.auto_model)
    with capture(embedder) as taken:
        embedder.encode(TEXTS, batch_size=1)
    # encode() sorts by length, the longest first, as the texts here are.
    for found in (taken.attentions, capture(embedder, None, TEXTS)):
        for one, other in zip(found, expected, strict=True):
            close(one, other, atol=1e-4)
            assert one.tokens == other.tokens
    assert fingerprint(words.auto_model) == before


def test_a_pipeline() -> None:
    from transformers import pipeline

    model, tokenizer = standin.model(layers=2), standin.tokenizer()
    pipe = pipeline("feature-extraction", model=model, tokenizer=tokenizer, device="cpu")
    expected = capture(model, tokenizer, TEXTS[0])
    close(capture(pipe, None, TEXTS[0]), expected)
    with capture(pipe) as taken:
        pipe(TEXTS[0])
    close(taken.attention, expected)
    assert taken.attention.tokens == expected.tokens


@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_generate_in_a_thread_of_its_own(name: str) -> None:
    """The pattern of TextIteratorStreamer: it works with this thread's context, and else it is said."""
    model, ids = tiny.model(name), torch.tensor([tiny.IDS])
    with capture(model) as expected:
        model.generate(ids, **GREEDY)
    with capture(model) as taken:
        run = contextvars.copy_context().run
        job = threading.Thread(target=run, args=(model.generate, ids), kwargs=GREEDY)
        job.start()
        job.join()
    close(taken.attention, expected.attention)
    with capture(model) as lost:
        job = threading.Thread(target=model.generate, args=(ids,), kwargs=GREEDY, name="streamer")
        job.start()
        job.join()
    with pytest.raises(AttnFlowError, match=r"run in another \(streamer\).*copy_context"):
        _ = lost.attention


def test_captures_inside_one_another_see_their_own_model() -> None:
    outer, inner = tiny.model("bert"), tiny.model("mpnet")
    with capture(outer) as first, capture(inner) as second, torch.no_grad():
        outer(torch.tensor([tiny.IDS]))
        inner(torch.tensor([tiny.IDS[:4]]))
        outer(torch.tensor([tiny.IDS[:3]]))
    close(second.attention, capture(inner, None, tiny.IDS[:4]))
    assert [len(a.tokens) for a in first.attentions] == [7, 3]


def test_a_copy_made_inside_a_capture_is_its_own() -> None:
    import copy

    model = tiny.model("bert")
    with capture(model) as taken, torch.no_grad():
        twin = copy.deepcopy(model)
        for p in twin.parameters():
            p.zero_()
        assert twin(torch.tensor([tiny.IDS]))[0].abs().max() == 0
        model(torch.tensor([tiny.IDS]))
    assert len(taken.attentions) == 1


def test_words_for_what_was_left_out() -> None:
    model = tiny.model("bert")
    taken = capture(model)
    model(torch.tensor([tiny.IDS]))
    with pytest.raises(AttnFlowError, match="never entered:  with capture"):
        _ = taken.attention
    with pytest.raises(AttnFlowError, match=r"The second argument is the tokenizer, and it is a str \('a text'\)"):
        capture(model, "a text")
