"""A model and its tokenizer by hub name, folder or GGUF file.

transformers learns of the package's own models when one of them is asked for: here, by the model type that a saved
configuration names, or wherever ``attnflow.models.verb_number`` or ``attnflow.models.lstm`` is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnflow.errors import AttnFlowError, InputError
from attnflow.tokens import check_words

OWN = {"attnflow_lstm": "attnflow.models.lstm", "attnflow_verb_number": "attnflow.models.verb_number"}
"""The module of each model of the package, by model type; importing it makes transformers know the model."""

# Code that comes with a model is never run; without this, transformers asks at the keyboard.
SAFE: dict[str, Any] = {"trust_remote_code": False}


def load(name: str) -> tuple[Any, Any]:
    """(model, tokenizer), the model in the class that it was saved with, ready for inference; images need no tokenizer.

    The class matters: a classifier's head is lost where a bare encoder is loaded.
    """
    from transformers import AutoConfig

    folder = Path(name)
    if folder.suffix == ".gguf":
        return _load_gguf(folder)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"{name} is a folder without a config.json: save a model there with model.save_pretrained().")
    near = [] if folder.exists() else _near(name)
    advice = (f"Near it, on this machine: {', '.join(near)}. " if near else "") + (
        "Give a folder that save_pretrained() wrote, with the tokenizer in it, or a hub name (and, behind a closed "
        "network, download it first)."
    )
    with load_errors(name, advice):
        make_known(name)
        config = AutoConfig.from_pretrained(name, **SAFE)
        model = _model_class(config).from_pretrained(name, **SAFE)
        tokenizer = _tokenizer(name, model)
    if tokenizer is not None:
        check_words(tokenizer, f"The tokenizer of {name}")
    return model.eval(), tokenizer


def _tokenizer(name: str, model: Any) -> Any:
    """The tokenizer of a model; None for a model of images or sound that was saved without one."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, **SAFE)
    except Exception:
        if getattr(model, "main_input_name", "input_ids") == "input_ids":
            raise
        return None


def _near(name: str) -> list[str]:
    """Models of a like name on this machine: in the hub's cache, and folders beside the one that was named."""
    import difflib

    from huggingface_hub.constants import HF_HUB_CACHE

    cached = [p.name.removeprefix("models--").replace("--", "/") for p in Path(HF_HUB_CACHE).glob("models--*")]
    place = Path(name).parent
    beside = [str(p.parent) for p in place.glob("*/config.json")] if place.is_dir() else []
    return difflib.get_close_matches(name, [*cached, *beside], n=3)


def make_known(name: str) -> None:
    """Make transformers' Auto classes know the model of ``name``, if it is one of the package's own."""
    from transformers import PreTrainedConfig

    saved, _ = PreTrainedConfig.get_config_dict(name)
    module = OWN.get(str(saved.get("model_type")))
    if module is not None:
        importlib.import_module(module)


def commit_of(name: str) -> str | None:
    """The commit of a hub model, which stands for every byte of it; None where it cannot be told."""
    from transformers import AutoConfig

    with load_errors(name, "Give a folder that save_pretrained() wrote, or a hub name."):
        config = AutoConfig.from_pretrained(name, **SAFE)
    return getattr(config, "_commit_hash", None)


@contextmanager
def load_errors(name: str, advice: str, what: str = "") -> Iterator[None]:
    """Turn what transformers raises while it loads ``name`` into its first line and what to do."""
    try:
        yield
    except AttnFlowError:
        raise
    except Exception as error:  # a damaged file can make its reader raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        stop = "" if reason.endswith((".", "!", "?", ":")) else "."
        raise InputError(f"{name!r} could not be loaded{what and f' as {what}'}: {reason}{stop} {advice}") from error


def _load_gguf(file: Path) -> tuple[Any, Any]:
    """A causal language model from one GGUF file; its weights are written out to full precision."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not file.is_file():
        raise InputError(f"{file} is not there, and a GGUF file was asked for: check the path.")
    with load_errors(str(file), "The file is damaged, or of an architecture that transformers does not read."):
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **SAFE)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, **SAFE)
        except ImportError as error:
            raise InputError(
                f"{file} is a GGUF file, and reading it needs two packages:  pip install gguf accelerate"
            ) from error
    return model.eval(), tokenizer


def _model_class(config: Any) -> Any:
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None:
            return found
    return transformers.AutoModel
