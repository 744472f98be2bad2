"""Leave-one-source-out: the cached way, the masked way and a naive 4-D mask give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnflow import Attribution, attribute
from attnflow.answers.leave_one_out import Without
from attnflow.answers.reading import make_run
from tests.answers.tiny import CONTEXT, QUESTION, causal, tokenizer


def run_of(model: Any) -> Any:
    tok = tokenizer()
    return make_run(model, tok, tok(CONTEXT)["input_ids"], tok(" red.")["input_ids"], {}, torch.device("cpu"))


def naive(model: Any, run: Any, gone: list[int]) -> np.ndarray:
    """A causal mask with the columns taken out, written by hand."""
    ids = run.inputs["input_ids"]
    n = ids.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    seen[:, gone] = False
    seen |= torch.eye(n, dtype=torch.bool)
    mask = torch.zeros(n, n).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=torch.arange(n)[None]).logits[0]
    rows = logits[run.prompt - 1 :].log_softmax(-1)
    return rows.gather(-1, torch.tensor(run.answer)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("gone", [[3, 4, 5], [0, 1], [2], [1, 4]])
@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_masked_positions(kind: str, gone: list[int]) -> None:
    model = causal("eager", kind, **({"sliding_window": 6} if kind == "Mistral" else {}))
    run = run_of(model)
    without = Without(run)
    assert (without.cache is None) == (kind == "Mistral")
    if kind == "Llama":
        np.testing.assert_allclose(without.positions(gone), naive(model, run, gone), atol=2e-4)
        np.testing.assert_allclose(without.positions(gone), without._masked(gone), atol=2e-4)
    assert np.isfinite(without.positions(gone)).all()


def test_the_shared_prefix_is_not_computed_again() -> None:
    run = run_of(causal())
    without = Without(run)
    n = run.inputs["input_ids"].shape[1]
    before = without.forwards
    without.positions([n - 12])
    assert without.forwards - before == pytest.approx(11 / n)


def test_removal_is_another_text() -> None:
    tok, model = tokenizer(), causal()
    a = attribute(
        model,
        tok,
        {"context": CONTEXT, "question": QUESTION},
        "red",
        methods=["direct"],
        check="all",
        check_by="removal",
    )
    assert isinstance(a, Attribution)
    s = a.sources[1]
    text = a.prompt[: s.start] + a.prompt[s.end :]
    answer = tok("red")["input_ids"]

    def logp(prompt: str) -> float:
        ids = tok(prompt)["input_ids"]
        with torch.no_grad():
            rows = model(input_ids=torch.tensor([[*ids, *answer[:-1]]])).logits[0, len(ids) - 1 :].log_softmax(-1)
        return float(rows.gather(-1, torch.tensor(answer)[:, None]).sum())

    np.testing.assert_allclose(a.checks["removal"][0, 1], logp(a.prompt) - logp(text), atol=1e-4)
    np.testing.assert_allclose(sum(a.logprobs), logp(a.prompt), atol=1e-4)
    assert np.isnan(a.checks["removal"][:, 3]).all()  # the question is not tried


def test_the_greatest_sources_are_tried() -> None:
    a = attribute(causal(), tokenizer(), {"context": CONTEXT, "question": QUESTION}, "red", check=1, methods=["direct"])
    assert isinstance(a, Attribution)
    tried = np.flatnonzero(np.isfinite(a.checks["mask"][0])).tolist()
    assert tried == a.ranked()[:1] and a.settings["checked"] == 1
