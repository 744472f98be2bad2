"""Arguments that have to be made by name, and the inputs of models like no other."""

from __future__ import annotations

import inspect
import sys
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


def _flattened(facts: Facts) -> torch.Tensor:
    """Row and column of 12 patches, then their pixels."""
    places = torch.cartesian_prod(torch.arange(1, 4), torch.arange(1, 5)).float()
    return torch.cat([places, torch.randn(12, facts.find("patch_embed_hidden_size", default=768))], -1)[None]


def _frames(facts: Facts) -> torch.Tensor:
    return torch.ones(1, 32, dtype=torch.long)


def _first(facts: Facts, count: int) -> torch.Tensor:
    """A mask over 12 ids, set for the first of them."""
    return (torch.arange(12) < count)[None]


def _wave_and_features(facts: Facts) -> dict[str, torch.Tensor]:
    width = facts.find("feature_projection_input_dim", default=160)
    return {"input_values": torch.randn(1, 1, 7680), "input_features": torch.randn(1, 24, width)}


def _drafted(facts: Facts) -> dict[str, Any]:
    """One position to draft, and the keys and values that the large model computed for the text before it."""
    text, length = facts.config.text_config, facts.text()["input_ids"].shape[1]
    shapes = {layer.self_attn.layer_type: layer.self_attn for layer in facts.model.model.layers}
    states = {
        kind: tuple(
            torch.randn(1, text.num_attention_heads // a.num_key_value_groups, length, a.head_dim) for _ in "kv"
        )
        for kind, a in shapes.items()
    }
    return {
        "inputs_embeds": torch.randn(1, 1, 2 * facts.config.backbone_hidden_size),
        "position_ids": torch.tensor([[length]]),
        "attention_mask": torch.ones(1, length, dtype=torch.long),
        "shared_kv_states": states,
    }


def _streamed(facts: Facts) -> dict[str, torch.Tensor]:
    """Ids, and eight frames of sound for each of them."""
    text = facts.text()
    frames = 8 * text["input_ids"].shape[1]
    return text | {"input_features": torch.randn(1, facts.config.audio_config.num_mel_bins, frames)}


def _printed(facts: Facts) -> dict[str, torch.Tensor]:
    """A line of print: 48 pixels high, wider the more words there are."""
    return {"pixel_values": torch.randn(1, 3, 48, 8 * facts.text()["input_ids"].shape[1])}


def _session(facts: Facts) -> Any:
    """A film of three frames, as the type's own session holds it."""
    kind = inspect.signature(type(facts.model).forward).parameters["inference_session"].annotation
    source = sys.modules[type(facts.model).__module__]
    kind = getattr(source, kind) if isinstance(kind, str) else kind
    high, wide = facts.side()
    return kind(video=torch.randn(3, 3, high, wide), video_height=high, video_width=wide, dtype=torch.float32)


def _tracked(facts: Facts) -> dict[str, Any]:
    """The second frame of a film: an object was pointed at in the first one, which is in memory."""
    session = _session(facts)
    point = {"point_coords": torch.tensor([[[[20.0, 30.0]]]]), "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, point)
    session.obj_with_new_inputs = [1]
    with torch.no_grad():
        facts.model(inference_session=session, frame_idx=0)
    return {"inference_session": session, "frame_idx": 1}


def _prompted(facts: Facts) -> dict[str, Any]:
    """The first frame of a film, and words that name what to look for."""
    session, ids = _session(facts), _ids(facts)
    prompt = session.add_prompt("a cat")
    session.prompt_input_ids[prompt] = ids
    session.prompt_attention_masks[prompt] = torch.ones_like(ids)
    return {"inference_session": session, "frame_idx": 0}


BY_NAME: dict[str, Maker] = {
    "action_embeds": lambda f: torch.randn(1, 6, f.config.dit_config.hidden_size),
    "aspect_ratio_ids": lambda f: torch.ones(1, 1, dtype=torch.long),
    "aspect_ratio_mask": lambda f: torch.ones(1, 1, 4, dtype=torch.long),
    "audio_input_ids": _ids,
    "audio_mel": lambda f: torch.randn(1, 64, f.find("input_feat_size", default=128)),
    "audio_mel_mask": lambda f: torch.zeros(1, 64, dtype=torch.bool),
    "context": _hidden,
    "context_hidden_states": _hidden,
    "encoder_hidden_states": _hidden,
    "freq": lambda f: torch.zeros(1, 1, dtype=torch.long),
    "hidden_states": _hidden,
    "image_features": _hidden,
    "inputs_embeds": _hidden,
    "latents": lambda f: torch.randn(1, f.width(), 12),
    "mask": lambda f: torch.ones(1, 12, dtype=torch.bool),
    "mel_spectrogram": lambda f: torch.randn(1, f.find("mel_dim", default=80), 16),
    "merge_sizes": lambda f: torch.tensor([2]),
    "noise_embeds": _hidden,
    "past_observed_mask": lambda f: torch.ones(1, _history(f)),
    "past_time_features": lambda f: torch.randn(1, _history(f), f.find("num_time_features", default=0)),
    "past_values": lambda f: torch.randn(1, _history(f)),
    "past_values_padding": lambda f: torch.zeros(1, 64),
    "patch_embeds": lambda f: torch.randn(1, 16, f.width()),
    "pooled_patches_idx": lambda f: torch.arange(12).reshape(1, 3, 4),
    "prompt_masks": lambda f: torch.randn(1, 3, *f.side()),
    "prompt_pixel_values": lambda f: torch.randn(1, 3, *f.side()),
    "qformer_input_ids": _ids,
    "query_embeds": _hidden,
    "spectrogram": lambda f: torch.randn(1, 8, f.find("model_in_dim", default=80)),
    "task_inputs": lambda f: torch.randint(3, 90, (1, f.config.task_seq_len)),
}

BESIDES: dict[str, dict[str, Maker]] = {
    "blip_2_qformer": {"encoder_hidden_states": lambda f: torch.randn(1, 6, f.config.encoder_hidden_size)},
    "blt": {"use_cache": lambda f: False},
    "bros": {"bbox": lambda f: torch.rand(1, 12, 8)},
    "clap": {
        "input_features": lambda f: torch.randn(1, 1, 256, 64),
        "is_longer": lambda f: torch.tensor([[False]]),
    },
    "clap_audio_model": {
        "input_features": lambda f: torch.randn(1, 1, 256, 64),
        "is_longer": lambda f: torch.tensor([[False]]),
    },
    "deepseek_ocr2_encoder": {"num_patches": lambda f: 6},
    "dia_decoder": {
        "input_ids": lambda f: torch.randint(3, 90, (1, 7, 9)),
        "attention_mask": lambda f: torch.ones(1, 7, dtype=torch.long),
        "encoder_hidden_states": lambda f: torch.randn(1, 12, f.config.cross_hidden_size),
    },
    "fun_asr_nano_encoder": {"input_features": lambda f: torch.randn(1, 32, 560), "input_features_mask": _frames},
    "granite_speech5_ctc": {"input_features": lambda f: torch.randn(1, 32, 320)},
    "granite_speech5_encoder": {"input_features": lambda f: torch.randn(1, 32, 320)},
    "granite_speech_encoder": {"hidden_states": lambda f: torch.randn(1, 32, f.config.input_dim)},
    "granite_speech_plus_encoder": {"hidden_states": lambda f: torch.randn(1, 32, f.config.input_dim)},
    "idefics": {"image_attention_mask": lambda f: torch.ones(1, 12, 2, dtype=torch.long)},
    "kosmos-2": {"image_embeds_position_mask": lambda f: _first(f, f.config.latent_query_num)},
    "kosmos_2_5_vision_model": {"flattened_patches": _flattened},
    "lxmert": {
        "visual_feats": lambda f: torch.randn(1, 5, f.config.visual_feat_dim),
        "visual_pos": lambda f: torch.rand(1, 5, 4),
    },
    "minicpm_ocr_vision": {"target_sizes": lambda f: torch.tensor([[4, 4]])},
    "minicpmv4_6_vision": {"target_sizes": lambda f: torch.tensor([[4, 4]])},
    "minicpmv4_7_vision": {"target_sizes": lambda f: torch.tensor([[4, 4]])},
    "mllama": {
        "pixel_values": lambda f: torch.randn(1, 1, 4, 3, *f.side()),
        "aspect_ratio_ids": lambda f: torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": lambda f: torch.ones(1, 1, 4, dtype=torch.long),
        "cross_attention_mask": lambda f: torch.ones(1, 12, 1, 4, dtype=torch.long),
    },
    "mllama_vision_model": {"pixel_values": lambda f: torch.randn(1, 1, 4, 3, *f.side())},
    "patchtsmixer": {"past_values": lambda f: torch.randn(1, 32, f.config.num_input_channels)},
    "patchtst": {"past_values": lambda f: torch.randn(1, 32, f.config.num_input_channels)},
    "phi4_multimodal_audio": {
        "hidden_states": lambda f: torch.randn(1, 64, f.config.input_size),
        "mask": lambda f: torch.ones(1, 64, dtype=torch.bool),
    },
    "pix2struct": {"flattened_patches": _flattened},
    "pix2struct_vision_model": {"flattened_patches": _flattened},
    "t5gemma2_decoder": {"encoder_hidden_states": _hidden},
    "timesfm": {"past_values": lambda f: torch.randn(1, 64)},
    "tvp": {"pixel_values": lambda f: torch.randn(1, 2, 3, 64, 64)},
    "udop": {"bbox": lambda f: torch.rand(1, 12, 4)},
    "voxtral_realtime_text": {"t_cond": lambda f: torch.randn(1, 1, f.width())},
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
    "florence_vision": lambda f: {"hidden_states": torch.randn(1, 3, 64, 64)},
    "gemma4_assistant": _drafted,
    "gemma4_audio": lambda f: {"input_features": torch.randn(1, 64, f.config.subsampling_conv_channels[0])},
    "gemma4_unified_assistant": _drafted,
    "lightglue": lambda f: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "molmo2_adapter": lambda f: {
        "image_features": torch.randn(1, 12, f.width() * len(f.config.vision_feature_layer)),
        "pooled_patches_idx": torch.arange(12).reshape(3, 4),
    },
    "moshi_depth": lambda f: {
        "input_ids": torch.randint(3, 90, (1, 8)),
        "last_hidden_state": torch.randn(1, 1, f.config.input_size),
    },
    "muse_glimmer_assistant": lambda f: {
        "noise_embeds": _hidden(f),
        "context_hidden_states": torch.randn(1, 12, 4 * f.width()),
    },
    "musicgen": lambda f: {"input_ids": _ids(f, 12), "decoder_input_ids": torch.randint(3, 90, (4, 6))},
    "musicgen_melody": lambda f: {"input_ids": _ids(f, 12), "decoder_input_ids": torch.randint(3, 90, (4, 6))},
    "neucodec": _wave_and_features,
    "perceiver": lambda f: {"inputs": _ids(f, 12), "attention_mask": torch.ones(1, 12)},
    "pi0": lambda f: (
        f.text({f.placeholder("image"): 32})
        | {
            "pixel_values": torch.randn(1, 2, 3, *f.side()),
            "pixel_attention_mask": torch.ones(1, 2, dtype=torch.bool),
            "action_embeds": torch.randn(1, 6, f.config.dit_config.hidden_size),
        }
    ),
    "pp_ocrv5_server_rec": _printed,
    "pp_ocrv6_small_rec": _printed,
    "qwen2_5_omni_audio_encoder": lambda f: {
        "input_features": torch.randn(f.config.num_mel_bins, 64),
        "feature_lens": torch.tensor([64]),
        "aftercnn_lens": torch.tensor([32]),
    },
    "qwen2_5_omni_dit": lambda f: {
        "hidden_states": torch.randn(1, 24, f.config.mel_dim),
        "condition_vector": torch.randn(1, 32, f.config.mel_dim),
        "speaker_embedding": torch.randn(1, 24, f.config.enc_emb_dim),
        "quantized_code": _ids(f, 12),
        "time_step": torch.tensor(0.5),
        "apply_cfg": False,
    },
    "qwen2_5_omni_token2wav": lambda f: {
        "code": _ids(f, 12),
        "conditioning": torch.randn(1, f.config.dit_config.enc_emb_dim),
        "reference_mel": torch.randn(1, 32, f.config.dit_config.mel_dim),
        "num_steps": 2,
        "guidance_scale": 0.0,
    },
    "qwen3_asr_encoder": lambda f: {
        "input_features": torch.randn(1, f.config.num_mel_bins, 100),
        "input_features_mask": torch.ones(1, 100, dtype=torch.long),
    },
    "qwen3_omni_moe_audio_encoder": lambda f: {
        "input_features": torch.randn(f.config.num_mel_bins, 100),
        "feature_lens": torch.tensor([100]),
    },
    "rag": lambda f: {
        "input_ids": _ids(f, 12),
        "context_input_ids": torch.randint(3, 90, (f.config.n_docs, 10)),
        "context_attention_mask": torch.ones(f.config.n_docs, 10, dtype=torch.long),
        "doc_scores": torch.randn(1, f.config.n_docs),
        "decoder_input_ids": torch.randint(3, 90, (1, 6)),
    },
    "sam2_video": _tracked,
    "sam3_tracker_video": _tracked,
    "sam3_video": _prompted,
    "seggpt": lambda f: {
        name: torch.randn(1, 3, 64, 64) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    },
    "speech-encoder-decoder": lambda f: {"input_values": torch.randn(1, 6400), "decoder_input_ids": _ids(f, 7)},
    "speecht5": lambda f: {"input_values": _hidden(f), "decoder_input_values": _hidden(f)},
    "superglue": lambda f: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "vision-text-dual-encoder": lambda f: f.text() | {"pixel_values": torch.randn(1, 3, *f.side())},
    "voxtral_realtime": _streamed,
    "xcodec2": _wave_and_features,
}
"""The whole input of a type."""
