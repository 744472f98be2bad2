"""Make any Hugging Face configuration small, without knowing the model.

The default configuration of a type is consistent: its widths, heads and channel lists fit each other. So nothing
is invented here. Every width is divided by one factor, everywhere in the tree of sub-configurations; head counts
stay; depth is cut to one layer of each kind; the vocabulary is cut and the special ids are moved inside it, the same
old id always to the same new one. What a rule cannot know stands in `overrides.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.zoo.overrides import FIXED, START

VOCABULARY = 160
DEEPEST = 4
WINDOW = 3

_WIDTH = re.compile(
    r"hidden|dim|d_model|embd|embed|intermediate|ffn|d_ff|dff|d_kv|d_inner|n_inner|d_head|channel|filters|rank|"
    r"width|units|proj|inner|latent_size|latent_dim|feats$|head_size|inplanes|headdim|feedforward|feed_forward|"
    r"upsample_groups|features$|feature_size|planes|lowrank|neck_|_section$|axes|state_size|flow_size|fpn"
)
_NOT_WIDTH = re.compile(
    r"^num_(?!filters|pos_feats)|_num_(?!filters)|layers$|_layer|layer_|position|token|(_|^)ids?$|ind(ex|ic)|kernel|"
    r"stride|vocab|dropout|_rate|ratio|prob|factor|image_size|patch_size|window|chunk|^max_|^min_|eps|range|act$|"
    r"_act|types?$|mult|coefficient|(?<!upsample_)group|temperature|length|seq|_loss|bandwidth|embeddings$|bias|_heads|classes|"
    r"mlp_only|depth|^act_dim|state_dim$|query_dim|mel_|max_dim|grid|num_channels|in_chans|sinusoid"
)
_DEPTH = re.compile(r"(^|_)(n_|num_)?(layers?|depth|num_blocks)$")
_NOT_DEPTH = re.compile(r"feat_extract|conv|prenet|postnet|residual|nextn|mtp|feature|look_|max_depth|fov|lqe|resid")
_EXPERTS = re.compile(r"(num|n|moe|routed|local)_(\w+_)?experts$|^num_experts$|expert_num")
_TOP_EXPERTS = re.compile(
    r"experts_per_tok|experts_per_token|moe_?(top)?_?k$|experts_top_k|num_selected_experts|top_k_experts|topk_experts"
)
_SPECIAL_ID = re.compile(r"(token_id|token_index|token_ids|_token)$")
_LAYER_NUMBERS = re.compile(r"ind(ex|ic)|layers|_ids?$|blocks|_hook_")
_PERIOD = re.compile(
    r"(period|interval|frequency|every_n_layers|sparse_step|window_pattern|layer_freq|layer_group_size)$"
)
_STAGES = ("depths", "hidden_sizes", "embed_dims", "blocks_per_stage", "encoder_hidden_sizes", "stage_configs")
_HIDDEN = ("embed_dim", "hidden_size", "d_model", "n_embd", "dim", "hidden_dim")
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "attention_heads")
_KEEP = {
    "model_type",
    "transformers_version",
    "architectures",
    "id2label",
    "label2id",
    "dtype",
    "chunk_size_feed_forward",
}


@dataclass
class Scale:
    """How far to go.

    `divisor` divides all widths. Where it is 0, heads become `head` wide instead: each width that is a whole number of
    heads follows its own heads, and a width of one tower that another tower names follows too. `small_images` asks for
    as few patches as the model can take.
    """

    divisor: int
    head: int = 0
    small_images: bool = True
    ids: dict[int, int] = field(default_factory=dict)
    widths: dict[int, int] = field(default_factory=dict)

    def move_id(self, old: int) -> int:
        """A special id's place inside the small vocabulary; ids that fit already stay."""
        if old < VOCABULARY // 2:
            return old
        return self.ids.setdefault(old, VOCABULARY - 1 - len(self.ids))


SCALES = ((16, 0), (8, 0), (0, 8), (0, 16), (4, 0), (8, 0, False), (2, 0), (1, 0), (1, 0, False))


def shrink(model_type: str, scale: Scale) -> PreTrainedConfig:
    """The default configuration of `model_type`, made small.

    Parameters
    ----------
    model_type
        A key of transformers' CONFIG_MAPPING.
    scale
        How far; it also remembers which special id went where.
    """
    kind = CONFIG_MAPPING[model_type]
    start = START.get(model_type, {})
    whole = kind(**start)
    if not scale.divisor:
        _learn_widths(whole, scale)
    changes = start | _changes(whole, scale)
    small = kind(**changes)
    _settle(small, changes)
    return small


def _settle(config: PreTrainedConfig, changes: dict[str, Any]) -> None:
    """Set what the constructor passed over: some types know one entry by two names."""
    for key, value in changes.items():
        try:
            now = getattr(config, key, None)
        except Exception:  # a value that differs from layer to layer has no one answer
            continue
        if isinstance(now, PreTrainedConfig) and isinstance(value, dict):
            _settle(now, value)
        elif type(value) is int and isinstance(now, int) and now != value:
            setattr(config, key, value)


def _learn_widths(config: PreTrainedConfig, scale: Scale) -> None:
    """Note what becomes of the hidden sizes of all towers."""
    for key in getattr(type(config), "sub_configs", None) or {}:
        if isinstance(sub := getattr(config, key, None), PreTrainedConfig):
            _learn_widths(sub, scale)
    values = config.to_dict()
    if divisor := _head_divisor(values, scale.head):
        for key in _HIDDEN:
            if isinstance(width := values.get(key), int) and width % divisor == 0:
                scale.widths[width] = width // divisor


def _head_divisor(values: dict[str, Any], head: int) -> int:
    """What heads must be divided by to become `head` wide; 0 where they are not a multiple of it."""
    heads = next((values[k] for k in _HEADS if isinstance(values.get(k), int)), 0)
    hidden = next((values[k] for k in _HIDDEN if isinstance(values.get(k), int)), 0)
    width = values.get("head_dim") or values.get("d_kv") or (hidden // heads if heads else 0)
    return width // head if isinstance(width, int) and width % head == 0 else 0


def _changes(config: PreTrainedConfig, scale: Scale) -> dict[str, Any]:
    """The keyword arguments that make a small `config`."""
    fixed = FIXED.get(config.model_type, {})
    subs = set(getattr(type(config), "sub_configs", None) or {})
    values = {k: v for k, v in config.to_dict().items() if k not in subs and k not in _KEEP}
    layers = _pick_layers(values)
    small = {k: _small(k, v, values, layers, scale) for k, v in values.items()}
    changed = {k: v for k, v in small.items() if v != values[k]} | fixed
    if "out_indices" in changed:
        changed["out_features"] = None
    for key in subs - set(fixed):
        sub = getattr(config, key, None)
        if isinstance(sub, PreTrainedConfig):
            _fit_to_text(sub, getattr(config, "text_config", None))
            changed[key] = _nested(sub, scale)
    return changed


def _fit_to_text(sub: PreTrainedConfig, text: PreTrainedConfig | None) -> None:
    """Let a tower write vectors as wide as the text model reads; the bare defaults of some parents disagree."""
    if text is not None and sub is not text and hasattr(sub, "out_hidden_size") and hasattr(text, "hidden_size"):
        sub.out_hidden_size = text.hidden_size


def _nested(sub: PreTrainedConfig, scale: Scale) -> dict[str, Any]:
    """A sub-configuration as a dict: what its parent set, then what shrinks it."""
    try:
        usual = type(sub)().to_dict()
    except Exception:  # a type whose bare default is not valid
        usual = {}
    inner = set(getattr(type(sub), "sub_configs", None) or {})
    derived = {"stage_names", "out_features", "transformers_version"}
    own = {k: v for k, v in sub.to_dict().items() if v != usual.get(k) and k not in inner | derived}
    if start := START.get(sub.model_type):
        own |= start
        sub = type(sub)(**own)
    return own | _changes(sub, scale) | {"model_type": sub.model_type}


@dataclass
class _Layers:
    """Which layers of the default model are kept: `kept[i]` is the old number of new layer i."""

    before: int
    kept: list[int]

    def move(self, old: int) -> int:
        """The new number of the layer that stands where `old` stood."""
        return old * len(self.kept) // self.before


def _pick_layers(values: dict[str, Any]) -> _Layers | None:
    """One layer of each kind, at least two, and as many as the model taps for its outputs."""
    before = next(
        (
            v
            for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "decoder_layers")
            if isinstance(v := values.get(k), int) and not isinstance(v, bool)
        ),
        0,
    )
    if before <= 2 or any(isinstance(values.get(k), list) for k in _STAGES):
        return None
    per_layer = [v for v in values.values() if isinstance(v, (list, tuple)) and len(v) == before]
    kinds = list(zip(*per_layer, strict=True)) or [()] * before
    kept = list({str(kind): i for i, kind in reversed(list(enumerate(kinds)))}.values())
    tapped = [len(v) for k, v in values.items() if _is_layer_list(k, v, before)]
    wanted = min(max([2, len(kept), *tapped]), DEEPEST, before)
    kept = sorted(kept)[:wanted]
    spare = (i for i in range(before) if i not in kept)
    return _Layers(before, sorted(kept + [next(spare) for _ in range(wanted - len(kept))]))


def _is_layer_list(key: str, value: Any, before: int) -> bool:
    """Whether `value` holds layer numbers, such as [2, 5, 8, 11]."""
    return (
        isinstance(value, (list, tuple))
        and 0 < len(value) < before
        and bool(_LAYER_NUMBERS.search(key))
        and all(type(i) is int and 0 <= i <= before for i in value)
    )


def _small(key: str, value: Any, values: dict[str, Any], layers: _Layers | None, scale: Scale) -> Any:
    """The small counterpart of one entry."""
    if isinstance(value, dict):
        return {k: _divide(v, _divisor(values, scale)) if str(k).endswith("_section") else v for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return _small_list(key, value, values, layers, scale)
    if type(value) is not int:
        return value
    return _small_int(key, value, values, layers, scale)


def _divide(sections: list[int], divisor: int) -> list[int]:
    """Rotary sections, which share out half a head; they follow the head's width."""
    small = [n // divisor for n in sections]
    small[-1] += sum(sections) // divisor - sum(small)
    return small


def _divisor(values: dict[str, Any], scale: Scale) -> int:
    return scale.divisor or _head_divisor(values, scale.head) or 64 // scale.head


def _small_list(key: str, value: Any, values: dict[str, Any], layers: _Layers | None, scale: Scale) -> Any:
    if layers and len(value) == layers.before:
        return [value[i] for i in layers.kept]
    if layers and _is_layer_list(key, value, layers.before):
        if key == "out_indices":
            return list(range(len(layers.kept) - len(value) + 1, len(layers.kept) + 1))
        return list(dict.fromkeys(layers.move(i) for i in value))
    if key in ("depths", "blocks_per_stage"):
        return [min(d, 2) for d in value]
    if key in ("image_size", "img_size") and scale.small_images:
        return [_small_int(key, v, values, layers, scale) for v in value]
    if value and all(type(v) is int for v in value):
        return [_small_int(key, v, values, None, scale) for v in value]
    if value and all(isinstance(v, (list, tuple)) for v in value) and _is_width(key):
        return [_small_list(key, v, values, None, scale) for v in value]
    return value


def _is_width(key: str) -> bool:
    return bool(_WIDTH.search(key)) and not _NOT_WIDTH.search(key)


def _small_int(key: str, value: int, values: dict[str, Any], layers: _Layers | None, scale: Scale) -> int:
    if "vocab_size" in key:
        return min(value, VOCABULARY)
    if _EXPERTS.search(key):
        return min(value, 4)
    if _TOP_EXPERTS.search(key):
        return min(value, 2)
    if _SPECIAL_ID.search(key):
        return scale.move_id(value)
    if key in ("n_group", "topk_group", "num_expert_group"):
        return 1
    if _PERIOD.search(key):
        return min(value, 2)
    if key.endswith("layer_offset"):
        return min(value, 1)
    if _DEPTH.search(key) and not _NOT_DEPTH.search(key):
        return _small_depth(key, value, values, layers)
    if key in ("image_size", "img_size"):
        return _small_image(value, values) if scale.small_images else value
    if key == "window_size" and "image_size" in values and isinstance(values.get("depths"), list):
        return WINDOW
    if key == "mm_tokens_per_image":
        return 4 if scale.small_images else value
    if key == "max_source_positions":
        return min(value, 64)
    if _is_width(key) and value >= 16:
        return _small_width(value, _divisor(values, scale), scale)
    return value


def _small_width(value: int, divisor: int, scale: Scale) -> int:
    if value in scale.widths:
        return scale.widths[value]
    return value // divisor if value % divisor == 0 else value


def _small_depth(key: str, value: int, values: dict[str, Any], layers: _Layers | None) -> int:
    if layers and value == layers.before:
        return len(layers.kept)
    if any(isinstance(values.get(k), list) for k in _STAGES):
        return value
    return min(value, 2)


def _small_image(value: int, values: dict[str, Any]) -> int:
    """Four patches a side; models that halve the picture stage by stage get a window a side at the last stage."""
    patch = values.get("patch_size")
    stages = next((len(values[k]) for k in _STAGES if isinstance(values.get(k), list)), 0)
    if stages and type(patch) is int and type(values.get("window_size")) is int:
        return patch * WINDOW * 2 ** (stages - 1)
    if stages or type(patch) is not int or patch < 2:
        return min(value, 112)
    return min(value, 4 * patch)
