"""Images in a prompt: the positions that hold their patches, as sources."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnflow.answers.prompt import Reading, encoded
from attnflow.answers.sources import Source, Span
from attnflow.errors import InputError
from attnflow.inputs.naming import plain_tokenizer


@dataclass(frozen=True, eq=False)
class Seen:
    """A prompt with images, as the model's processor reads it.

    Attributes:
        ids: of the whole prompt, image positions included.
        offsets: the characters of each; none for the positions of an image.
        batch: pixels and whatever else the processor gave.
        sources: one for each patch.
        owners: for each position the number of its patch, or −1.
        pictures: each image as a PNG file.
    """

    ids: list[int]
    offsets: list[Span]
    batch: dict[str, Any]
    sources: tuple[Source, ...]
    owners: list[int]
    pictures: tuple[bytes, ...]

    def answered(self, tokenizer: Any, answer: str) -> Reading:
        """The answer behind it; the processor's text is not at hand, so it is tokenized by itself."""
        if not answer.strip():
            raise InputError(f"The answer is {answer!r}, which has no word to attribute.")
        made, spans = encoded(tokenizer, answer, False, False)
        return Reading(tuple(self.ids), (), tuple(made), answer, tuple(spans))


def read_images(model: nn.Module, processor: Any, text: str, images: Any, device: torch.device) -> Seen | None:
    """None where there are no images."""
    if images is None:
        return None
    listed = list(images) if isinstance(images, list | tuple) else [images]
    if getattr(processor, "tokenizer", None) is None or not callable(processor):
        raise InputError(
            f"images= was given, and {type(processor).__name__} reads text only. Pass the processor in its place:  "
            "AutoProcessor.from_pretrained(name)"
        )
    made = processor(text=[text], images=listed, return_tensors="pt")
    ids = made["input_ids"][0].tolist()
    mark = _image_token(model, processor)
    places = [i for i, token in enumerate(ids) if token == mark]
    if not places:
        raise InputError(
            f"The prompt has no place for its {len(listed)} images: put the processor's image token into it:  "
            f"{plain_tokenizer(processor).decode([mark])!r}"
        )
    # Pixels in the model's own precision, as its other inputs are.
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    batch = {
        name: value.to(device, kind) if value.is_floating_point() else value.to(device)
        for name, value in made.items()
        if isinstance(value, torch.Tensor) and name not in ("input_ids", "attention_mask")
    }
    sources, owners = _patches(ids, places, len(listed), made)
    pictures = tuple(_png(image) for image in listed)
    return Seen(ids, _offsets(processor, text, ids, mark), batch, sources, owners, pictures)


def _image_token(model: nn.Module, processor: Any) -> int:
    for holder in (model.config, processor):
        for name in ("image_token_id", "image_token_index"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    raise InputError(
        f"Neither {type(model).__name__} nor its processor names an image token, so patches are not found."
    )


def _patches(ids: Sequence[int], places: list[int], images: int, made: Any) -> tuple[tuple[Source, ...], list[int]]:
    """A source for each position of an image, row by row."""
    if len(places) % images:
        raise InputError(f"{len(places)} image positions do not divide among {images} images: they are not patches.")
    each = len(places) // images
    owners = [-1] * len(ids)
    sources: list[Source] = []
    for number, place in enumerate(places):
        image, at = divmod(number, each)
        rows, columns = _grid(each, made, image)
        row, column = divmod(at, columns)
        name = f"image {image + 1}, patch {row},{column}" if images > 1 else f"patch {row},{column}"
        owners[place] = len(sources)
        sources.append(Source(name, "", 0, 0, "patch", (image, row, column, rows, columns)))
    return tuple(sources), owners


def _grid(count: int, made: Any, image: int) -> tuple[int, int]:
    """Rows and columns of an image's positions: what the processor says, else a square."""
    thw = made.get("image_grid_thw") if hasattr(made, "get") else None
    if isinstance(thw, torch.Tensor):
        _, high, wide = thw[image].tolist()
        merged = round((high * wide / count) ** 0.5)
        if merged and (high // merged) * (wide // merged) == count:
            return high // merged, wide // merged
    side = round(count**0.5)
    return (side, side) if side * side == count else (1, count)


def _offsets(processor: Any, text: str, ids: Sequence[int], mark: int) -> list[Span]:
    """Characters of the tokens that are text: those before, between and behind the images, in order."""
    own, spans = encoded(processor, text, True, True)
    out: list[Span] = []
    at = 0
    for token in ids:
        while at < len(own) and own[at] == mark and token != mark:
            at += 1
        if token != mark and at < len(own) and own[at] == token:
            out.append(spans[at])
            at += 1
        else:
            out.append((0, 0))
    return out


def _png(image: Any) -> bytes:
    from PIL import Image

    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    small = picture.convert("RGB")
    small.thumbnail((768, 768))
    small.save(buffer, "PNG")
    return buffer.getvalue()
