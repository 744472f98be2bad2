"""The same input through other tools: equal numbers, or the reason why not. Writes the table of docs/parity.md.

    pip install bertviz
    pip install --no-deps inseq jaxtyping wadler-lindig treescope "typeguard<=2.13.3"
    python benchmarks/parity.py

inseq goes in without its dependencies: it pins packages of CUDA. Tools that are not installed are said to be missing.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from report import insert, made, markdown, quick
from weights import minilm, smollm2

from attnflow import capture, demo, flow, gradient, raw, rollout

PAGE = Path(__file__).parent.parent / "docs" / "parity.md"
TEXT = "The author of the books talked to Sara about the key."
Array = np.ndarray[Any, Any]


def original_rollout(weights: Array) -> Array:
    """Abnar & Zuidema's ``compute_joint_attention``: heads averaged, identity added, rows divided, multiplied up."""
    mean = weights.mean(1)
    added = mean + np.eye(mean.shape[-1])[None]
    added = added / added.sum(-1)[..., None]
    joint = [added[0]]
    for layer in added[1:]:
        joint.append(layer @ joint[-1])
    return np.stack(joint)


def original_flow(weights: Array, layer: int, row: int) -> Array:
    """Their ``get_adjmat`` and ``compute_flows``: Edmonds–Karp from one output to every input, without rescaling."""
    mean = weights.mean(1)
    added = mean + np.eye(mean.shape[-1])[None]
    added = added / added.sum(-1)[..., None]
    n = added.shape[-1]
    graph = nx.DiGraph()
    for step in range(layer + 1):
        for i in range(n):
            for j in range(n):
                graph.add_edge((step + 1, i), (step, j), capacity=float(added[step, i, j]))
    source = (layer + 1, row)
    algorithm = nx.algorithms.flow.edmonds_karp
    return np.array([nx.maximum_flow_value(graph, source, (0, j), flow_func=algorithm) for j in range(n)])


def eager(model: Any, tokenizer: Any) -> tuple[tuple[torch.Tensor, ...], list[str]]:
    """What the model itself returns in eager."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    batch = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        found = model(**batch, output_attentions=True).attentions
    model.set_attn_implementation(before)
    return found, tokenizer.convert_ids_to_tokens(batch["input_ids"][0])


def by_original() -> list[tuple[str, str, Array, Array]]:
    model, tokenizer = minilm()
    weights = np.stack([w[0].numpy().astype(np.float64) for w in eager(model, tokenizer)[0]])
    att = capture(model, tokenizer, TEXT)
    theirs = np.stack([original_flow(weights, layer, 0) for layer in (0, 2, 5)])
    ours = np.stack([flow(att, layer=layer, position=0).scores[0] for layer in (0, 2, 5)])
    return [
        ("rollout, all layers and positions", "`rollout(model, tokenizer, text)`", original_rollout(weights),
         rollout(att).scores),
        ("flow of [CLS], layers 0, 2 and 5", "`flow(…, position=0)`", theirs, ours),
    ]  # fmt: skip


def by_bertviz() -> list[tuple[str, str, Array, Array]]:
    from bertviz import head_view

    model, tokenizer = minilm()
    attention, tokens = eager(model, tokenizer)
    page = head_view(attention, tokens, html_action="return").data
    shown = np.array(json.loads(re.search(r'"attn": (\[.*?\]), "left_text"', page, re.DOTALL).group(1)))
    ours = np.stack(capture(model, tokenizer, TEXT, heads="all").only.weights)
    return [("the weights in its page, all heads", '`capture(…, heads="all")`', shown, ours)]


def by_captum() -> list[tuple[str, str, Array, Array]]:
    from captum.attr import LayerGradientXActivation, LayerIntegratedGradients

    model, tokenizer = demo.model(), demo.tokenizer()
    text = "the keys to the cabinet"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    target = int(model(ids).logits.argmax())
    words = model.get_input_embeddings()

    def logits(x: torch.Tensor) -> torch.Tensor:
        return model(x).logits

    pads = torch.full_like(ids, tokenizer.pad_token_id)
    product = LayerGradientXActivation(logits, words).attribute(ids, target=target)
    path = LayerIntegratedGradients(logits, words).attribute(ids, baselines=pads, target=target, n_steps=32)
    chosen: dict[str, Any] = {"reduce": "sum", "score": "logit"}
    ixg = gradient(model, tokenizer, text, method="input_x_gradient", **chosen)
    ig = gradient(model, tokenizer, text, method="integrated_gradients", baseline="pad", steps=32, **chosen)
    return [
        ("LayerGradientXActivation at the word embeddings", '`gradient(…, method="input_x_gradient", reduce="sum")`',
         product.sum(-1)[0].detach().numpy(), ixg.scores[0]),
        ("LayerIntegratedGradients, 32 steps from pads", '`gradient(…, method="integrated_gradients", baseline="pad")`',
         path.sum(-1)[0].detach().numpy(), ig.scores[0]),
    ]  # fmt: skip


def by_inseq() -> list[tuple[str, str, Array, Array]]:
    import inseq

    model, tokenizer = smollm2()
    text = "The keys to the cabinet"
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        follows = int(model(ids).logits[0, -1].argmax())
    whole = text + tokenizer.decode(follows)
    found = []
    for name, ours in (
        ("saliency", lambda: gradient(model, tokenizer, text, position="last", reduce="l2", score="prob")),
        ("attention", lambda: raw(model, tokenizer, text, position="last")),
    ):
        if name == "attention":  # with sdpa it stops at the empty tuple that the model returns
            model.set_attn_implementation("eager")
        wrapped = inseq.load_model(model, name, tokenizer=tokenizer)
        out = wrapped.attribute(text, generated_texts=whole, show_progress=False)
        scores = out.sequence_attributions[0].target_attributions
        column = scores[: ids.shape[1], 0].float()
        if name == "attention":
            theirs = column.mean((-1, -2)).numpy()
            mine = ours().scores.mean(0)
        else:
            theirs = column.norm(dim=-1).numpy()
            mine = ours().scores[0]
        call = 'raw(…, position="last")' if name == "attention" else 'gradient(…, position="last", score="prob")'
        found.append((f"{name}, next token", f"`{call}`", theirs, mine))
    model.set_attn_implementation("sdpa")
    return found


CASES: dict[str, tuple[str, Callable[[], list[tuple[str, str, Array, Array]]]]] = {
    "the original code's rule": ("networkx", by_original),
    "bertviz": ("bertviz", by_bertviz),
    "captum": ("captum", by_captum),
    "inseq": ("inseq", by_inseq),
}


def row(tool: str, what: str, call: str, theirs: Array, ours: Array) -> list[str]:
    if theirs.shape != ours.shape:
        return [tool, what, call, f"shapes {theirs.shape} and {ours.shape}", "no"]
    scale = float(np.abs(theirs).max())
    gap = float(np.abs(theirs - ours).max()) / scale
    if gap < 1e-5:
        return [tool, what, call, f"{gap:.0e}", "yes"]
    ratio = ours / np.where(theirs == 0, np.nan, theirs)
    even = float(np.nanstd(ratio) / abs(np.nanmean(ratio)))
    same = f"by a factor of {np.nanmean(ratio):.3g}" if even < 1e-3 else "no"
    same = "to 4 digits" if gap < 1e-4 else same
    return [tool, what, call, f"{gap:.2g}", same]


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows, used = [], []
    for tool, (package, run) in list(CASES.items())[: 1 if quick() else None]:
        if importlib.util.find_spec(package) is None:
            rows.append([tool, "–", "–", "not installed", "–"])
            continue
        used.append(package)
        rows += [row(tool, *one) for one in run()]
        print(*rows[-1])
    head = ["tool", "what it gives", "attnflow", "largest difference / largest value", "equal"]
    told = made("python benchmarks/parity.py", (*used, "torch"))
    insert(PAGE, "table", f"{markdown(head, rows)}\n\n{told}")
    print(markdown(head, rows))


if __name__ == "__main__":
    main()
