"""Calls of every public function, with arguments of which some are hostile.

A call may give a result, an ``AttnFlowError``, or (for a value of the wrong Python type, or a keyword that is not
there) a ``TypeError`` that attnflow itself or the call raised. Everything else is a violation: another error, a result
that is not finite where it should be, a call that does not end.
"""

from __future__ import annotations

import contextlib
import functools
import io
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import attnflow
from attnflow import Attention, AttnFlowError, Relevance, audit, faithfulness, flowgraph
from attnflow.comparing.comparison import Comparison
from attnflow.inputs.datasets import open_data
from attnflow.tokens import Tokens
from tests.fuzz.values import GOOD, MARKUP, TEXTS, bad_weights, good_weights, odd
from tests.tiny_models import tiny, tokenizer

PACKAGE = str(Path(attnflow.__file__).parent)
SECONDS = 60


class TooLong(BaseException):
    """A call that does not end."""


@dataclass(frozen=True)
class Call:
    """One call: what is called, with what, and what must hold of its result."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    holds: Callable[[Any], bool] | None = None

    def __repr__(self) -> str:
        shown = [*(_short(a) for a in self.arguments), *(f"{k}={_short(v)}" for k, v in self.options.items())]
        return f"{self.name}({', '.join(shown)})"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return ascii(text[:160])[1:-1]


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """An end to what would not end; only in the main thread, as signals are.

    What counts is the processor's time, for a busy machine is slow; a call that waits for something gets ten times as
    long. Seconds are counted one by one, so that those of a process that somebody stopped (SIGSTOP) are one.
    """
    ticks, start = 0, time.process_time()

    def tick(*_: Any) -> None:
        nonlocal ticks
        ticks += 1
        if time.process_time() - start >= seconds or ticks >= 10 * seconds:
            raise TooLong

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(call: Call) -> tuple[str, str]:
    """("result", "refused" or "violation", what happened)."""
    try:
        with limited(), contextlib.chdir(folder()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call.function(*call.arguments, **call.options)
    except AttnFlowError as error:
        return ("refused", type(error).__name__) if str(error).strip() else ("violation", "an error without a word")
    except TypeError as error:
        if _ours(error):
            return "refused", "TypeError"
        return "violation", _told(error)
    except TooLong:
        return "violation", f"no end after {SECONDS} s"
    except Exception as error:
        return "violation", _told(error)
    if call.holds is not None and not call.holds(found):
        return "violation", f"a result that cannot be: {_short(found)}"
    return "result", ""


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(where) if f.filename.startswith(PACKAGE)), where[-1])
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {ascii(str(error)[:120])[1:-1]}"


def _ours(error: BaseException) -> bool:
    """True for what the package, or the call itself, raised: not for what came out of another library."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f.filename.startswith(PACKAGE)]
    return not inside or frames[-1].filename.startswith(PACKAGE)


def finite(found: Any) -> bool:
    """True if every score is a number, and the shape is what the names say."""
    results = found if isinstance(found, list) else [found]
    return all(
        np.isfinite(r.scores).all() and r.scores.shape[0] == len(r.layers) and r.scores.shape[-1] == len(r.tokens)
        for r in results
    )


def bounded(found: Any) -> bool:
    """True if every score lies where those of attention do."""
    results = found if isinstance(found, list) else [found]
    return finite(found) and all(r.scores.min() >= -1e-9 for r in results)


def whole_correlation(found: Any) -> bool:
    """True if every coefficient is in [-1, 1] or missing."""
    return bool(np.all(np.isnan(found.values) | (np.abs(found.values) <= 1 + 1e-9))) or found.method == "spearman_dense"


@functools.cache
def folder() -> Path:
    """Where calls may write: deep, so that a path that leads up stays inside too."""
    deep = Path(tempfile.mkdtemp(prefix="attnflow-fuzz-")) / "a" / "b" / "c"
    deep.mkdir(parents=True)
    return deep


ints = st.integers(-4, 4)
heads = st.one_of(st.sampled_from(["mean", "max", "min", "all"]), st.integers(-2, 2), st.lists(ints, max_size=3),
                  st.integers(0, 1).map(np.int64), st.just(np.array([0, 1])))  # fmt: skip
position = st.one_of(st.none(), ints, st.sampled_from(["cls", "last", "mask"]), ints.map(np.int32))
layer = st.one_of(st.none(), ints, ints.map(np.int64))
text = st.sampled_from(TEXTS)
source = st.one_of(good_weights, good_weights, bad_weights)
residual = st.sampled_from(
    [None, 0.5, 0.0, 0.99, "none", "add", "measured", "inside", [0.5], [[0.5, 0.5]], np.float32(0.3)]
)
shared = {
    "heads": heads, "layer": layer, "position": position, "sinks": st.sampled_from(["error", "keep", "renormalise"]),
    "tokens": st.one_of(st.none(), st.lists(text, max_size=5)),
    "block": st.sampled_from([None, None, None, "self", "cross"]),
    "edges": st.sampled_from([None, None, "attention", "alti"]),
}  # fmt: skip
walked = {**shared, "residual": residual, "start_layer": st.integers(-1, 3)}


@functools.cache
def models() -> dict[str, Any]:
    """Small models; they are made once."""
    return {name: tiny(name) for name in ("bert", "bert-mlm", "llama", "t5", "vit", "base")}


model = st.sampled_from(["bert", "bert", "bert-mlm", "llama", "llama", "t5", "vit", "base"]).map(
    lambda name: models()[name]
)
good = st.sampled_from(GOOD)
given_text = st.one_of(good, good, good, st.lists(good, min_size=1, max_size=2), text, st.lists(text, max_size=2),
                       st.lists(st.integers(3, 39), min_size=1, max_size=5), st.lists(st.integers(-1, 45), max_size=5),
                       st.lists(st.lists(st.integers(0, 39), max_size=3), max_size=2))  # fmt: skip
prompt = st.one_of(
    good, text, given_text,
    st.fixed_dictionaries({"context": st.one_of(good, text, st.lists(good, max_size=2)), "question": good}),
    st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": text}), max_size=2),
)  # fmt: skip
tok = st.sampled_from([True, True, True, True, True, False]).map(lambda yes: tokenizer() if yes else None)
target = st.one_of(st.none(), ints, ints.map(np.int64), text, st.tuples(ints, ints), st.just(["a"]))
scores = st.builds(
    lambda seed, layers, n, rows: np.random.default_rng(seed).standard_normal((layers, n, n) if rows else (layers, n)),
    st.integers(0, 9), st.integers(1, 3), st.integers(1, 4), st.booleans(),
)  # fmt: skip


def relevance(numbers: np.ndarray, names: list[str]) -> Relevance:
    """A result over tokens of any kind."""
    n = numbers.shape[-1]
    texts = [(names or ["a"])[i % max(1, len(names))] for i in range(n)]
    return Relevance(numbers, Tokens(texts, [i == 0 for i in range(n)]), tuple(range(len(numbers))), "raw")


records = st.builds(relevance, scores, st.lists(text, max_size=4))
single = records.map(lambda r: r.at(position=-1) if r.scores.ndim == 3 else r)


@functools.cache
def comparison() -> Comparison:
    """One small comparison."""
    return attnflow.compare(tiny("bert"), tokenizer(), ["the key", "the author talked"], references="gradient",
                            correlation=["spearman", "kendall"])  # fmt: skip


def registered(name: Any, **options: Any) -> None:
    """A method of the user's own, and away with it again."""
    from attnflow.scoring.registry import unregister

    attnflow.register(name, **options)(lambda attention, position: None)
    unregister(name)


def registered_experiment(number: Any, question: Any, trains: Any) -> None:
    """An experiment of the user's own, and away with it again."""
    from attnflow.audit import registry

    def own(model: Any, tokenizer: Any, texts: Any) -> None:
        """Nothing."""

    before = dict(registry._REGISTRY)
    try:
        audit.experiment(number, question, trains)(own)
    finally:
        registry._REGISTRY.clear()
        registry._REGISTRY.update(before)


attention = good_weights.map(lambda weights: Attention.of(weights, heads="all" if weights.ndim == 4 else "mean"))
traced = good_weights.map(lambda weights: attnflow.rollout(weights[:, 0] if weights.ndim == 4 else weights))
graph = attention.map(lambda given: flowgraph.flow_graph(given, pairs=2))
frame = st.lists(text, max_size=3).map(
    lambda names: pd.DataFrame({"text": pd.Series(names, dtype=object), "value": range(len(names))})
)
finding = st.builds(
    lambda name, table, said: audit.Finding("permutation", table, table, said, (name,)), text, frame, text
)
numbers = st.one_of(st.lists(st.one_of(st.floats(), ints), max_size=5), scores, single, odd)
path = st.one_of(text.map(lambda t: str(folder() / t)), text, odd, st.just(folder()), st.just(folder() / "deep" / "x"))
Spec = tuple[Callable[..., Any], list[Any], dict[str, Any], Callable[[Any], bool] | None]


def method_of(name: str) -> Callable[..., Any]:
    """A method of a record as a function."""
    return lambda record, *given, **options: getattr(record, name)(*given, **options)


def quick() -> dict[str, Spec]:
    """Functions that need no model: what is called, its arguments, its options, and what must hold of the result."""
    return {
        "raw": (attnflow.raw, [source], shared, bounded),
        "rollout": (attnflow.rollout, [source], walked, bounded),
        "direct": (attnflow.direct, [source], shared, bounded),
        "flow": (attnflow.flow, [source], {
            **walked, "normalize": st.booleans(), "receptive_field": st.booleans(), "certify": st.booleans(),
            "tolerance": st.sampled_from([None, 0.1, 2.0]), "threads": st.sampled_from([None, 1, 2, 0]),
            "backend": st.sampled_from(["numba", "numba", "networkx", "x"])}, bounded),
        "Attention.of": (Attention.of, [source], {
            k: v for k, v in shared.items() if k in ("heads", "sinks", "tokens", "edges")} | {
            "layers": st.one_of(st.none(), st.lists(ints, max_size=4)), "residual_inside": st.booleans()}, None),
        "Relevance": (Relevance, [st.one_of(scores, odd), st.one_of(st.lists(text, max_size=4), odd),
                                  st.one_of(st.lists(ints, max_size=3), odd), text],
                      {"settings": odd, "model": text}, None),
        "correlate": (attnflow.correlate, [numbers, numbers], {
            "method": st.sampled_from(["spearman", "kendall", "weighted_kendall", "top_k_kendall", "pearson",
                                       "spearman_dense", "x"]),
            "special_tokens": st.booleans(), "layer": layer, "position": position, "k": ints}, whole_correlation),
        "Relevance.at": (method_of("at"), [records], {"layer": layer, "position": position}, finite),
        "Relevance.words": (method_of("words"), [records], {}, finite),
        "Relevance.drop_special": (method_of("drop_special"), [records], {}, None),
        "Relevance.top": (method_of("top"), [records], {"k": ints, "layer": layer, "position": position}, None),
        "Relevance.to_json": (method_of("to_json"), [records], {}, None),
        "Relevance.save": (method_of("save"), [records, path], {"overwrite": st.booleans()}, None),
        "Relevance.load": (Relevance.load, [path], {}, None),
        "Attention.load": (Attention.load, [path], {}, None),
        "Comparison.load": (Comparison.load, [path], {}, None),
        "League.load": (faithfulness.League.load, [path], {}, None),
        "open_data": (lambda *given, **options: list(open_data(*given, **options)),
                      [st.one_of(st.lists(st.one_of(text, odd), max_size=3), path, odd)],
                      {"text_column": st.one_of(st.none(), text), "target_column": st.one_of(st.none(), text),
                       "limit": ints, "split": st.none()}, None),
        "Splits.of": (audit.Splits.of, [tok, *[st.tuples(st.lists(text, max_size=3), st.lists(ints, max_size=3))] * 3],
                      {"classes": st.one_of(st.none(), ints), "max_length": st.one_of(st.none(), ints)}, None),
        "Relevance.to_dict": (method_of("to_dict"), [records], {}, None),
        "Attention.save": (method_of("save"), [attention, path], {"overwrite": st.booleans()}, None),
        "Attention.block": (method_of("block"), [attention, st.one_of(st.sampled_from(["self", "cross"]), odd)], {},
                            None),
        "Comparison.save": (lambda *given, **options: comparison().save(*given, **options), [path],
                            {"overwrite": st.booleans()}, None),
        "Comparison": (Comparison, [st.one_of(st.just(comparison().table), odd)],
                       {"settings": odd, "costs": odd, "bootstrap": ints, "seed": ints}, None),
        "register": (registered, [st.one_of(text, odd)], {
            "needs": st.sampled_from(["attention", "model", "x"]), "help": text, "reference": text}, None),
        "audit.experiment": (registered_experiment, [st.one_of(text, odd), text, st.booleans()], {}, None),
        "audit.AttentionRow": (audit.AttentionRow, [], {"layers": st.one_of(st.lists(ints, max_size=2), odd),
                                                       "position": position}, None),
        "audit.LSTMConfig": (audit.LSTMConfig, [], {
            "vocab_size": st.sampled_from([5, 0, -1]), "embedding_size": st.sampled_from([4, 0]),
            "hidden_size": st.sampled_from([4, 3, 0]), "encoder": st.sampled_from(["lstm", "average", "x"]),
            "attention": st.sampled_from(["tanh", "dot", "x"]), "skip_edges": st.booleans()}, None),
        "Recipe": (audit.Recipe, [], {k: st.one_of(ints, odd) for k in ("epochs", "patience", "batch", "rate")}, None),
    }  # fmt: skip


def shown() -> dict[str, Spec]:
    """Views of results, which take some milliseconds each."""
    options = {"correlation": st.one_of(st.none(), text), "special": st.one_of(st.none(), st.booleans())}
    return {
        "Relevance.to_html": (method_of("to_html"), [records], {}, lambda page: MARKUP not in page),
        "Relevance._repr_html_": (method_of("_repr_html_"), [records], {}, lambda page: MARKUP not in page),
        "Relevance.to_frame": (method_of("to_frame"), [records], {}, None),
        "Relevance.plot": (drawn, [records], {}, None),
        "Comparison.to_frame": (lambda **o: comparison().to_frame(**o), [], {}, None),
        "Comparison.plot": (lambda **o: _saved(comparison().plot(**o)), [], {"reference": text, **options}, None),
        "flow_graph": (
            flowgraph.flow_graph,
            [st.one_of(attention, odd)],
            {
                "results": st.one_of(st.lists(records, max_size=2), odd),
                "methods": st.one_of(
                    st.none(), st.lists(st.sampled_from(["raw", "flow", "gradient", "x"]), max_size=2)
                ),
                "position": position,
                "layer": layer,
                "residual": residual,
                "start_layer": st.integers(-1, 3),
                "pairs": st.one_of(st.none(), ints),
                "heads": st.one_of(st.none(), heads),
                "words": st.booleans(),
                "special": st.booleans(),
                "image": odd,
                "grid": st.one_of(st.none(), st.tuples(ints, ints)),
            },
            None,
        ),
        "FlowGraph.find": (method_of("find"), [graph], {"layer": layer, "position": position}, None),
        "FlowGraph.plot": (drawn, [graph], {"layer": layer, "position": position, "source": position}, None),
        "FlowGraph.to_html": (method_of("to_html"), [graph, path], {"overwrite": st.booleans()}, None),
        "graph_of": (flowgraph.graph_of, [st.one_of(st.lists(traced, max_size=2), odd)], {"position": position}, None),
        "Finding.to_html": (method_of("to_html"), [finding], {}, lambda page: MARKUP not in page),
        "Finding.to_markdown": (method_of("to_markdown"), [finding], {}, None),
        "audit.write_report": (
            audit.write_report,
            [st.one_of(st.lists(finding, max_size=2), odd), path, text, st.one_of(st.just({"Model": MARKUP}), odd)],
            {"overwrite": st.booleans()},
            None,
        ),
        "Comparison.to_markdown": (lambda **o: comparison().to_markdown(**o), [], options, None),
        "Comparison.to_latex": (lambda **o: comparison().to_latex(**o), [], options, None),
    }


def drawn(record: Any, **options: Any) -> Any:
    """A plot, drawn to the end: what matplotlib makes of a text shows only then."""
    return _saved(record.plot(**options))


def _saved(axes: Any) -> Any:
    from matplotlib import pyplot

    try:
        axes.figure.savefig(folder() / "plot.svg")
    finally:
        pyplot.close("all")
    return axes


def modelled() -> dict[str, Spec]:
    """Functions that run a model."""
    common = {"target": target, "position": position}
    return {
        "capture": (attnflow.capture, [model, tok, given_text], {
            "heads": heads, "layers": st.one_of(layer, st.lists(ints, max_size=2)),
            "dtype": st.sampled_from(["float32", "float16", "bfloat16", "int8", np.float64]),
            "sinks": st.sampled_from(["keep", "error", "x"]), "edges": st.sampled_from(["attention", "gradient", "x"]),
            "block": st.sampled_from([None, 1, 0]), "route": st.sampled_from(["auto", "tap", "x"]),
            "gradients": st.sampled_from([None, True, 0, 99, [0]])}, None),
        "rollout(model)": (attnflow.rollout, [model, tok, given_text], walked, bounded),
        "flow(model)": (attnflow.flow, [model, tok, given_text], walked, bounded),
        "gradient": (attnflow.gradient, [model, tok, given_text], {
            **common, "method": st.sampled_from(["saliency", "input_x_gradient", "integrated_gradients", "x"]),
            "steps": st.integers(0, 3), "batch_size": st.integers(0, 3),
            "reduce": st.sampled_from(["abs_sum", "paper", "x"])}, None),
        "blankout": (attnflow.blankout, [model, tok, given_text], {
            **common, "blank": st.one_of(ints, ints.map(np.int64), st.sampled_from(["auto", "delete", "unk", "x"])),
            "score": st.sampled_from([None, "prob", "tvd", "cosine", "x"]),
            "unit": st.sampled_from(["token", "word", "x"]), "signed": st.booleans(),
            "batch_size": st.integers(0, 3)}, None),
    }  # fmt: skip


def ran() -> dict[str, Spec]:
    """Whole runs, which take a tenth of a second and more."""
    data = st.one_of(st.lists(good, min_size=1, max_size=2), st.lists(st.one_of(good, text, odd), max_size=2))
    length = st.sampled_from([None, None, 2, 5, 16, 1])
    return {
        "compare": (attnflow.compare, [model, tok, data], {
            "methods": st.sampled_from(["raw", ("raw", "rollout"), "x", (), {"a": {"method": "raw"}}, {"a": 5}]),
            "references": st.sampled_from(["gradient", "blankout", "x", {"b": len}]), "layers": layer,
            "position": position,
            "special_tokens": st.sampled_from([None, True, False]), "unit": st.sampled_from(["token", "word", "x"]),
            "max_length": length, "limit": st.sampled_from([None, 1, 2, 0]), "k": st.integers(0, 4),
            "on_error": st.sampled_from(["raise", "skip", "x"]), "batch_size": st.integers(0, 4),
            "bootstrap": st.sampled_from([0, 10, -1]), "engine": st.sampled_from(["local", "x"])}, None),
        "rank": (attnflow.rank, [model, tok, data], {
            "methods": st.sampled_from(["raw", ("rollout", "gradient"), "x", (), {"a": {"method": "raw"}}, {"a": 5}]),
            "measures": st.sampled_from([None, "deletion", ("pointing",), "infidelity", "max_sensitivity", "x", ()]),
            "blank": st.sampled_from([("auto", "delete"), ("pad", 3), "mask", (), ("x", "delete"), (99, "delete")]),
            "task": st.sampled_from([None, None, None, "verb-number", "x"]), "layers": layer, "position": position,
            "unit": st.sampled_from(["token", "word", "x"]), "draws": st.sampled_from([10, 0]), "steps": ints,
            "randomised": ints, "max_length": length, "limit": st.sampled_from([None, 1, 0]), "batch_size": ints,
            "truth_column": st.sampled_from([None, "text"]), "bootstrap": st.sampled_from([0, 10, -1])}, None),
        "attribute": (attnflow.attribute, [model, tok, prompt], {
            "answer": st.one_of(good.map(" {}".format), good, text), "max_new_tokens": st.sampled_from([1, 2, 0, -1]),
            "sources": st.sampled_from([None, "sentences", "words", "messages", "x", [], ["the"], [(0, 3)], [(3, 1)],
                                        [(0, 9**9)], {"a": "the"}, {"a": ""}]),
            "methods": st.sampled_from([None, "direct", "rollout", ("flow", "gradient"), "direct:alti", "x", ()]),
            "units": st.sampled_from(["whole", "sentences", "tokens", "x"]),
            "check": st.sampled_from([None, 0, 1, "all", -1, "x"]),
            "check_by": st.sampled_from(["mask", "removal", ("mask", "removal"), "x", ()]),
            "instead": st.one_of(st.none(), good.map(" {}".format), text)}, None),
        "faithfulness.measure": (faithfulness.measure, [model, tok, given_text, numbers], {
            "measures": st.sampled_from(["deletion", "pointing", "x", ()]), "layer": ints, "target": target,
            "blank": st.sampled_from(["auto", "delete", 3, 99, "x", ()]), "position": position, "draws": ints,
            "steps": ints, "seed": ints, "batch_size": ints}, None),
        "faithfulness.curve": (faithfulness.curve, [model, tok, given_text, numbers], {
            "kind": st.sampled_from(["deletion", "insertion", "x"]), "draws": ints, "steps": ints, "seed": ints}, None),
        "audit.permutation": (audit.permutation, [model, tok, data], {
            "layers": st.one_of(layer, st.just("all")), "permutations": st.integers(-1, 3), "seed": ints,
            "max_length": length}, None),
        "audit.adversary": (few_steps, [model, tok, data], {
            "layers": st.one_of(layer, st.just("all")), "heads": st.one_of(st.none(), heads),
            "epsilon": st.sampled_from([0.01, 0.0, -1.0]), "candidates": st.integers(0, 2), "steps": st.integers(0, 2),
            "start": st.sampled_from(["random", "own", "x"]), "seed": ints, "max_length": length,
            "batch_size": st.integers(0, 3)}, None),
        "audit.fit": (audit.fit, [classifier, splits], {
            "recipe": recipe, "folder": path, "name": text, "seed": ints}, None),
        **{f"audit.{name}": (getattr(audit, name), [st.one_of(st.just(tiny_lstm), odd), splits],
                             {"recipe": st.just(ONCE), "folder": path, "seed": ints, **more}, None)
           for name, more in (("trained", {}), ("uniform", {}), ("seeds", {"seeds": st.lists(ints, max_size=2)}),
                              ("imposter", {"penalties": st.sampled_from([(0.0,), (), (-1,), (0.1,)])}),
                              ("guide", {"width": st.sampled_from([4, 0])}))},
        "audit.run": (audit.run, [st.one_of(st.sampled_from(["permutation", "uniform", "x", "all"]), odd),
                                  st.one_of(st.sampled_from(["lstm", "nope", ""]), odd), st.one_of(table_file, path)],
                      {"text_column": text, "label_column": st.one_of(st.just("label"), text), "limit": ints,
                       "max_length": length, "epochs": st.just(1), "seed": ints, "work": path}, None),
        "audit.correlation": (audit.correlation, [model, tok, data], {
            "layers": st.one_of(layer, st.just("all")), "max_length": length}, None),
    }  # fmt: skip


def few_steps(*given: Any, **options: Any) -> Any:
    """The adversary's search, which takes 500 steps where nobody says how many."""
    return audit.adversary(*given, **{"steps": 2, **options})


ONCE = audit.Recipe(epochs=1, patience=1, batch=8)
recipe = st.one_of(st.just(ONCE), st.none())


@functools.cache
def _splits() -> Any:
    from tests.audit.tiny import splits as made

    return made(train=8, valid=4, test=4)


def tiny_lstm(seed: int = 0) -> Any:
    """A model that trains in a moment."""
    from tests.audit.tiny import lstm

    return lstm(seed)


@functools.cache
def _table_file() -> str:
    file = folder() / "table.csv"
    file.write_text("text,label\n" + "".join(f"{'good' if i % 2 else 'bad'} w{i % 3},{i % 2}\n" for i in range(24)))
    return str(file)


splits = st.one_of(st.builds(_splits), st.builds(_splits), odd)
classifier = st.one_of(st.builds(tiny_lstm), st.builds(tiny_lstm), odd)
table_file = st.builds(_table_file)


@functools.cache
def model_folder() -> str:
    """A saved classifier with its tokenizer."""
    place = folder() / "model"
    tiny("bert").save_pretrained(place)
    tokenizer().save_pretrained(place)
    return str(place)


def command(*words: str) -> tuple[Any, str]:
    """(exit code, what was said) of the command line; another exception is the command's fault."""
    from attnflow.commands.app import main as run

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run([*words])
        except SystemExit as ended:
            return ended.code, said.getvalue()
    return 0, said.getvalue()


def one_paragraph(found: tuple[Any, str]) -> bool:
    """True for an answer, or for exit code 2 without a traceback."""
    code, said = found
    return code in (0, None, 2) and "Traceback" not in said


def typed() -> dict[str, Spec]:
    """The commands, as somebody types them."""
    saved = st.builds(model_folder)
    name = st.one_of(saved, saved, saved, st.sampled_from(["nope", "", "/", "x.gguf", _table_file()]), text)
    word = st.one_of(text, st.sampled_from(["-1", "0", "1", "2", "1e9", "nan", "0.5", "none", "all", "a,b", "mean"]))
    file = st.one_of(table_file, table_file, text, st.just("nope.csv"))
    ending = st.sampled_from(["x.html", "x.png", "x.csv", "x.json", "x.safetensors", "x", "x.y", "", "no/x.html"])
    out = st.one_of(ending, ending.map(lambda e: str(folder() / e)))

    def made(start: list[Any], options: list[tuple[str, Any]]) -> Any:
        given = st.lists(st.one_of(*(st.tuples(st.just(key), value) for key, value in options)), max_size=3)
        return st.tuples(st.tuples(*start), given).map(
            lambda both: [*both[0], *(part for pair in both[1] for part in pair if part is not None)])  # fmt: skip

    flag = st.none()
    spoken = {
        "explain": made([st.just("explain"), name, st.one_of(good, text)], [
            ("--method", st.sampled_from(["raw", "flow", "gradient", "blankout", "x"])), ("--layer", word),
            ("--position", word), ("--heads", word), ("--residual", word), ("--edges", word), ("--words", flag),
            ("--drop-special", flag), ("--out", out), ("--overwrite", flag), (MARKUP, flag)]),
        "compare": made([st.just("compare"), name, file, st.just("--out"), out, st.just("--no-progress"),
                         st.just("--limit"), st.just("2")], [
            ("--text-column", word), ("--target-column", word), ("--methods", word), ("--references", word),
            ("--correlation", word), ("--layers", word), ("--position", word), ("--unit", word), ("--resume", flag),
            ("--table", out), ("--plot", out), ("--batch-size", word), ("--max-length", word), ("--split", word)]),
        "audit": made([st.just("audit"), st.one_of(st.just("permutation"), word), name, file, st.just("--limit"),
                       st.just("2"), st.just("--permutations"), st.just("2")], [
            ("--text-column", word), ("--label-column", word), ("--layers", word), ("--seeds", word),
            ("--penalties", word), ("--epsilon", word), ("--out", out), ("--work", out), ("--seed", word)]),
        "probe": made([st.just("probe"), st.sampled_from(["verb-number", "pronouns", "x"]), name, st.just("--limit"),
                       st.just("2")], [
            ("--data", file), ("--method", word), ("--edges", word), ("--out", out), ("--text", text),
            ("--referents", word), ("--forms", word), ("--pronoun", word), ("--mode", word), ("--seed", word)]),
        "models": made([st.just("models")], [("bert", flag), ("berrt", flag), ("", flag), (MARKUP, flag)]),
    }  # fmt: skip
    return {f"attnflow {key}": (lambda words: command(*words), [words], {}, one_paragraph)
            for key, words in spoken.items()}  # fmt: skip


TABLES = {"quick": quick, "shown": shown, "modelled": modelled, "ran": ran, "typed": typed}


@st.composite
def calls(draw: st.DrawFn, table: dict[str, Spec], names: tuple[str, ...] | None = None) -> Call:
    """One call of the table; up to two of its values are hostile."""
    name = draw(st.sampled_from(names or tuple(table)))
    function, arguments, options, holds = table[name]
    # What is typed is text, hostile in itself.
    hostile = 0 if name.startswith("attnflow ") else draw(st.sampled_from([0, 0, 1, 1, 2]))
    chosen = draw(st.lists(st.sampled_from(sorted(options)), unique=True, max_size=4)) if options else []
    places = [*range(len(arguments)), *chosen]
    bad = set(draw(st.permutations(places))[:hostile])
    # The record of a method is true: a record that is no record has no method.
    owner = name.partition(".")[0]
    free = owner in ("audit", "Splits", "Comparison") or name.endswith((".of", ".load"))
    fixed = {0} if "." in name and not free else set()
    values = tuple(draw(odd if i in bad - fixed else a) for i, a in enumerate(arguments))
    return Call(name, function, values, {k: draw(odd if k in bad else options[k]) for k in chosen}, holds)


def tried(table: dict[str, Spec], count: int, seed: int) -> tuple[Counter[str], dict[str, tuple[str, int]]]:
    """(how often each "function|outcome" came, the violations with a call that shows each and their number)."""
    counts: Counter[str] = Counter()
    seen: dict[str, tuple[str, int]] = {}

    @seeded(seed)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(calls(table))
    def run(call: Call) -> None:
        kind, what = outcome(call)
        counts[f"{call.name}|{kind}"] += 1
        if kind == "violation":
            first, number = seen.get(what, (repr(call), 0))
            seen[what] = first, number + 1

    run()
    return counts, seen


def main() -> None:
    """Look at one part of the calls by hand:  python -m tests.fuzz.calls quick 1000."""
    table = TABLES[sys.argv[1]]()
    counts, seen = tried(table, int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print(dict(counts))
    for what, (first, number) in sorted(seen.items(), key=lambda item: -item[1][1]):
        print(f"{number:5}  {what}\n         {first[:400]}")


if __name__ == "__main__":
    main()
