"""Build a small, random, running model of any type that transformers knows."""

from __future__ import annotations

import copy
import importlib
import inspect
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.zoo.inputs import Inputs, candidates, longer, with_placeholders
from tests.zoo.overrides import CLASS, PART, SIZE
from tests.zoo.shrink import SCALES, Scale, shrink

PARAMETERS = 50_000_000


class CannotBuild(Exception):
    """This type cannot be built small here; the message says why."""


@dataclass(frozen=True)
class Tiny:
    """A small random model in eval mode and the inputs to call it with."""

    model: PreTrainedModel
    inputs: Inputs


def build(model_type: str, seconds: int = 60) -> Tiny:
    """The smallest model of `model_type` that runs.

    Raises
    ------
    CannotBuild
        With the reasons that each size failed for, or that it took longer than `seconds`.
    """
    try:
        kind = model_class(model_type)
    except ImportError as error:
        raise CannotBuild(_line(error)) from None
    failures: list[str] = []
    try:
        with _time_limit(seconds):
            for rich in (True, False):
                tiny = _first_size(model_type, kind, rich, failures)
                if tiny is not None:
                    return tiny
    except TimeoutError:
        failures.append(f"still not built after {seconds} s")
    raise CannotBuild("; ".join(dict.fromkeys(failures)))


def lengthened(tiny: Tiny) -> Tiny | None:
    """The same model with more positions, beyond its windows, blocks and chunks; None where it takes no more."""
    with longer():
        for rich in (True, False):
            try:
                inputs = _accepted(tiny.model, rich)
            except CannotBuild:
                continue
            if _sizes(inputs) != _sizes(tiny.inputs) and set(inputs) == set(tiny.inputs):
                _in_blocks(tiny.model)
                return Tiny(tiny.model, inputs)
    return None


def _in_blocks(model: PreTrainedModel) -> None:
    """BigBird turns to full attention for good once it has seen a short text: back to blocks."""
    for part in model.modules():
        if hasattr(part, "set_attention_type") and hasattr(part, "attention_type"):
            part.attention_type = "original_full"
            part.set_attention_type("block_sparse")
            model.config.attention_type = "block_sparse"
            return


def _sizes(inputs: Inputs) -> dict[str, Any]:
    return {k: tuple(v.shape) if isinstance(v, Tensor) else None for k, v in inputs.items()}


def _first_size(model_type: str, kind: type[PreTrainedModel], rich: bool, failures: list[str]) -> Tiny | None:
    """The smallest size that runs; gives up early where size is not what is wrong."""
    seen: list[str] = []
    for sizes in [SIZE[model_type]] if model_type in SIZE else SCALES:
        try:
            return _attempt(model_type, kind, Scale(*sizes), rich)
        except TimeoutError:
            raise
        except ImportError as error:
            raise CannotBuild(_line(error)) from None
        except Exception as error:  # whatever a model raises says that this size does not fit it
            seen.append(_line(error))
        if len(seen) > 3 and len(set(seen[-4:])) == 1:
            break
    failures += seen
    return None


def _attempt(model_type: str, kind: type[PreTrainedModel], scale: Scale, rich: bool) -> Tiny:
    """With windows, blocks and chunks that the second length goes beyond, where the model stands them."""
    try:
        return _with(model_type, kind, narrowed(shrink(model_type, scale)), rich)
    except (TimeoutError, ImportError):
        raise
    except Exception:  # whatever a model raises
        return _with(model_type, kind, shrink(model_type, scale), rich)


NARROW = {
    "sliding_window": 8, "sliding_window_size": 8, "local_attention": 8, "attention_chunk_size": 8, "window_size": 8,
    "attention_window_size": 8, "block_size": 4, "local_radius": 3, "local_attn_chunk_length": 16,
    "lsh_attn_chunk_length": 16, "local_transformer_stride": 8, "num_landmarks": 4, "segment_means_seq_len": 48,
    "index_topk": 4, "max_context_left": 4, "attention_context_left": 4,
}  # fmt: skip


def narrowed(config: PreTrainedConfig) -> PreTrainedConfig:
    """Windows, blocks and chunks of text models made smaller than the second length."""
    todo, seen = [config], set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for name, size in NARROW.items():
            value = getattr(one, name, None)
            # In Swin and its kin the window is one of patches, which goes with the size of the picture.
            if type(value) is int and value > size and not (name == "window_size" and hasattr(one, "image_size")):
                setattr(one, name, size)
        todo += [c for k in (getattr(one, "sub_configs", None) or ()) if (c := getattr(one, k, None)) is not None]
    return config


def _with(model_type: str, kind: type[PreTrainedModel], config: PreTrainedConfig, rich: bool) -> Tiny:
    count = _count(kind, config)
    if count > PARAMETERS:
        raise CannotBuild(f"{count / 1e6:.0f}M parameters")
    torch.manual_seed(0)
    model = kind(config).eval()
    if model_type in PART:
        model = getattr(model, PART[model_type])
    _initialise(model)
    inputs = _accepted(model, rich)
    _sharpen(model, inputs)
    return Tiny(model, inputs)


def _initialise(model: PreTrainedModel) -> None:
    """Fill what the model's own initialisation passed over, which is whatever was in memory."""
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and not bool((p.abs() < 1e3).all()):
                p.normal_(0, 0.02)


def _sharpen(model: PreTrainedModel, inputs: Inputs) -> None:
    """Make attention differ from layer to layer; as initialised it is nearly uniform everywhere."""
    weights = [p for name, p in model.named_parameters() if p.ndim == 2 and "att" in name.lower()]
    before = [p.detach().clone() for p in weights]
    with torch.no_grad():
        for p in weights:
            p.mul_(1.5 / (p.std() * p.shape[-1] ** 0.5).clamp(min=1e-3))
    try:
        finite = all(bool(t.isfinite().all()) for t in floats(run(model, inputs)))
    except (RuntimeError, ValueError, IndexError):
        finite = False
    if not finite:
        with torch.no_grad():
            for p, old in zip(weights, before, strict=True):
                p.copy_(old)


def _accepted(model: PreTrainedModel, rich: bool) -> Inputs:
    """The first guess that runs."""
    failures = []
    for guess in candidates(model, rich):
        inputs: Inputs | None = guess
        for _ in range(4):
            try:
                run(model, inputs)
                return inputs
            except TimeoutError:
                raise
            except Exception as error:
                failures.append(_line(error))
                inputs = with_placeholders(inputs, model, str(error))
            if inputs is None:
                break
    raise CannotBuild(" | ".join(dict.fromkeys(failures)))


def run(model: PreTrainedModel, inputs: Inputs, **more: Any) -> Any:
    """One forward on a copy of the inputs, with the same random numbers each time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return model(**copy.deepcopy(inputs), **more)


def _count(kind: type[PreTrainedModel], config: PreTrainedConfig) -> int:
    """Parameters, counted without memory for them."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in kind(copy.deepcopy(config)).parameters())
    except TimeoutError:
        raise
    except Exception:  # some models compute while they are built, which meta tensors cannot
        return 0


def model_class(model_type: str) -> type[PreTrainedModel]:
    """The bare model of a type, or the nearest to it that has a forward."""
    if model_type in CLASS:
        module, _, name = CLASS[model_type].rpartition(".")
        source = importlib.import_module(f"transformers.models.{module}") if module else transformers
        return getattr(source, name)
    maps = [n for n in dir(modeling_auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES")]
    for name in sorted(maps, key=lambda n: (n != "MODEL_MAPPING_NAMES", n)):
        named = getattr(modeling_auto, name).get(model_type)
        kind = getattr(transformers, named[0] if isinstance(named, (list, tuple)) else named or "", None)
        if _runs(kind):
            return kind
    return _from_file(model_type)


def _from_file(model_type: str) -> type[PreTrainedModel]:
    """A part of a larger model, which no Auto class names: look in the modelling file."""
    config = CONFIG_MAPPING[model_type]
    module = importlib.import_module(config.__module__.replace(".configuration_", ".modeling_"))
    running = sorted((k for k in vars(module).values() if _runs(k)), key=lambda k: not k.__name__.endswith("Model"))
    for kind in running:
        if config is kind.config_class or config.__name__ in str(_annotation(kind)):
            return kind
    raise ImportError(f"no model class takes a {config.__name__}")


def _annotation(kind: type[PreTrainedModel]) -> Any:
    """What the `config` of its constructor is declared to be."""
    given = inspect.signature(kind.__init__).parameters.get("config")
    return given.annotation if given else ""


def _runs(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.forward is not torch.nn.Module.forward


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}" if not isinstance(error, CannotBuild) else text


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """So many seconds of the processor's time: how busy the machine is must not decide what can be built."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def floats(output: Any) -> Iterator[Tensor]:
    """Every floating-point tensor of a model's output, in order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from floats(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from floats(value)
