"""Small random models of many families, and a tokenizer, built without any network."""

from __future__ import annotations

import functools

import torch
import transformers as tf

SENTENCE = "the key to is are on table a film was great dull author talked sara about book"
_BERT = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 48,
}  # fmt: skip
_LLAMA = {**_BERT, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BART = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 48,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_GPT = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 48,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NO_EOS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

# name: (config class, model class, sizes)
FAMILIES = {
    "bert": ("BertConfig", "BertForSequenceClassification", _BERT),
    "bert-mlm": ("BertConfig", "BertForMaskedLM", _BERT),
    "roberta": ("RobertaConfig", "RobertaForSequenceClassification", {**_BERT, "pad_token_id": 0}),
    "distilbert": ("DistilBertConfig", "DistilBertForSequenceClassification",
                   {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}),
    "albert": ("AlbertConfig", "AlbertForSequenceClassification", {**_BERT, "embedding_size": 8}),
    "electra": ("ElectraConfig", "ElectraForSequenceClassification", {**_BERT, "embedding_size": 8}),
    "deberta-v2": ("DebertaV2Config", "DebertaV2ForSequenceClassification", _BERT),
    "mpnet": ("MPNetConfig", "MPNetForSequenceClassification", {**_BERT, "pad_token_id": 0}),
    "xlnet": ("XLNetConfig", "XLNetForSequenceClassification",
              {"vocab_size": 40, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**_GPT, **_NO_EOS}),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_BERT, **_NO_EOS}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _LLAMA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _LLAMA),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", _LLAMA),
    "opt": ("OPTConfig", "OPTForCausalLM",
            {"vocab_size": 40, "hidden_size": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2,
             "num_attention_heads": 2, "ffn_dim": 24, "max_position_embeddings": 48, **_NO_EOS}),
    "bloom": ("BloomConfig", "BloomForCausalLM",
              {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 2, **_NO_EOS}),
    "t5": ("T5Config", "T5ForConditionalGeneration",
           {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
            "decoder_start_token_id": 0}),
    "bart": ("BartConfig", "BartForConditionalGeneration", _BART),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", _BART),
    "base": ("BertConfig", "BertModel", _BERT),
    "vit": ("ViTConfig", "ViTForImageClassification",
            {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
             "image_size": 24, "patch_size": 8}),
}  # fmt: skip
TEXT = tuple(name for name in FAMILIES if name != "vit")
# Neither 0 nor 1, which are padding in one family or another.
IDS = [3, 7, 8, 9, 12, 2]


@functools.cache
def tiny(name: str, **changes: object) -> torch.nn.Module:
    """A model with weights large enough that its outputs differ from input to input."""
    config, model, sizes = FAMILIES[name]
    torch.manual_seed(0)
    built = getattr(tf, model)(getattr(tf, config)(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for weight in built.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.3)
    built.tie_weights()
    return built


@functools.cache
def tokenizer(mask: bool = True) -> tf.PreTrainedTokenizerFast:
    """A word tokenizer in BERT's manner; "cabinets" is two pieces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = ["cab", "##inets"]
    vocab = {t: i for i, t in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *pieces, *SENTENCE.split()])}
    core = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return tf.PreTrainedTokenizerFast(tokenizer_object=core, **named, **({"mask_token": "[MASK]"} if mask else {}))


def state(model: torch.nn.Module) -> tuple[object, ...]:
    """All of a model that a method could leave changed."""
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    flags = tuple((m.training,) for m in model.modules())
    grads = tuple((p.requires_grad, p.grad is None) for p in model.parameters())
    sums = tuple(float(p.detach().double().sum()) for p in model.parameters())
    return hooks, flags, grads, sums, str(model.config)
