"""Which position each row and column of a block stands for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attnflow import capture
from attnflow.inputs.naming import image_tokens
from tests.zoo.build import build


def _own_states(model: Any, module: str, pairs: torch.Tensor) -> torch.Tensor:
    """What the positions of each image are when a module begins, ``[images, positions, width]``."""
    seen: list[torch.Tensor] = []
    handle = model.get_submodule(module).register_forward_hook(lambda m, args, out: seen.append(args[0]))
    with torch.no_grad():
        model(pixel_values=pairs)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(("kind", "query", "key"), [("superglue", "query", "key"), ("lightglue", "q_proj", "k_proj")])
def test_images_of_a_pair_look_at_each_other_in_cross_attention(kind: str, query: str, key: str) -> None:
    tiny = build(kind)
    pairs = torch.cat([tiny.inputs["pixel_values"], tiny.inputs["pixel_values"].flip(-1) * 0.7])
    taken = capture(tiny.model, inputs={"pixel_values": pairs}, heads="all")
    assert isinstance(taken, list) and len(taken) == 2
    name = taken[0]["cross"].modules[0]
    # Only the states of the queries are read here: those of each image, in the order of the batch.
    states = _own_states(tiny.model, f"{name}.{query}", pairs)
    module = tiny.model.get_submodule(name)
    heads = taken[0]["cross"].weights[0].shape[0]
    for example, attention in enumerate(taken):
        weights = attention["cross"].weights[0]
        n = states.shape[1]
        assert attention["cross"].keys[n] == "1: 0"
        for image in (0, 1):
            own, other = states[2 * example + image], states[2 * example + 1 - image]
            asked = ((getattr(module, query), own), (getattr(module, key), other))
            q, k = (project(s).detach().view(n, heads, -1).transpose(0, 1) for project, s in asked)
            expected = torch.softmax(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5, -1).numpy()
            rows, columns = slice(image * n, (image + 1) * n), slice((1 - image) * n, (2 - image) * n)
            np.testing.assert_allclose(weights[:, rows, columns], expected, atol=1e-5)
            assert not weights[:, rows, rows].any()


def test_a_part_that_reads_text_is_not_called_vision() -> None:
    tiny = build("blt")
    blocks = capture(tiny.model, inputs=tiny.inputs).blocks
    assert {"patcher", "global_transformer", "encoder", "decoder"} <= set(blocks)
    assert "vision" not in blocks


def test_learned_queries_are_not_named_as_patches() -> None:
    tiny = build("blip-2")
    attention = capture(tiny.model, inputs=tiny.inputs)
    assert attention["cross"].queries[:2] == ("0", "1")
    assert attention["cross"].keys[:2] == ("[CLS]", "patch 0,0")


@pytest.mark.parametrize(
    ("length", "config", "first"),
    [
        (4, {}, "patch 0,0"),
        (5, {}, "[CLS]"),
        (6, {}, "0"),
        (6, {"model_type": "deit"}, "[CLS]"),
        (9, {"num_register_tokens": 4}, "[CLS]"),
        (20, {}, "0"),
    ],
)
def test_patches_are_named_where_the_length_is_explained(length: int, config: dict[str, Any], first: str) -> None:
    names = image_tokens(SimpleNamespace(patch_size=16, **config), (1, 3, 32, 32), length)
    assert len(names) == length and names[0] == first
