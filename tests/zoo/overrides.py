"""What the shrinker cannot know, family by family: tables only."""

from __future__ import annotations

from typing import Any

Table = dict[str, dict[str, Any]]


def _rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0} | more}


_RESNET = {"model_type": "resnet", "out_features": ["stage1", "stage2", "stage3", "stage4"]}
_NO_TIMM: dict[str, Any] = {"use_timm_backbone": False, "backbone": None, "backbone_config": _RESNET}
_LAST_STAGE = _NO_TIMM | {"backbone_config": _RESNET | {"out_features": ["stage4"]}}
_EXPERTS = {"num_experts_per_tok": 2}

START: Table = {
    "align": {"projection_dim": 320},
    "align_vision_model": {"width_coefficient": 1.0, "depth_coefficient": 0.5, "hidden_dim": 1280},
    "audio-spectrogram-transformer": {"max_length": 64},
    "autoformer": {"prediction_length": 8, "context_length": 16},
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16}
    },
    "blip-2": {"image_token_index": 50265},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "conditional_detr": _LAST_STAGE,
    "dab-detr": _LAST_STAGE,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 4, "clip_qkv": 8}, "d_model": 2048},
    "deepseek_ocr2_text": _EXPERTS | {"moe_intermediate_size": 1408, "mlp_layer_types": ["dense"] + ["sparse"] * 11},
    "deepseek_ocr2_vision": {
        "encoder_config": {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2}
    },
    "deepseek_v2": _EXPERTS | {"moe_intermediate_size": 1408},
    "deformable_detr": _NO_TIMM | {"backbone_config": _RESNET | {"out_features": ["stage2", "stage3", "stage4"]}},
    "detr": _LAST_STAGE,
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 128},
    "dots1": _EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1},
    "efficientnet": {"width_coefficient": 1.0, "depth_coefficient": 0.5, "hidden_dim": 1280},
    "ernie4_5_vl_moe_text": _rope(mrope_section=[22, 22, 20]),
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "gemma4_assistant": {
        "text_config": {
            "model_type": "gemma4_text",
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": 30,
            "num_hidden_layers": 30,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
        }
    },
    "glm4v_moe_text": {"num_attention_heads": 32} | _rope(mrope_section=[8, 12, 12], partial_rotary_factor=0.5),
    "glm4v_text": _rope(mrope_section=[8, 12, 12], partial_rotary_factor=0.5),
    "glm_image_text": _rope(mrope_section=[8, 12, 12], partial_rotary_factor=0.5),
    "glm_ocr_text": _rope(mrope_section=[8, 12, 12]),
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]], "downsample_rate": "1/2", "image_grid_pinpoints": [[64, 64]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "moe_topk": 1, "num_experts": 4},
    "hunyuan_vl_text": {"head_dim": 128} | _rope(mrope_section=[16, 16, 16, 16]),
    "informer": {"prediction_length": 8, "context_length": 16},
    "instructblip": {"image_token_index": 50265},
    "instructblipvideo": {"video_token_index": 50265},
    "kosmos_2_5_vision_model": {"patch_embed_hidden_size": 768},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 10 + ["conv", "conv"]},
    "lightglue": {"keypoint_detector_config": {"model_type": "superpoint", "max_keypoints": 16}},
    "lighton_ocr": {"image_token_id": 151655},
    "llama4_vision_model": {"num_attention_heads": 16, "hidden_size": 1408},
    "lw_detr": {"num_queries": 10, "group_detr": 2, "projector_scale_factors": [1.0]},
    "ministral": {"head_dim": 128},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "moonshine_streaming": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "paddleocr_vl": {"image_token_id": 100295},
    "paddleocr_vl_text": _rope(mrope_section=[16, 24, 24]),
    "paddleocr_vl_vision": {"hidden_size": 1024},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "pp_doclayout_v2": {"class_thresholds": [0.5] * 2},
    "qwen2_5_omni_talker": _rope(mrope_section=[16, 24, 24]),
    "qwen2_5_omni_text": _rope(mrope_section=[16, 24, 24]),
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "qwen2_5_vl_text": _rope(mrope_section=[16, 24, 24]),
    "qwen2_vl_text": _rope(mrope_section=[16, 24, 24]),
    "qwen2_vl_vision": {"hidden_size": 8192},
    "qwen3_omni_moe": {"enable_audio_output": False},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 256},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 151652, "vision_end_token_id": 151653},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "rf_detr": {"num_queries": 4, "group_detr": 2},
    "shieldgemma2": {"yes_token_index": 10784, "no_token_index": 1294},
    "step3p5": {"sliding_window": 8},
    "step3p7_text": {"sliding_window": 8},
    "superglue": {"keypoint_detector_config": {"model_type": "superpoint", "max_keypoints": 16}},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "table-transformer": _LAST_STAGE,
    "time_series_transformer": {"prediction_length": 8, "context_length": 16},
    "tvp": _LAST_STAGE | {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2},
    "unlimited_ocr_vision": {"hidden_size": 1024},
    "upernet": {"backbone_config": {"model_type": "swin", "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    "vitmatte": {
        "backbone_config": {"model_type": "vitdet", "hidden_size": 384, "num_channels": 4, "num_attention_heads": 6}
    },
    "voxtral": {"audio_token_id": 24},
    "xmod": {"default_language": "en_XX"},
}
"""Set in the default configuration before it is shrunk."""

FIXED: Table = {
    "bamba": {"num_hidden_layers": 3, "attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 500},
    "chameleon": {"vocabulary_map": {"<image>": 150} | {f"IMGIMG{'ABCDEFGH'[i]}Z": 100 + i for i in range(8)}},
    "chameleon_vqgan": {"num_embeddings": 8},
    "cvt": {"depth": [1, 2, 3]},
    "depth_pro": {
        "patch_size": 32,
        "intermediate_hook_ids": [1, 0],
        "fusion_hidden_size": 32,
        "intermediate_feature_dims": [32, 32],
        "scaled_images_feature_dims": [32, 32, 32],
        "merge_padding_value": 0,
    }
    | {
        k: {
            "model_type": "dinov2",
            "image_size": 32,
            "patch_size": 8,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        for k in ("image_model_config", "patch_model_config", "fov_model_config")
    },
    "emu3": {
        "vocabulary_map": {"<image>": 150, "<|extra_200|>": 151}
        | {f"<|visual token {i:06}|>": 60 + i for i in range(80)}
    },
    "emu3_vqgan": {"codebook_size": 80},
    "fastspeech2_conformer_hifigan": {"model_in_dim": 80},
    "gemma4_audio": {"subsampling_conv_channels": [128, 32]},
    "granitemoehybrid": {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"]},
    "hrm_text": {"num_hidden_layers": 16, "num_layers_per_stack": 2},
    "janus_vqgan": {"num_patches": 8},
    "kosmos-2": {"latent_query_num": 4},
    "led": {"attention_window": [8, 8], "encoder_layers": 2},
    "llava_next": {"image_grid_pinpoints": [[56, 112]]},
    "llava_next_video": {"image_grid_pinpoints": [[56, 112]]},
    "llava_onevision": {"image_grid_pinpoints": [[56, 112]]},
    "longformer": {"attention_window": [8, 8], "num_hidden_layers": 2},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "mllama_vision_model": {"num_hidden_layers": 5, "intermediate_layers_indices": [0, 1, 2, 3, 4]},
    "perceiver": {"num_latents": 16, "d_latents": 32, "num_self_attends_per_block": 2},
    "pp_doclayout_v2": {"class_order": [0, 1], "class_thresholds": [0.0, 0.0]},
    "rag": {
        "question_encoder": {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2},
        "generator": {"model_type": "bart", "encoder_layers": 1, "decoder_layers": 1, "d_model": 32},
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam2_hiera_det_model": {
        "image_size": [64, 64],
        "patch_stride": [4, 4],
        "window_size_per_stage": [4, 2, 4, 2],
        "window_positional_embedding_background_size": [4, 4],
        "global_attention_blocks": [4],
    },
    "sam2_prompt_encoder": {"image_size": 64, "patch_size": 16},
    "sam2_video": {"image_size": 64, "memory_attention_rope_feat_sizes": [4, 4]},
    "sam2_video_prompt_encoder": {"image_size": 64, "patch_size": 16},
    "sam2_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "sam3_lite_text_text_model": {"num_hidden_layers": 4},
    "sam3_tracker_video": {
        "image_size": 56,
        "memory_encoder_output_channels": 64,
        "memory_attention_rope_feat_sizes": [4, 4],
    },
    "sam3_video": {"low_res_mask_size": 16},
    "sam3_vision_model": {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
    "seggpt": {
        "image_size": [128, 64],
        "merge_index": 0,
        "num_hidden_layers": 4,
        "intermediate_hidden_state_indices": [1, 2, 3],
    },
    "swin2sr": {"image_size": 12, "window_size": 3, "depths": [2, 2], "num_heads": [6, 6]},
    "vjepa2": {"frames_per_clip": 4, "crop_size": 64},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
}
"""Set as they are, whatever the scale."""

SIZE: dict[str, tuple[int, ...]] = {
    "align": (1, 0),
    "align_vision_model": (1, 0),
    "chameleon": (4, 0),
    "efficientnet": (1, 0),
    "emu3": (4, 0),
    "janus_vqgan": (2, 0),
    "pp_lcnet": (1, 0),
    "pp_lcnet_v3": (1, 0),
    "pp_ocrv6_small_rec": (1, 0),
}
"""The one scale to use, where the usual ones do not fit."""

CLASS: dict[str, str] = {
    "bark": "BarkModel",
    "deepseek_ocr2_encoder": "deepseek_ocr2.modeling_deepseek_ocr2.DeepseekOcr2VisionEncoder",
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "perceiver": "PerceiverForMaskedLM",
    "pp_ocrv5_mobile_rec": "PPOCRV5MobileRecForTextRecognition",
    "pp_ocrv5_server_rec": "PPOCRV5ServerRecForTextRecognition",
    "pp_ocrv6_small_rec": "PPOCRV6SmallRecForTextRecognition",
    "qwen2_5_omni": "Qwen2_5OmniForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeForConditionalGeneration",
}
"""Model class, where the first one that transformers names is not the one to use."""

PART: dict[str, str] = {
    "bark": "semantic",
    "qwen2_5_omni": "thinker",
    "qwen3_omni_moe": "thinker",
}
"""The part to run, of models that only generate and have no forward."""
