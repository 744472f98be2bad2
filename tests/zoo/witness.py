"""What a model multiplies its values with, seen from outside: the reference for models that return no attentions.

Every softmax of an eager copy is followed to the matrix product that uses it. A captured layer is proved if it is what
stands in such a product, weights × values, inside the model. Nothing here is shared with the capture itself.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnflow.attention import Attention
from tests.zoo.build import Tiny, run

_SOFTMAXES = {F.softmax, torch.softmax, Tensor.softmax}
_PRODUCTS = {torch.matmul, torch.bmm, torch.einsum, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}


class Witness(TorchFunctionMode):
    """Keeps what comes from a softmax and goes into a product."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Tensor] = {}
        self.used: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            return self._packed(func, args, kwargs)
        out = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            self.used.append(_fused(args, kwargs, out))
        elif func in _SOFTMAXES:
            self.known[id(out)] = out
        else:
            self._follow(func, args, out)
        return out

    def _packed(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = inspect.signature(func).bind(*args, **kwargs)
        given.apply_defaults()
        whole = {**given.arguments, "need_weights": True, "average_attn_weights": False}
        self.used.append(func(**whole)[1])
        return func(*args, **kwargs)

    def _follow(self, func: Any, args: Any, out: Any) -> None:
        flat = [a for x in args for a in (x if isinstance(x, (list, tuple)) else [x]) if isinstance(a, Tensor)]
        mine = [a for a in flat if id(a) in self.known]
        if not mine:
            return
        if func in _PRODUCTS:
            self.used += [a.detach().clone() for a in mine]
        elif isinstance(out, Tensor) and out.is_floating_point() and out.numel() <= 2 * mine[0].numel():
            self.known[id(out)] = out


def _fused(args: Any, kwargs: Any, out: Tensor) -> Tensor:
    """The weights of ``scaled_dot_product_attention``, in float64, if weights × values is its output."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (given[n].double() for n in names[:3])
    key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) if t.ndim > 3 else t for t in (key, value))
    scores = query @ key.transpose(-1, -2) * (given.get("scale") or 1 / math.sqrt(query.shape[-1]))
    if given.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    mask = given.get("attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).nan_to_num(0)
    if not torch.allclose((weights @ value).float(), out.float(), atol=1e-4, rtol=1e-3):
        return torch.zeros(0, 0)
    return weights.float()


def proved(attention: Attention, eager: Tiny) -> tuple[int, int]:
    """(layers that stand in a product with the values inside the model, all layers)."""
    witness = Witness()
    with witness:
        run(eager.model, eager.inputs)
    seen = [w.float().numpy() for w in witness.used if w.ndim > 1 and w.numel()]
    layers = [w for b in attention.blocks.values() for w in b.weights]
    return sum(any(_stands(layer, w) for w in seen) for layer in layers), len(layers)


def _stands(layer: np.ndarray, used: np.ndarray) -> bool:
    """Whether [heads, queries, keys], with windows along the diagonal, are the matrices of ``used``."""
    heads, rows, columns = layer.shape
    for turned in (used, np.swapaxes(used, -1, -2)):
        high, wide = turned.shape[-2:]
        flat = turned.reshape(-1, high, wide)
        for cut in (0, 1):  # without the column of a sink
            parts = rows // high if high else 0
            if not parts or rows % high or (columns - cut) != parts * wide or len(flat) != parts * heads:
                continue
            for order in (
                flat.reshape(parts, heads, high, wide),
                flat.reshape(heads, parts, high, wide).swapaxes(0, 1),
            ):
                if _placed(layer[..., : columns - cut], order):
                    return True
    return False


def _placed(layer: np.ndarray, parts: np.ndarray) -> bool:
    count, _, high, wide = parts.shape
    for shift in range(count if count == 2 else 1):  # the two pictures of a pair may look at each other
        own = [
            layer[:, i * high : (i + 1) * high, j * wide : (j + 1) * wide]
            for i in range(count)
            for j in [(i + shift) % count]
        ]
        if all(np.allclose(o, p, atol=2e-5, rtol=1e-3) for o, p in zip(own, parts, strict=True)):
            return sum(np.count_nonzero(o) for o in own) == np.count_nonzero(layer)
    return False
