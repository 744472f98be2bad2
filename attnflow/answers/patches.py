"""Images in a prompt: the positions that hold their patches, as sources."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from attnflow.answers.prompt import Reading, encoded
from attnflow.answers.sources import Source, Span
from attnflow.errors import InputError
from attnflow.files import as_path
from attnflow.inputs.naming import plain_tokenizer

Grid = tuple[int, int]
NOT_DRAWN = "The processor does not say how the positions of an image lie on it, so they are not drawn over it."


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
        given: the images as the user gave them.
        notes: what a reader should know.
    """

    ids: list[int]
    offsets: list[Span]
    batch: dict[str, Any]
    sources: tuple[Source, ...]
    owners: list[int]
    pictures: tuple[bytes, ...]
    given: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()

    def answered(self, tokenizer: Any, answer: str) -> Reading:
        """The answer behind it; the processor's text is not at hand, so it is tokenized by itself."""
        if not isinstance(answer, str) or not answer.strip():
            raise InputError(f"The answer is {answer!r}, which has no word to attribute. Give a text.")
        made, spans = encoded(tokenizer, answer, False, False)
        return Reading(tuple(self.ids), tuple(made), answer, tuple(spans))


def read_images(model: nn.Module, processor: Any, text: str, images: Any, device: torch.device) -> Seen | None:
    """None where there are no images."""
    if images is None:
        return None
    listed = [_opened(image) for image in (images if isinstance(images, list | tuple) else [images])]
    if getattr(processor, "tokenizer", None) is None or not callable(processor):
        raise InputError(
            f"images= was given, and {type(processor).__name__} reads text only. Pass the processor in its place:  "
            "AutoProcessor.from_pretrained(name)"
        )
    made = _processed(processor, text, listed)
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
    notes = () if all(source.box for source in sources) else (NOT_DRAWN,)
    return Seen(ids, _offsets(processor, text, ids, mark), batch, sources, owners, pictures, tuple(listed), notes)


def _opened(image: Any) -> Any:
    """An image by the name of its file."""
    if not isinstance(image, str | os.PathLike):
        return image
    from PIL import Image

    path = as_path(image, "images")
    try:
        with Image.open(path) as found:
            return found.convert("RGB")
    except OSError as error:
        reason = error.strerror or "its content is no image that Pillow knows"
        raise InputError(
            f"Cannot read the image {path}: {reason}. Give a file on this machine, or a PIL image."
        ) from None


def _processed(processor: Any, text: str, images: Sequence[Any]) -> Any:
    """What the model's processor makes of both; what it cannot read is the user's to know."""
    try:
        return processor(text=[text], images=list(images), return_tensors="pt")
    except (ValueError, TypeError, AttributeError, IndexError, OSError) as error:
        raise InputError(
            f"{type(processor).__name__} cannot read {len(images)} images with this prompt "
            f"({type(error).__name__}: {str(error).strip()[:200]}). Give images as PIL images or arrays "
            "[height, width, 3], and the prompt one place for each."
        ) from error


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
    owners = [-1] * len(ids)
    sources: list[Source] = []
    for image, (mine, grid) in enumerate(_laid_out(places, images, made)):
        before = f"image {image + 1}, " if images > 1 else ""
        for at, place in enumerate(mine):
            owners[place] = len(sources)
            if grid is None:
                sources.append(Source(f"{before}patch {at}", "", 0, 0, "patch"))
                continue
            row, column = divmod(at, grid[1])
            sources.append(Source(f"{before}patch {row},{column}", "", 0, 0, "patch", (image, row, column, *grid)))
    return tuple(sources), owners


def _laid_out(places: list[int], images: int, made: Any) -> list[tuple[list[int], Grid | None]]:
    """For each image its positions, and their rows and columns where these are known."""
    sizes = _sizes(len(places), images, made)
    if sizes is not None:
        ends = np.cumsum([rows * columns for rows, columns in sizes]).tolist()
        return [(places[end - r * c : end], (r, c)) for end, (r, c) in zip(ends, sizes, strict=True)]
    cuts = [0, *(i for i in range(1, len(places)) if places[i] != places[i - 1] + 1), len(places)]
    runs = [places[a:b] for a, b in pairwise(cuts)]
    if len(runs) == images:
        return [(run, _square(len(run))) for run in runs]
    if images == 1 and len({len(run) for run in runs}) == 1 and _a_token_apart(runs):
        return [(places, (len(runs), len(runs[0])))]  # one run for each row, and a token that ends it
    if len(places) % images:
        raise InputError(f"{len(places)} image positions do not divide among {images} images: they are not patches.")
    each = len(places) // images
    return [(places[i * each : (i + 1) * each], None) for i in range(images)]


def _sizes(count: int, images: int, made: Any) -> list[Grid] | None:
    """Rows and columns of each image's positions, where the processor says how its patches lie."""
    thw = made.get("image_grid_thw") if hasattr(made, "get") else None
    if not isinstance(thw, torch.Tensor) or len(thw) != images:
        return None
    merged = round((float(thw.prod(-1).sum()) / count) ** 0.5)
    sizes = [(frames * high // max(merged, 1), wide // max(merged, 1)) for frames, high, wide in thw.tolist()]
    return sizes if sum(rows * columns for rows, columns in sizes) == count else None


def _square(count: int) -> Grid | None:
    side = round(count**0.5)
    return (side, side) if side * side == count else None


def _a_token_apart(runs: Sequence[Sequence[int]]) -> bool:
    return all(other[0] == one[-1] + 2 for one, other in pairwise(runs))


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
