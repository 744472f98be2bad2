"""The configuration of the verb-number model; apart from the model, so that registering it costs nothing."""

from __future__ import annotations

from typing import Any

from transformers import GPT2Config

from attnflow.models.register import VERB_NUMBER, register_models

LABELS = ("singular", "plural")


class VerbNumberConfig(GPT2Config):  # type: ignore[no-untyped-call]
    """GPT-2's configuration at the size of Abnar & Zuidema (2020, section 2): 6 layers × 8 heads × 128.

    >>> config = VerbNumberConfig()
    >>> config.n_layer, config.n_head, config.n_embd, config.id2label
    (6, 8, 128, {0: 'singular', 1: 'plural'})
    """

    model_type = VERB_NUMBER

    def __init__(
        self, n_embd: int = 128, n_layer: int = 6, n_head: int = 8, n_positions: int = 64, **rest: Any
    ) -> None:
        rest.setdefault("vocab_size", 10_042)
        rest.setdefault("id2label", dict(enumerate(LABELS)))
        rest.setdefault("label2id", {label: i for i, label in enumerate(LABELS)})
        rest.setdefault("initializer_range", 0.05)
        # GPT-2's own function (gelu_new) in one fused kernel: a fifth off the time of a training step.
        rest.setdefault("activation_function", "gelu_pytorch_tanh")
        rest.setdefault("pad_token_id", 0)
        rest.setdefault("bos_token_id", 2)
        rest.setdefault("eos_token_id", 3)
        super().__init__(n_embd=n_embd, n_layer=n_layer, n_head=n_head, n_positions=n_positions, **rest)


# Whoever has a VerbNumberConfig has come through this module, so the Auto classes of models know it in time.
register_models(VerbNumberConfig)
