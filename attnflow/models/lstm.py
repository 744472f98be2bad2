"""The model of the debate: embedding, BiLSTM, additive attention, a linear layer (Jain & Wallace 2019, section 3).

Its attention goes through transformers' attention interface, with one head and one query: the learned vector that the
scores are made with. So the library captures it, and replaces it, like any other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnflow.errors import InputError, SelectionError, ShapeError
from attnflow.models.classifier import Classifier, register
from attnflow.numbers import at_least, word
from attnflow.tokens import Tokens

ENCODERS = ("lstm", "average")
ATTENTIONS = ("tanh", "uniform", "given")


class LSTMConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The sizes of Jain & Wallace (2019, section 3, and their code).

    Args:
        vocab_size: number of words.
        embedding_size: width of a word's vector (300 in the paper, which began with trained vectors).
        hidden_size: states of the LSTM in each direction.
        encoder: "lstm", both ways; or "average": each word by itself, a linear map and tanh.
        attention: "tanh" (additive, trained), "uniform", or "given" (``token_weights`` with each call).
        skip_edges: leave the first and the last token of each text (start and end of sentence) out of the attention,
            as the papers' code does, so that uniform weights are 1 / (n − 2).

    >>> config = LSTMConfig()
    >>> config.encoder, config.attention, config.embedding_size, config.hidden_size
    ('lstm', 'tanh', 128, 128)
    """

    model_type = "attnflow_lstm"

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
            if word(value, name) not in known:
                raise SelectionError(f"{name}={value!r} is not known. Use {' or '.join(map(repr, known))}.")
        sizes = {"vocab_size": vocab_size, "embedding_size": embedding_size, "hidden_size": hidden_size}
        self.vocab_size, self.embedding_size, self.hidden_size = (at_least(n, 1, what) for what, n in sizes.items())
        self.encoder, self.attention, self.skip_edges = encoder, attention, skip_edges
        self.num_hidden_layers = self.num_attention_heads = 1
        rest.setdefault("pad_token_id", 0)
        super().__init__(**rest)

    @property
    def width(self) -> int:
        """Size of the state of one token: both directions of the LSTM, or the linear map's."""
        return 2 * self.hidden_size if self.encoder == "lstm" else self.hidden_size


def eager_attention_forward(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    token_weights: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """vᵀtanh(key + query), softmax over the visible tokens, the mixture of the values; one head, one query.

    ``query`` is the bias b and ``key`` is W·h, so the scores are the paper's φ(h) = vᵀtanh(W·h + b).
    """
    if token_weights is None:
        scores = module.vector(torch.tanh(key + query)).transpose(-1, -2)
        scores = scores * module.temper
    else:
        # The softmax of a logarithm is the number itself, divided by the sum.
        scores = token_weights[:, None, None].log()
    weights = nn.functional.softmax(scores.masked_fill(~attention_mask, float("-inf")), dim=-1)
    return torch.matmul(weights, value).transpose(1, 2), weights


class TanhAttention(nn.Module):
    """Additive attention of one learned query over the states of the tokens."""

    query_tokens = Tokens(["⟨pool⟩"], [True], marks={"cls": 0})

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = 0
        self.is_causal = False
        # Uniform attention is the same softmax over scores that are all zero.
        self.temper = 0.0 if config.attention == "uniform" else 1.0
        half = config.width // 2
        self.project = nn.Linear(config.width, half)
        self.vector = nn.Linear(half, 1, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, visible: torch.Tensor, token_weights: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(mixture ``[batch, width]``, weights ``[batch, 1, 1, n]``) of states ``[batch, n, width]``."""
        key = F.linear(hidden_states, self.project.weight)[:, None]
        query = self.project.bias.expand(len(hidden_states), 1, 1, -1)
        interface: Any = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, weights = interface(
            self, query, key, hidden_states[:, None], visible[:, None, None], token_weights=token_weights
        )
        return out[:, 0, 0], weights


class BothWays(nn.Module):
    """A bidirectional LSTM for which padding makes no difference, wherever it stands.

    It consists of two LSTMs; the second reads each text backwards. The result is that of a packed bidirectional LSTM,
    and on a CPU it takes a tenth of the time.
    """

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.forwards = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True)
        self.backwards = nn.LSTM(config.embedding_size, config.hidden_size, batch_first=True)

    def forward(self, words: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """``[batch, n, embedding]`` → ``[batch, n, 2 · hidden]``; ``real`` ``[batch, n]`` is False at padding."""
        order = _real_first(real)
        places = torch.arange(words.shape[1], device=words.device)
        length = real.sum(1, keepdim=True)
        turned = torch.where(places < length, length - 1 - places, places)
        begun = words if order is None else _pick(words, order)
        back = _pick(self.backwards(_pick(begun, turned))[0], turned)
        states = torch.cat([self.forwards(begun)[0], back], -1)
        return states if order is None else _pick(states, order.argsort(dim=1))


def _real_first(real: torch.Tensor) -> torch.Tensor | None:
    """The order that puts real tokens before padding; None where they stand so already."""
    if bool((real[:, 1:] <= real[:, :-1]).all()):
        return None
    return (~real).to(torch.uint8).argsort(dim=1, stable=True)


def _pick(states: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))


class LSTMClassifier(Classifier):
    """Words → logits, through one layer of attention: the papers' model, and their token-wise one.

    With ``encoder="average"`` every word is encoded by itself (a linear map and tanh): the diagnostic model of
    Wiegreffe & Pinter (2019, section 3.3). Args of a call: ``input_ids`` ``[batch, n]`` or ``inputs_embeds`` ``[batch,
    n, embedding]``; ``attention_mask`` ``[batch, n]``; ``labels`` ``[batch]`` for a loss; ``token_weights``
    ``[batch, n]`` to take the place of the attention, divided by their sums (always needed with ``attention="given"``).

    Args:
        config: the sizes.
        vectors: trained word vectors ``[words, embedding]`` to begin with.

    >>> tiny = LSTMClassifier(LSTMConfig(vocab_size=20, embedding_size=4, hidden_size=4)).eval()
    >>> out = tiny(torch.tensor([[2, 7, 9, 3]]), output_attentions=True)
    >>> out.logits.shape, out.attentions[0].shape
    (torch.Size([1, 2]), torch.Size([1, 1, 1, 4]))
    """

    config_class = LSTMConfig
    base_model_prefix = ""
    _supports_sdpa = False
    _supports_attention_backend = False

    def __init__(self, config: LSTMConfig, vectors: torch.Tensor | None = None) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        both = config.encoder == "lstm"
        self.encoder = BothWays(config) if both else nn.Linear(config.embedding_size, config.hidden_size)
        self.attention = TanhAttention(config)
        self.score = nn.Linear(config.width, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]
        if vectors is not None:
            self._take(vectors)

    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's own initial weights, as in the papers' code."""
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()

    def _take(self, vectors: torch.Tensor) -> None:
        wanted = self.embedding.weight.shape
        if vectors.shape != wanted:
            raise ShapeError(
                f"vectors have shape {tuple(vectors.shape)}, and the embedding is {tuple(wanted)}:  "
                f"LSTMConfig(vocab_size={vectors.shape[0]}, embedding_size={vectors.shape[-1]})"
            )
        with torch.no_grad():
            self.embedding.weight.copy_(vectors)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        token_weights: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits ``[batch, labels]``, the loss where labels are given, the attention where it is asked for."""
        words = self.word_vectors(input_ids, inputs_embeds)
        real = words.new_ones(words.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        states = self._states(words, real)
        visible = _inner(real) if self.config.skip_edges else real
        if token_weights is None and self.config.attention == "given":
            raise InputError(
                "attention='given' and no token_weights: pass one weight for each token,  "
                "model(input_ids, attention_mask, token_weights=weights)"
            )
        if token_weights is not None:
            visible = _given(token_weights, real)
        mixed, weights = self.attention(states, visible, token_weights)
        asked = self.config.output_attentions if output_attentions is None else output_attentions
        return self.output(self.score(mixed), labels, (weights,) if asked else None)

    def _states(self, words: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        if isinstance(self.encoder, BothWays):
            states: torch.Tensor = self.encoder(words, real)
            return states
        return torch.tanh(self.encoder(words))


def _inner(real: torch.Tensor) -> torch.Tensor:
    """Without the first and the last real token of each text; texts of one or two tokens are kept whole.

    >>> _inner(torch.tensor([[True, True, True, True], [True, True, True, False], [True, True, False, False]])).int()
    tensor([[0, 1, 1, 0],
            [0, 1, 0, 0],
            [1, 1, 0, 0]], dtype=torch.int32)
    """
    count = real.cumsum(1)
    total = count[:, -1:]
    return real & (((count > 1) & (count < total)) | (total < 3))


def _given(weights: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Where given weights are to be used: where they are not zero."""
    if weights.shape != real.shape:
        raise ShapeError(
            f"token_weights have shape {tuple(weights.shape)} and the tokens {tuple(real.shape)}: one weight for each."
        )
    seen = real & (weights > 0)
    if not bool(seen.any(1).all()):
        raise InputError("token_weights are zero for every token of a text: give at least one token a weight above 0.")
    return seen


register(LSTMConfig, LSTMClassifier)
