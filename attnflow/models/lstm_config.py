"""The configuration of the debate's own model; apart from the model, so that registering it costs nothing."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from attnflow.errors import SelectionError
from attnflow.models.register import LSTM, register_models

ENCODERS = ("lstm", "average")
ATTENTIONS = ("tanh", "uniform", "given")


class LSTMConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The sizes of Jain & Wallace (2019, section 3, and their code).

    Args:
        vocab_size: number of words.
        embedding_size: width of a word's vector (300 in the paper, whose vectors were ready-made).
        hidden_size: states of the LSTM in each direction.
        encoder: "lstm", both ways; or "average": each word by itself, a linear map and tanh.
        attention: "tanh" (additive, trained), "uniform", or "given" (``token_weights`` with each call).
        skip_edges: leave the first and the last token of each text (start and end of sentence) out of the attention,
            as the papers' code does, so that uniform weights are 1 / (n − 2).

    >>> config = LSTMConfig()
    >>> config.encoder, config.attention, config.embedding_size, config.hidden_size
    ('lstm', 'tanh', 128, 128)
    """

    model_type = LSTM

    def __init__(
        self,
        vocab_size: int = 10_000,
        embedding_size: int = 128,
        hidden_size: int = 128,
        encoder: str = "lstm",
        attention: str = "tanh",
        skip_edges: bool = True,
        **rest: Any,
    ) -> None:
        for name, value, known in (("encoder", encoder, ENCODERS), ("attention", attention, ATTENTIONS)):
            if value not in known:
                raise SelectionError(f"{name}={value!r} is not known. Use {' or '.join(map(repr, known))}.")
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.encoder, self.attention, self.skip_edges = encoder, attention, skip_edges
        self.num_hidden_layers = self.num_attention_heads = 1
        rest.setdefault("pad_token_id", 0)
        super().__init__(**rest)

    @property
    def width(self) -> int:
        """Size of the state of one token: both directions of the LSTM, or the linear map's."""
        return 2 * self.hidden_size if self.encoder == "lstm" else self.hidden_size


# Whoever has an LSTMConfig has come through this module, so the Auto classes of models know it in time.
register_models(LSTMConfig)
