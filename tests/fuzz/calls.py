"""Calls of every public function, with arguments of which some are hostile.

A call may give a result, an ``AttnFlowError``, or (for a value of the wrong Python type, or a keyword that is not
there) a ``TypeError`` that attnflow itself or the call raised. Everything else is a violation: another error, a result
that is not finite where it should be, a call that does not end.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import attnflow
from attnflow import Attention, AttnFlowError, Relevance, audit, faithfulness
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
    """An end to what would not end; only in the main thread, as signals are."""

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
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
        "Comparison.to_markdown": (lambda **o: comparison().to_markdown(**o), [], options, None),
        "Comparison.to_latex": (lambda **o: comparison().to_latex(**o), [], options, None),
    }


def drawn(record: Relevance, **options: Any) -> Any:
    """A plot, drawn to the end: what matplotlib makes of a text shows only then."""
    axes = record.plot(**options)
    axes.figure.savefig(folder() / "plot.svg")
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
        "faithfulness.measure": (faithfulness.measure, [model, tok, given_text, numbers], {
            "measures": st.sampled_from(["deletion", "pointing", "x", ()]), "layer": ints, "target": target,
            "blank": st.sampled_from(["auto", "delete", 3, 99, "x", ()]), "position": position, "draws": ints,
            "steps": ints, "seed": ints, "batch_size": ints}, None),
        "faithfulness.curve": (faithfulness.curve, [model, tok, given_text, numbers], {
            "kind": st.sampled_from(["deletion", "insertion", "x"]), "draws": ints, "steps": ints, "seed": ints}, None),
        "audit.permutation": (audit.permutation, [model, tok, data], {
            "layers": st.one_of(layer, st.just("all")), "permutations": st.integers(-1, 3), "seed": ints,
            "max_length": length}, None),
        "audit.correlation": (audit.correlation, [model, tok, data], {
            "layers": st.one_of(layer, st.just("all")), "max_length": length}, None),
    }  # fmt: skip


@st.composite
def calls(draw: st.DrawFn, table: dict[str, Spec], names: tuple[str, ...] | None = None) -> Call:
    """One call of the table; up to two of its values are hostile."""
    name = draw(st.sampled_from(names or tuple(table)))
    function, arguments, options, holds = table[name]
    hostile = draw(st.sampled_from([0, 0, 1, 1, 2]))
    chosen = draw(st.lists(st.sampled_from(sorted(options)), unique=True, max_size=4)) if options else []
    places = [*range(len(arguments)), *chosen]
    bad = set(draw(st.permutations(places))[:hostile])
    # The record of a method is true: a record that is no record has no method.
    fixed = {0} if name.partition(".")[2] and function is not Attention.of and not name.endswith("load") else set()
    given = tuple(draw(odd if i in bad - fixed else a) for i, a in enumerate(arguments))
    return Call(name, function, given, {k: draw(odd if k in bad else options[k]) for k in chosen}, holds)


def main() -> None:
    """Look at one part of the calls by hand:  python -m tests.fuzz.calls quick 1000."""
    from collections import Counter

    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    table = {"quick": quick, "shown": shown, "modelled": modelled, "ran": ran}[sys.argv[1]]()
    counts: Counter[str] = Counter()
    seen: dict[str, tuple[str, int]] = {}

    @seeded(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    @settings(max_examples=int(sys.argv[2]), database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(calls(table))
    def run(call: Call) -> None:
        kind, what = outcome(call)
        counts[kind] += 1
        if kind == "violation":
            first, count = seen.get(what, (repr(call), 0))
            seen[what] = first, count + 1

    run()
    print(dict(counts))
    for what, (first, count) in sorted(seen.items(), key=lambda item: -item[1][1]):
        print(f"{count:5}  {what}\n         {first[:400]}")


if __name__ == "__main__":
    main()
