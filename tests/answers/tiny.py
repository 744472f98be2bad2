"""Small random models and a byte-level tokenizer of their own, made on the spot."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers as tf

WORDS = "The key of Lora is red. The key of Milo is blue.\n\nWhat colour is the key of Lora? It is red, not blue. "
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CONTEXT = "The key of Lora is red. The key of Milo is blue. The key of Nia is green."
QUESTION = "What colour is the key of Lora?"
SIZES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": None, "eos_token_id": 0,
}  # fmt: skip


@functools.cache
def tokenizer(template: bool = True, add_prefix_space: bool = False) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.decoder = decoders.ByteLevel()
    marks = ["<|end|>", "<|start|>", "<image>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [WORDS] * 8, trainers.BpeTrainer(vocab_size=400, special_tokens=marks, initial_alphabet=alphabet)
    )
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|start|>"]})
    fast.chat_template = TEMPLATE if template else None
    return fast


@functools.cache
def causal(implementation: str = "sdpa", kind: str = "Llama", **more: Any) -> Any:
    torch.manual_seed(0)
    config = getattr(tf, f"{kind}Config")(**SIZES, vocab_size=len(tokenizer()), **more)
    config._attn_implementation = implementation
    return sharp(getattr(tf, f"{kind}ForCausalLM")(config).eval())


@functools.cache
def seq2seq() -> Any:
    torch.manual_seed(0)
    config = tf.T5Config(
        d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=32, vocab_size=len(tokenizer()), decoder_start_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return sharp(tf.T5ForConditionalGeneration(config).eval())


def sharp(model: Any) -> Any:
    """Larger weights, so that attention is far from uniform."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1 and "embed" not in name and "shared" not in name and "lm_head" not in name:
                p *= 4
    return model
