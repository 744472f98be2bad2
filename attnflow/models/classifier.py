"""What the package's own models share: the interface of a Hugging Face classifier, and a place in the Auto classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class Classifier(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A text classifier as transformers expects it; a subclass names its word embeddings and computes the logits."""

    _input_embed_layer = "embedding"

    def word_vectors(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """``[batch, n, width]``: the vectors that were given, else those of the ids."""
        if inputs_embeds is not None:
            return inputs_embeds
        vectors: torch.Tensor = self.get_input_embeddings()(input_ids)
        return vectors

    def get_input_embeddings(self) -> nn.Module:
        """The word embeddings."""
        found: nn.Module = getattr(self, self._input_embed_layer)
        return found

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the word embeddings."""
        setattr(self, self._input_embed_layer, value)

    def output(
        self, logits: torch.Tensor, labels: torch.Tensor | None, attentions: Any = None
    ) -> SequenceClassifierOutput:
        """The logits ``[batch, classes]``, with the cross-entropy where labels are given."""
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, attentions=attentions)  # type: ignore[arg-type]


def register(config: type[Any], model: type[Any]) -> None:
    """Make ``AutoConfig``, ``AutoModel`` and ``AutoModelForSequenceClassification`` know a model of the package."""
    import transformers

    transformers.AutoConfig.register(config.model_type, config, exist_ok=True)
    for auto in (transformers.AutoModel, transformers.AutoModelForSequenceClassification):
        auto.register(config, model, exist_ok=True)
