"""Inputs that a small model can run on, guessed from the arguments of its forward.

`candidates` goes from the richest guess (text with a picture and a sound in it) to the poorest; the first one that
the model accepts is used. How many placeholder tokens a picture needs is not computed: the model says it in its error,
and the guess is made again with that number.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tests.zoo.special import BESIDES, BY_NAME, INPUTS

Inputs = dict[str, Any]
TEXT = 12
LONG = 48
"""Positions of the second text: beyond the windows, blocks and chunks of the small models, and a multiple of them."""

_now = {"text": TEXT, "sound": 1}


@contextmanager
def longer() -> Iterator[None]:
    """Inputs made inside the block have more words and twice the sound."""
    _now.update(text=LONG, sound=2)
    try:
        yield
    finally:
        _now.update(text=TEXT, sound=1)


_MISMATCH = re.compile(
    r"tokens:? (\d+),? +(?:and )?features:? (?:torch.Size\(\[)?(\d+)|tokens \((\d+)\) and features \((\d+)\)"
)
_PIXELS = ("pixel_values", "pixel_values_images", "pixel_values_videos", "image")
_SOUNDS = ("input_features", "input_values", "audio_values", "audio_input_features")


def candidates(model: PreTrainedModel, rich: bool) -> Iterator[Inputs]:
    """Guesses, best first: all that the model can see and hear where `rich`, else one thing alone."""
    facts = Facts(model)
    by_hand = INPUTS.get(model.config.model_type)
    if by_hand is not None:
        yield by_hand(facts)
        return
    for pixels, sound, text in (_rich_plans if rich else _poor_plans)(facts):
        torch.manual_seed(1)
        guess: Inputs = {}
        for part in (pixels, sound, text):
            if part is not None:
                guess |= part(facts)
        yield _complete(guess, facts)


def with_placeholders(inputs: Inputs, model: PreTrainedModel, error: str) -> Inputs | None:
    """`inputs` with as many placeholder tokens as the `error` asks for; None where it asks for something else."""
    found = _MISMATCH.search(error)
    if found is None or "input_ids" not in inputs:
        return None
    _, features = (int(n) for n in found.groups() if n is not None)
    facts, ids = Facts(model), inputs["input_ids"]
    wanted = next((k for k in ("image", "video", "audio") if k in error.lower()[: found.start() + 1]), "image")
    special = facts.placeholder(wanted) or facts.placeholder("audio")
    if features > 600:  # some models count numbers, not vectors
        features //= getattr(getattr(facts.config, "text_config", facts.config), "hidden_size", 1)
    if special is None or int((ids == special).sum()) == features or features > 600:
        return None
    return inputs | facts.text(facts.placeholders(inputs) | {special: features})


class Facts:
    """What the guesses need to know of a model and its configuration."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.config = model, model.config
        self.parameters = inspect.signature(type(model).forward).parameters
        self.main = getattr(model, "main_input_name", "input_ids")

    def takes(self, name: str) -> bool:
        """Whether forward has an argument of that name."""
        return name in self.parameters

    def needs(self, name: str) -> bool:
        """Whether forward cannot do without it."""
        return self.takes(name) and self.parameters[name].default is inspect.Parameter.empty

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that the configuration or one of its sub-configurations sets."""
        for config, name in itertools.product(_tree(self.config), names):
            value = getattr(config, name, None)
            if isinstance(value, (int, list, tuple)) and not isinstance(value, bool):
                return value
        return default

    def width(self) -> int:
        """The width of the hidden states."""
        return self.find("hidden_size", "d_model", "embed_dim", "hidden_dim", default=64)

    def side(self) -> tuple[int, int]:
        """Height and width of a picture."""
        size = self.find("image_size", "img_size", "input_size", "crop_size", default=128)
        return (size, size) if isinstance(size, int) else (size[-2], size[-1])

    def patch(self) -> int:
        """Side of a patch."""
        size = self.find("patch_size", default=14)
        return size if isinstance(size, int) else size[-1]

    def placeholder(self, kind: str) -> int | None:
        """The id that stands in the text for a picture, film or sound."""
        return self.find(f"{kind}_token_id", f"{kind}_token_index", f"{kind}_placeholder_token_id")

    def placeholders(self, inputs: Inputs) -> dict[int, int]:
        """How often each placeholder stands in the ids of `inputs`."""
        kinds = {self.placeholder(k) for k in ("image", "video", "audio")} - {None}
        return {k: n for k in sorted(kinds) if (n := int((inputs["input_ids"] == k).sum()))}

    def text(self, special: dict[int, int] | None = None) -> Inputs:
        """Token ids, with `special` ids in front as often as told."""
        high = min(self.find("vocab_size", default=100), 70)
        torch.manual_seed(1)
        words = torch.randint(min(20, high // 2), high, (_now["text"],)).tolist()
        taken = {
            v
            for c in _tree(self.config)
            for k, v in vars(c).items()
            if k.endswith(("token_id", "token_index"))
            if isinstance(v, int)
        }
        words = [w if w not in taken else high - 1 for w in words]
        front = [i for token, n in (special or {}).items() for i in [token] * n]
        ids = torch.tensor([words[:2] + front + words[2:]])
        given: Inputs = {"input_ids": ids}
        if self.takes("attention_mask"):
            given["attention_mask"] = torch.ones_like(ids)
        if self.takes("mm_token_type_ids"):
            given["mm_token_type_ids"] = torch.isin(ids, torch.tensor(list(special or {-1: 0}))).long()
        return given


def _tree(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The configuration and all below it, nearest first."""
    level = [config]
    while level:
        yield from level
        level = [
            sub
            for c in level
            for k in (getattr(type(c), "sub_configs", None) or {})
            if isinstance(sub := getattr(c, k, None), PreTrainedConfig)
        ]


Part = Callable[[Facts], Inputs] | None


def _parts(facts: Facts) -> tuple[list[Part], list[Part], list[Part]]:
    """Shapes of picture, of sound and of text that are worth trying, likeliest first."""
    pictures: list[Part] = []
    if facts.takes("grid_thw") or facts.takes("image_grid_thw"):
        pictures = [_patches, _square_patches, _patches_of_one]
    elif facts.find("image_grid_pinpoints") is not None:
        pictures = [_pinned_tiles]
    elif any(facts.takes(n) for n in _PIXELS):
        pictures = [_image, _film, _tiles, _flat_patches, _big_image, _image_with_size]
    sounds: list[Part] = [_mel_first, _time_first, _wave, _wave_channel] if any(facts.takes(n) for n in _SOUNDS) else []
    return pictures, sounds, [_text] if facts.takes("input_ids") else []


def _rich_plans(facts: Facts) -> Iterator[tuple[Part, Part, Part]]:
    pictures, sounds, texts = _parts(facts)
    yield from itertools.product(pictures or [None], sounds or [None], texts or [None])


def _poor_plans(facts: Facts) -> Iterator[tuple[Part, Part, Part]]:
    pictures, sounds, texts = _parts(facts)
    if sounds and pictures:
        yield from itertools.product(pictures, [None], texts or [None])
        yield from itertools.product([None], sounds, texts or [None])
    if texts:
        yield from itertools.product(pictures or [None], sounds or [None], [None])
        yield None, None, _text
    if facts.takes("inputs_embeds"):
        yield None, None, _embedded


def _complete(guess: Inputs, facts: Facts) -> Inputs:
    """Add what forward needs besides, by name."""
    if facts.takes("decoder_input_ids") and (
        getattr(facts.config, "is_encoder_decoder", False) or "input_ids" not in guess
    ):
        guess.setdefault("decoder_input_ids", torch.arange(3, 10)[None])
    for name in facts.parameters:
        if name not in guess and facts.needs(name) and name in BY_NAME:
            guess[name] = BY_NAME[name](facts)
    for name, make in BESIDES.get(facts.config.model_type, {}).items():
        guess[name] = make(facts)
    return guess


def _text(facts: Facts) -> Inputs:
    grid = facts.takes("image_grid_thw")
    count = 16 // facts.find("spatial_merge_size", "merge_size", default=2) ** 2 if grid else 1
    special = {
        i: count
        for k, names in (("image", _PIXELS), ("audio", _SOUNDS))
        if any(facts.takes(n) for n in names) and (i := facts.placeholder(k)) is not None
    }
    return facts.text(special)


def _embedded(facts: Facts) -> Inputs:
    given: Inputs = {"inputs_embeds": torch.randn(1, _now["text"], facts.width())}
    if facts.takes("attention_mask"):
        given["attention_mask"] = torch.ones(1, _now["text"], dtype=torch.long)
    return given


def _pixels(facts: Facts, *shape: int) -> Inputs:
    name = next(n for n in _PIXELS if facts.takes(n))
    given: Inputs = {name: torch.randn(*shape)}
    if facts.takes("image_sizes") and len(shape) > 4:
        given["image_sizes"] = torch.tensor([list(shape[-2:])])
    return given


def _channels(facts: Facts) -> int:
    channels = facts.find("num_channels", "in_channels", "in_chans", default=3)
    return channels if isinstance(channels, int) else 3


def _image(facts: Facts) -> Inputs:
    return _pixels(facts, 1, _channels(facts), *facts.side())


def _image_with_size(facts: Facts) -> Inputs:
    return _image(facts) | {"image_sizes": torch.tensor([facts.side()])}


def _big_image(facts: Facts) -> Inputs:
    return _pixels(facts, 1, _channels(facts), 224, 224)


def _film(facts: Facts) -> Inputs:
    frames = facts.find("num_frames", "frames_per_clip", default=2)
    return _pixels(facts, 1, frames if isinstance(frames, int) else 2, _channels(facts), *facts.side())


def _tiles(facts: Facts) -> Inputs:
    """Some pictures of each text, each cut in tiles."""
    return _pixels(facts, 1, 1, 2, _channels(facts), *facts.side())


def _pinned_tiles(facts: Facts) -> Inputs:
    """The whole picture small, then its tiles, as many as its grid has."""
    (high, wide), side = facts.find("image_grid_pinpoints")[0], facts.side()
    tiles = 1 + (high // side[0]) * (wide // side[1])
    given = _pixels(facts, 1, tiles, _channels(facts), *side)
    return given | {"image_sizes": torch.tensor([[high, wide]])}


def _flat_patches(facts: Facts) -> Inputs:
    """Pixels of 16 patches in rows, with their places."""
    patch = facts.patch()
    given = _pixels(facts, 1, 16, _channels(facts) * patch * patch)
    if facts.takes("spatial_shapes"):
        given["spatial_shapes"] = torch.tensor([[4, 4]])
    if facts.takes("pixel_attention_mask"):
        given["pixel_attention_mask"] = torch.ones(1, 16, dtype=torch.long)
    if facts.takes("pixel_position_ids"):
        given["pixel_position_ids"] = torch.cartesian_prod(torch.arange(4), torch.arange(4))[None]
    return given


def _grid(facts: Facts, *shape: int) -> Inputs:
    grid = torch.tensor([[1, 4, 4]])
    if facts.takes("grid_thw"):
        first = next(n for n in ("hidden_states", "pixel_values", "pixel_values_videos") if facts.takes(n))
        return {first: torch.randn(*shape), "grid_thw": grid}
    return {"pixel_values": torch.randn(*shape), "image_grid_thw": grid}


def _patches(facts: Facts) -> Inputs:
    """Pixels of a 4 × 4 grid of patches, all pictures in one row, with the grid's size."""
    patch, depth = facts.patch(), facts.find("temporal_patch_size", "patch_temporal", default=1)
    return _grid(facts, 16, _channels(facts) * depth * patch * patch)


def _square_patches(facts: Facts) -> Inputs:
    patch = facts.patch()
    return _grid(facts, 16, _channels(facts), patch, patch)


def _patches_of_one(facts: Facts) -> Inputs:
    patch = facts.patch()
    return _grid(facts, 1, 16, _channels(facts), patch, patch)


def _sound_name(facts: Facts) -> str:
    return facts.main if facts.main in _SOUNDS else next(n for n in _SOUNDS if facts.takes(n))


def _mels(facts: Facts) -> tuple[int, int]:
    """Frequency bins and frames."""
    bins = facts.find(
        "num_mel_bins",
        "feature_size",
        "input_feat_size",
        "input_dim",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "input_size",
        default=80,
    )
    frames = facts.find("max_length", default=2 * facts.find("max_source_positions", default=64))
    return bins if isinstance(bins, int) else 80, frames * _now["sound"]


def _sound(facts: Facts, values: Tensor, frames: int) -> Inputs:
    given: Inputs = {_sound_name(facts): values}
    for name in ("input_features_mask", "feature_attention_mask", "audio_attention_mask"):
        if facts.takes(name):
            given[name] = torch.ones(1, frames, dtype=torch.long)
    return given


def _mel_first(facts: Facts) -> Inputs:
    bins, frames = _mels(facts)
    return _sound(facts, torch.randn(1, bins, frames), frames)


def _time_first(facts: Facts) -> Inputs:
    bins, frames = _mels(facts)
    return _sound(facts, torch.randn(1, frames, bins), frames)


def _wave(facts: Facts) -> Inputs:
    length = 7680 * _now["sound"]
    return _sound(facts, torch.randn(1, length), length)


def _wave_channel(facts: Facts) -> Inputs:
    length = 7680 * _now["sound"]
    return _sound(facts, torch.randn(1, 1, length), length)
