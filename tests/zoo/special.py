"""Arguments that have to be made by name, and the inputs of models like no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tests.zoo.inputs import Facts

Maker = Callable[["Facts"], Any]


def _history(facts: Facts) -> int:
    """How many past values a forecaster reads."""
    lags = facts.find("lags_sequence", default=[0])
    return facts.find("context_length", default=32) + max(lags)


def _ids(facts: Facts, length: int = 8) -> torch.Tensor:
    return facts.text()["input_ids"][:, :length]


def _hidden(facts: Facts) -> torch.Tensor:
    return torch.randn(1, 12, facts.width())


BY_NAME: dict[str, Maker] = {
    "query_embeds": _hidden,
    "hidden_states": _hidden,
    "inputs_embeds": _hidden,
    "context": _hidden,
    "image_features": _hidden,
    "past_values": lambda f: torch.randn(1, _history(f)),
    "past_time_features": lambda f: torch.randn(1, _history(f), f.find("num_time_features", default=0)),
    "past_observed_mask": lambda f: torch.ones(1, _history(f)),
    "qformer_input_ids": _ids,
    "audio_mel": lambda f: torch.randn(1, 64, f.find("input_feat_size", default=128)),
    "audio_mel_mask": lambda f: torch.zeros(1, 64, dtype=torch.bool),
    "spectrogram": lambda f: torch.randn(1, 8, f.find("model_in_dim", default=80)),
}

BESIDES: dict[str, dict[str, Maker]] = {
    "blip_2_qformer": {"encoder_hidden_states": lambda f: torch.randn(1, 6, f.config.encoder_hidden_size)},
    "clap": {
        "input_features": lambda f: torch.randn(1, 1, 256, 64),
        "is_longer": lambda f: torch.tensor([[False]]),
    },
    "clap_audio_model": {
        "input_features": lambda f: torch.randn(1, 1, 256, 64),
        "is_longer": lambda f: torch.tensor([[False]]),
    },
    "bros": {"bbox": lambda f: torch.rand(1, 12, 8)},
}
"""What a type needs although its forward does not say so."""

INPUTS: dict[str, Maker] = {
    "decision_transformer": lambda f: {
        "states": torch.randn(1, 5, f.config.state_dim),
        "actions": torch.randn(1, 5, f.config.act_dim),
        "rewards": torch.randn(1, 5, 1),
        "returns_to_go": torch.randn(1, 5, 1),
        "timesteps": torch.arange(5)[None],
        "attention_mask": torch.ones(1, 5, dtype=torch.long),
    },
    "dia": lambda f: {"input_ids": _ids(f, 12), "decoder_input_ids": torch.randint(3, 90, (1, 7, 9))},
}
"""The whole input of a type."""
