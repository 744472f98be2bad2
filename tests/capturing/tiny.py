"""Small random models of many families, for tests without a network."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import transformers as tf

IDS = [5, 6, 7, 8, 9, 3, 4]
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "vocab_size": 40,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IMAGE = {k: v for k, v in SMALL.items() if "token" not in k and k != "vocab_size"} | {
    "image_size": 32, "patch_size": 16,
}  # fmt: skip


def _sharp(model: Any) -> Any:
    """Random weights are near zero, and attention then near uniform: make them tell layers apart."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model.eval()


def model(name: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return _sharp(MODELS[name](**changes))


def _text(kind: str, head: str = "Model", **own: Any) -> Any:
    def build(**changes: Any) -> Any:
        config = getattr(tf, f"{kind}Config")(**{**SMALL, **own, **changes})
        return getattr(tf, f"{kind}{head}")(config)

    return build


def _gpt2(**changes: Any) -> Any:
    small = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**{**small, **changes}))


def _t5(**changes: Any) -> Any:
    small = {"d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2, "d_ff": 16, "vocab_size": 40}
    config = tf.T5Config(**{**small, "decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0, **changes})
    return tf.T5ForConditionalGeneration(config)


def _bart(**changes: Any) -> Any:
    sizes = {
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 40,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2, "forced_eos_token_id": None,
    }  # fmt: skip
    return tf.BartForConditionalGeneration(tf.BartConfig(**{**sizes, **changes}))


def _bloom(**changes: Any) -> Any:
    small = {"hidden_size": 16, "n_layer": 2, "n_head": 4, "vocab_size": 40}
    return tf.BloomForCausalLM(tf.BloomConfig(**{**small, **changes}))


def _xlnet(**changes: Any) -> Any:
    return tf.XLNetModel(tf.XLNetConfig(d_model=16, n_layer=2, n_head=4, d_inner=16, vocab_size=40))


def _clip(**changes: Any) -> Any:
    text = {**SMALL, "max_position_embeddings": 16, "projection_dim": 8}
    return tf.CLIPModel(tf.CLIPConfig(text_config=text, vision_config={**IMAGE, "projection_dim": 8}))


def _longformer(**changes: Any) -> Any:
    sizes = {**SMALL, "attention_window": 4, "max_position_embeddings": 64, **changes}
    return tf.LongformerModel(tf.LongformerConfig(**sizes))


def _qwen3_next(**changes: Any) -> Any:
    sizes = {
        **SMALL, "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8,
        "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    }  # fmt: skip
    return tf.Qwen3NextForCausalLM(tf.Qwen3NextConfig(**{**sizes, **changes}))


def _gpt_oss(**changes: Any) -> Any:
    sizes = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    return tf.GptOssForCausalLM(tf.GptOssConfig(**{**sizes, **changes}))


def _vit(**changes: Any) -> Any:
    return tf.ViTModel(tf.ViTConfig(**{**IMAGE, **changes}))


def _swin(**changes: Any) -> Any:
    sizes = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
    return tf.SwinModel(tf.SwinConfig(**{**sizes, **changes}))


MODELS = {
    "albert": _text("Albert", embedding_size=8),
    "bart": _bart,
    "bert": _text("Bert"),
    "bert-classifier": _text("Bert", "ForSequenceClassification"),
    "bloom": _bloom,
    "clip": _clip,
    "deberta-v2": _text("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    "distilbert": lambda **c: tf.DistilBertModel(
        tf.DistilBertConfig(**{"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 16, "vocab_size": 40, **c})
    ),
    "electra": _text("Electra", embedding_size=8),
    "falcon": _text("Falcon", "ForCausalLM", alibi=True),
    "gemma2": _text("Gemma2", "ForCausalLM", num_key_value_heads=2, head_dim=8, sliding_window=4),
    "gemma3": lambda **c: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**{**SMALL, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, **c})
    ),
    "gpt-neo": lambda **c: tf.GPTNeoForCausalLM(
        tf.GPTNeoConfig(
            hidden_size=16,
            num_layers=2,
            num_heads=4,
            vocab_size=40,
            window_size=4,
            attention_types=[[["global", "local"], 1]],
        )
    ),
    "gpt-oss": _gpt_oss,
    "gpt2": _gpt2,
    "llama": _text("Llama", "ForCausalLM", num_key_value_heads=2),
    "longformer": _longformer,
    "mistral": _text("Mistral", "ForCausalLM", num_key_value_heads=2, sliding_window=4),
    "modernbert": _text("ModernBert", global_attn_every_n_layers=2, local_attention=4, cls_token_id=1, sep_token_id=2),
    "mpnet": _text("MPNet"),
    "mpt": lambda **c: tf.MptForCausalLM(tf.MptConfig(d_model=16, n_layers=2, n_heads=4, vocab_size=40)),
    "opt": lambda **c: tf.OPTForCausalLM(
        tf.OPTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=16,
            vocab_size=40,
            word_embed_proj_dim=16,
            max_position_embeddings=64,
        )
    ),
    "qwen3": _text("Qwen3", "ForCausalLM", num_key_value_heads=2, head_dim=8),
    "qwen3-next": _qwen3_next,
    "roberta": _text("Roberta"),
    "swin": _swin,
    "t5": _t5,
    "vit": _vit,
    "xlnet": _xlnet,
}

TEXT = (
    "albert", "bert", "bloom", "deberta-v2", "distilbert", "electra", "falcon", "gemma2", "gpt-neo", "gpt-oss", "gpt2",
    "llama", "mistral", "modernbert", "mpnet", "mpt", "opt", "qwen3", "qwen3-next", "roberta", "xlnet",
)  # fmt: skip


def eager_attentions(model: Any, **batch: Any) -> Any:
    """What the model itself returns in eager: the reference."""
    # Some versions of transformers tell the whole model and not its encoder and decoder.
    parts = [part for part in model.modules() if isinstance(part, tf.PreTrainedModel)]
    before = [(part, part.config._attn_implementation) for part in parts]
    try:
        for part in parts:
            with suppress(ValueError):
                part.set_attn_implementation("eager")
        with torch.no_grad():
            return model(**batch, output_attentions=True)
    finally:
        for part, name in before:
            with suppress(ValueError):
                part.set_attn_implementation(name)
