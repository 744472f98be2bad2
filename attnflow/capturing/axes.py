"""What the rows and columns of a tower's matrices are: positions of the text, the decoder, an image, or others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnflow.capturing.session import Record
from attnflow.capturing.survey import Survey
from attnflow.capturing.towers import Tower, beside_text
from attnflow.inputs.naming import image_tokens, packed_tokens
from attnflow.reprs import one_line
from attnflow.tokens import Tokens, join


@one_line
@dataclass(frozen=True)
class Frame:
    """What is known about the positions of one run, whoever ran the model.

    ``tokens`` and ``positions`` are those of the main sequence, of padded length ``length``; the decoder's
    likewise. Lengths of 0 say that nothing is known. ``grid`` has frames, rows and columns of packed images.
    ``prompts`` learned vectors stand before the text. ``masks`` are the names of the masks that hide something.
    ``rows``, for one example: the only output positions wanted.
    """

    batch: int
    tokens: tuple[Tokens, ...] = ()
    positions: tuple[tuple[int, ...], ...] = ()
    length: int = 0
    decoder_tokens: tuple[Tokens, ...] = ()
    decoder_positions: tuple[tuple[int, ...], ...] = ()
    decoder_length: int = 0
    pixels: tuple[int, ...] = ()
    config: Any = None
    grid: tuple[tuple[int, ...], ...] = ()
    prompts: int = 0
    masks: frozenset[str] = frozenset()
    survey: Survey | None = None
    rows: tuple[int, ...] | None = None

    def skipped(self, tower: Tower) -> set[int]:
        """Layers of a tower that do attend, whether or not they were asked for."""
        paths = {r.call.tower for r in tower.records}
        sites = [s for s in self.survey.sites.values() if s.tower in paths] if self.survey is not None else []
        return {n for s in sites for n in (s.shared or (s.layer,))}


def masks_of(batch: Mapping[str, Any]) -> frozenset[str]:
    """Names of the masks in a batch that hide something."""
    masks = {n: v for n, v in batch.items() if n.endswith("mask") and isinstance(v, torch.Tensor)}
    return frozenset(n for n, v in masks.items() if v.numel() and not bool((v != 0).all()))


def grid_of(batch: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """(frames, rows, columns) of each image, where images are packed into one row."""
    grid = next((batch[n] for n in ("image_grid_thw", "grid_thw") if isinstance(batch.get(n), torch.Tensor)), None)
    return tuple(map(tuple, grid.tolist())) if grid is not None and grid.ndim == 2 and grid.shape[1] == 3 else ()


def virtual_tokens(model: Any) -> int:
    """How many learned vectors PEFT puts before the text (prompt and prefix tuning)."""
    tuned = getattr(model, "active_peft_config", None)
    count = getattr(tuned, "num_virtual_tokens", 0) if getattr(tuned, "is_prompt_learning", False) else 0
    return count if isinstance(count, int) else 0


@one_line
@dataclass(frozen=True)
class Axis:
    """Names of the rows or columns of one example, and which of them are not padding (None: all).

    ``place`` says what they are: "text", "decoder", "mixed" (the text and other positions), or "other".
    """

    tokens: Tokens
    kept: tuple[int, ...] | None
    place: str = "other"
    some: tuple[int, ...] | None = None

    def at(self, rows: tuple[int, ...]) -> Axis:
        """These of its positions, by their number among those that are kept; ``some`` says which they are."""
        kept = rows if self.kept is None else tuple(self.kept[r] for r in rows)
        return Axis(self.tokens.take(rows), kept, self.place, rows)

    def only(self, chosen: Sequence[int]) -> Axis:
        """Those of its positions that are among ``chosen``."""
        have = self.kept if self.kept is not None else tuple(range(len(self.tokens)))
        left = [i for i, position in enumerate(have) if position in set(chosen)]
        return Axis(self.tokens.take(left), tuple(have[i] for i in left), self.place)


def axes(tower: Tower, record: Record, frame: Frame, example: int, parts: int) -> tuple[Axis, Axis]:
    """Names of the rows and columns, and which of them are not padding."""
    own = getattr(record.site.module, "query_tokens", None)
    if isinstance(own, Tokens) and len(own) == record.queries:
        # The queries are the module's own (a learned vector that pools the sequence), not positions of the text.
        return Axis(own, None), _axis(tower, frame, example, record.keys, parts, tower.decodes)
    rows = _axis(tower, frame, example, record.queries, parts, tower.decodes)
    if tower.kind == "cross":
        if parts == 1 and merged(tower, record, frame):
            # One softmax over the decoder's own positions and, behind them, the encoder's.
            own, other = frame.decoder_positions[example], frame.positions[example]
            kept = (*own, *(frame.decoder_length + p for p in other))
            return rows, Axis(join(frame.decoder_tokens[example], frame.tokens[example]), kept, "decoder")
        return rows, _axis(tower, frame, example, record.keys, parts, False)
    if record.keys == record.queries:
        return rows, rows
    return rows, _axis(tower, frame, example, record.keys, parts, tower.decodes)


def counts(frame: Frame, record: Record, parts: int) -> bool:
    """Whether the rows of a tower are the output positions that ``frame.rows`` are of."""
    length = frame.decoder_length or frame.length or record.queries
    return parts == 1 and record.queries == length and not beside_text(record.call.tower, frame.decoder_length > 0)


def merged(tower: Tower, record: Record, frame: Frame) -> bool:
    """True for a decoder that has its own positions and the encoder's in one softmax."""
    both = frame.decoder_length + frame.length
    return tower.kind == "cross" and tower.decodes and frame.decoder_length > 0 and record.keys == both


def _axis(tower: Tower, frame: Frame, example: int, length: int, parts: int, decodes: bool) -> Axis:
    if parts > 1:
        inner = _names_of(tower, frame, length)
        return Axis(Tokens(f"{i}: {t}" for i in range(parts) for t in inner), None)
    if decodes and frame.decoder_length == length:
        return Axis(frame.decoder_tokens[example], frame.decoder_positions[example], "decoder")
    if tower.reads_text and frame.length:
        # Funnel's decoder reads the text itself.
        own = not decodes or not (frame.decoder_length or getattr(frame.config, "is_encoder_decoder", False))
        if own and frame.length == length:
            return Axis(frame.tokens[example], frame.positions[example], "text")
        beside = _beside(tower, frame, length - frame.length) if own and length > frame.length else None
        if beside is not None:
            before, after = (Tokens(names, [False] * len(names)) for names in beside)
            text, end = frame.positions[example], len(before) + frame.length
            kept = (*range(len(before)), *(len(before) + p for p in text), *range(end, length))
            return Axis(join(before, frame.tokens[example], after), kept, "mixed")
    return Axis(_names_of(tower, frame, length), None)


def _names_of(tower: Tower, frame: Frame, length: int) -> Tokens:
    if frame.pixels and (not tower.text or not frame.length):
        if frame.grid:
            return packed_tokens(frame.config, frame.grid, length)
        return image_tokens(frame.config, frame.pixels, length)
    return Tokens.numbered(length)


def _beside(tower: Tower, frame: Frame, extra: int) -> tuple[list[str], list[str]] | None:
    """Names of what stands before and after the text in one sequence with it; None where that is not known."""
    kind = getattr(frame.config, "model_type", "")
    if extra == frame.prompts:
        return [f"prompt {i}" for i in range(extra)], []
    if kind in ("luke", "mluke"):
        return [], [f"entity {i}" for i in range(extra)]
    if kind == "visual_bert":
        return [], [f"visual {i}" for i in range(extra)]
    if kind == "vilt":
        # It draws the order of its patches by lot, at every run.
        return [], [f"image {i}" for i in range(extra)]
    if kind == "layoutlmv3" and frame.pixels:
        return [], _patches(frame, extra)
    if kind == "flava" and tower.name.startswith("multimodal") and frame.pixels:
        return ["[CLS]", *_patches(frame, extra - 1)], []
    if tower.name.startswith("qformer"):
        return [f"query {i}" for i in range(extra)], []
    return None


def _patches(frame: Frame, count: int) -> list[str]:
    """Names of the positions of an image; counted where they are not its patches."""
    names = image_tokens(frame.config, frame.pixels, count)
    plain = names == Tokens.numbered(count)
    return [f"image {i}" for i in range(count)] if plain else [str(n) for n in names]


def seen(
    tower: Tower, frame: Frame, example: int, rows: Axis, columns: Axis, notes: list[str], *, residual: bool
) -> tuple[Axis, Axis]:
    """Rows and columns without the padding of positions that are not those of the text alone.

    Padding is what a mask hides from every row: its columns are exactly zero in every layer. ``residual``: each
    position also sees itself through the residual, which does not count.
    """
    short = bool(frame.positions) and len(frame.positions[example]) < frame.length
    if columns.place in ("text", "decoder"):
        if short and columns.place == "text" and rows.place == "other" and tower.kind == "self":
            notes.append(f"{tower.name}: its rows are not positions of the text, and padding among them is not cut.")
        return rows, columns
    record = tower.records[0]
    count = len(columns.tokens)
    if frame.masks and frame.rows is None:
        used = torch.zeros(record.keys, dtype=torch.bool)
        for one in tower.records:
            weights = one.weights[example if one.weights.shape[0] > 1 else 0].detach()[..., : record.keys].cpu()
            if residual and tower.kind == "self" and record.queries == record.keys:
                weights = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
            used |= (weights != 0).reshape(-1, record.keys).any(0)
        chosen = torch.nonzero(used).flatten().tolist()
        square = rows is columns or (tower.kind == "self" and record.queries == record.keys)
        columns = columns.only(chosen)
        rows = columns if square else rows
    if columns.place == "other" and tower.reads_text and not tower.decodes and count > frame.length > 0:
        what = f"{tower.name}: its {count} positions are not the {frame.length} of the text alone"
        cut = ", and padding among them is not cut" if short and len(columns.tokens) == count else ""
        notes.append(f"{what}: they are numbered{cut}.")
    return rows, columns
