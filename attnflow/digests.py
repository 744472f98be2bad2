"""Digests: short marks of content, by which a resumed run sees that its model and data are the same.

A digest covers every byte, and it is the same in every process: nothing of it comes from an address in memory, from the
order of a set or from a time.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_PIECE = 1 << 24
# What a configuration says of where it came from, not of what the model computes.
_ORIGIN = ("_name_or_path", "_commit_hash", "transformers_version")


def digest_of(value: Any) -> str:
    """A mark of text, numbers, ids, arrays, tensors, images, and lists and dicts of them.

    >>> digest_of(["the key", 1]) == digest_of(("the key", np.int64(1)))
    True
    >>> digest_of("1") == digest_of(1)
    False
    """
    mark = hashlib.blake2b(digest_size=16)
    _update(mark, value)
    return mark.hexdigest()


def _update(mark: Any, value: Any) -> None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bytes | bool | int | float):
        mark.update(f"{type(value).__name__} {value!r}\n".encode())
    elif isinstance(value, Mapping):
        mark.update(f"dict {len(value)}\n".encode())
        for key in sorted(value, key=str):
            _update(mark, str(key))
            _update(mark, value[key])
    elif isinstance(value, list | tuple):
        mark.update(f"list {len(value)}\n".encode())
        for part in value:
            _update(mark, part)
    elif hasattr(value, "detach"):
        _update_tensor(mark, value)
    elif hasattr(value, "getpalette"):  # an image: the same numbers are other colours in another mode or palette
        _update(mark, [value.mode, value.getpalette()])
        _update_array(mark, np.asarray(value))
    elif hasattr(value, "__array__"):
        _update_array(mark, np.asarray(value))
    else:
        mark.update(pickle.dumps(value))


def _update_array(mark: Any, array: Any) -> None:
    if array.dtype.kind == "O":
        _update(mark, array.tolist())
        return
    mark.update(f"array {array.dtype.str} {array.shape}\n".encode())
    mark.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _update_tensor(mark: Any, tensor: Any) -> None:
    import torch

    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_quantized:
        plain = plain.dequantize() if plain.is_quantized else plain.to_dense()
    mark.update(f"tensor {plain.dtype} {tuple(plain.shape)}\n".encode())
    if plain.device.type == "meta":  # it has no numbers
        return
    flat = plain.cpu().contiguous().reshape(-1)
    mark.update(flat.view(torch.uint8).numpy().data)


def weights_digest(model: Any) -> str:
    """A mark of every number of every weight and buffer, with its name."""
    return digest_of(dict(model.state_dict()))


def config_digest(config: Any) -> str | None:
    """A mark of what a configuration says of the model; None where there is none."""
    if not hasattr(config, "to_dict"):
        return None
    return digest_of({k: v for k, v in config.to_dict().items() if k not in _ORIGIN})


def tokenizer_digest(tokenizer: Any) -> str | None:
    """A mark of all that a tokenizer knows: its rules where they can be had, else its vocabulary."""
    whole = getattr(getattr(tokenizer, "backend_tokenizer", None), "to_str", None)
    if whole is not None:
        rules = json.loads(whole())
        # What the last call asked for, not what the tokenizer is.
        rules.pop("truncation", None), rules.pop("padding", None)
        return digest_of(json.dumps(rules, sort_keys=True))
    vocabulary = getattr(tokenizer, "get_vocab", None)
    return None if vocabulary is None else digest_of(vocabulary())


def files_digest(path: Path) -> str:
    """A mark of a file, or of all files of a folder by name."""
    mark = hashlib.blake2b(digest_size=16)
    found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in found:
        mark.update(f"file {file.relative_to(path) if path.is_dir() else file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            while piece := stream.read(_PIECE):
                mark.update(piece)
    return mark.hexdigest()
