"""The one list of methods: every way to score inputs, built in or registered by the user.

explain, compare, probes, audit, the page, the command line and the docs read it. A method is one function:

- a method that needs *attention* is called as ``function(attention, position=…, **options)``; with other edges than
  attention weights it is called ``rollout:alti``, ``flow:gradient``, … (:data:`attnflow.attention.EDGES`);
- a method that needs the *model* is called as ``function(example, goal, **options)``: ``example`` has the model, its
  tokenizer, inputs and outputs (:class:`attnflow.inputs.example.Example`), ``goal`` is the number that is explained
  (:class:`attnflow.inputs.target.Goal`).

Both return a :class:`Relevance` of one output position: rows are layers (one row "input" where a method knows no
layers), columns are input positions.

The list says where each function is and imports it when it is first called, so that the help of the command line can
read the list without torch.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnflow.errors import SelectionError

if TYPE_CHECKING:
    import pandas as pd

    from attnflow.attention import Attention
    from attnflow.inputs.example import Example
    from attnflow.inputs.target import Goal
    from attnflow.relevance import Relevance

NEEDS = ("attention", "model")
# What the caller settles for every method alike, so that it is no option of one of them.
_SETTLED = ("position", "layer", "tokens", "target")

Spec = str | Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Method:
    """One way to score inputs.

    Attributes:
        name: what tables, options and files call it.
        code: what computes the scores: a function, or where it is, "module:name" in :mod:`attnflow.scoring`.
        needs: "attention", or "model" where scores come from further runs of the model.
        help: what it does, in one line.
        reference: the paper.
        defaults: options that belong to the name ("blankout-mask" is blank-out with ``blank="mask"``).
        shown: True if it is computed where no methods are named.
        base: of a method with edges of its own, the name of the method without them.
    """

    name: str
    code: Callable[..., Any] | str
    needs: str
    help: str
    reference: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shown: bool = False
    base: str = ""

    @property
    def function(self) -> Callable[..., Any]:
        """What computes the scores; the module says how it is called."""
        if not isinstance(self.code, str):
            return self.code
        module, _, name = self.code.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(f"attnflow.scoring.{module}"), name)
        return found

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that the function takes."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _SETTLED)


@dataclass(frozen=True)
class MethodCall:
    """A method with options, under the name that it has in a table."""

    name: str
    method: Method
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """Plain values that distinguish this call from another one of the same name."""
        return {"function": self.method.name, **self.method.defaults, **self.options}

    @property
    def edges(self) -> str:
        """What the matrices that it reads hold."""
        return {**self.method.defaults, **self.options}.get("edges") or "attention"

    @property
    def captured(self) -> dict[str, Any]:
        """The options of :func:`attnflow.capture` that provide what it reads: edges, mixing ratios."""
        residual = {**self.method.defaults, **self.options}.get("residual")
        if self.edges != "attention":
            return {"edges": self.edges}
        return {"mixing": True} if isinstance(residual, str) and residual == "measured" else {}

    def offered(self, **options: Any) -> MethodCall:
        """The same call with those of ``options`` that its function takes and that are not chosen already.

        Edges that hold the residual, and what all heads gave, are offered neither a residual nor heads.
        """
        from attnflow.attention import RESIDUAL_INSIDE

        unfit = ("residual", "heads") if self.edges in RESIDUAL_INSIDE else ()
        accepted = [k for k in self.method.options if k not in self.method.defaults and k not in unfit]
        taken = {k: v for k, v in options.items() if k in accepted}
        return replace(self, options={**taken, **self.options})

    def run(
        self,
        example: Example | None,
        goal: Goal | None,
        attention: Attention | None = None,
        position: int | str | None = None,
    ) -> Relevance:
        """The scores of one example: from ``attention`` at ``position``, or from ``example`` and ``goal``."""
        options = {**self.method.defaults, **self.options}
        if self.method.needs == "attention":
            found: Relevance = _placed(self.method.function(attention, position=position, **options), position)
            if self.method.base:
                found = replace(found, method=self.method.name)
        else:
            found = self.method.function(example, goal, **options)
        return found


def _placed(found: Relevance, position: int | str | None) -> Relevance:
    """The result with its output position on record, also where a user's function does not note it."""
    from attnflow.relevance import Relevance

    if isinstance(position, int) and isinstance(found, Relevance) and found.position is None:
        return replace(found, position=position)
    return found


_ABNAR = "Abnar & Zuidema 2020"
_JAIN = "Jain & Wallace 2019"
_SALIENCY = "Simonyan et al. 2014"
_GRADIENT, _BLANKOUT = "gradient:gradient_of", "blankout:blankout_of"

_COMPOSED = (
    Method("raw", "raw:raw", "attention", "The attention weights of one layer.", _ABNAR, shown=True),
    Method("rollout", "rollout:rollout", "attention", "The product of all layers below, with residuals.", _ABNAR,
           shown=True),
    Method("flow", "flow.flow:flow", "attention", "The maximum flow through all layers below.", _ABNAR, shown=True),
    Method("direct", "direct:direct", "attention", "The row of the output position, summed over layers.",
           "Ferrando & Voita 2024"),
)  # fmt: skip
# What a layer's matrix may hold besides attention weights, and the paper.
EDGES = {
    "norm": "Kobayashi et al. 2021",
    "alti": "Ferrando et al. 2022",
    "value_zeroing": "Mohebbi et al. 2023",
    "gradient": "Chefer et al. 2021",
}
_BUILT_IN = (
    *_COMPOSED,
    Method("chefer", "rollout:rollout", "attention", "Rollout of gradient edges by the rule R ← R + Ā·R.",
           "Chefer et al. 2021", {"edges": "gradient", "residual": "add"}, base="rollout"),
    *(
        Method(f"{m.name}:{edges}", m.code, "attention", f"{m.help[:-1]}, of {edges} edges.", paper,
               {"edges": edges}, base=m.name)
        for m in _COMPOSED for edges, paper in EDGES.items()
    ),
    Method("gradient", _GRADIENT, "model", "The size of the gradient at each input.", _SALIENCY,
           {"method": "saliency"}, shown=True),
    Method("gradient-paper", _GRADIENT, "model", "|Σ gradient| of p₀ − p₁, the paper's formula.", _ABNAR,
           {"method": "saliency", "reduce": "paper"}),
    Method("input_x_gradient", _GRADIENT, "model", "Gradient times embedding.", _JAIN,
           {"method": "input_x_gradient"}),
    Method("integrated_gradients", _GRADIENT, "model", "Gradients along a path from a baseline.",
           "Sundararajan et al. 2017", {"method": "integrated_gradients"}),
    *(
        Method(f"{name}-signed", _GRADIENT, "model", f"{what}, with its sign: for or against the target.", paper,
               {"method": name, "reduce": "sum"})
        for name, what, paper in (
            ("input_x_gradient", "Gradient times embedding", _JAIN),
            ("integrated_gradients", "Integrated gradients", "Sundararajan et al. 2017"),
        )
    ),
    Method("gradient_shap", _GRADIENT, "model", "Gradients at random points towards a baseline.",
           "Lundberg & Lee 2017", {"method": "gradient_shap"}),
    Method("blankout", _BLANKOUT, "model", "How much the output changes without an input.", _ABNAR,
           shown=True),
    Method("blankout-signed", _BLANKOUT, "model", "Blank-out with its sign: for or against the target.", _ABNAR,
           {"signed": True}),
    *(
        Method(f"blankout-{blank}", _BLANKOUT, "model", f"Blank-out: {what}.", paper, {"blank": blank})
        for blank, what, paper in (
            ("mask", "the mask token in the input's place", _ABNAR),
            ("unk", "the unknown token in the input's place", _ABNAR),
            ("pad", "the padding token in the input's place", ""),
            ("delete", "the input is deleted", _JAIN),
            ("mean-embedding", "the mean embedding in the input's place", ""),
        )
    ),
)  # fmt: skip
BEST = "integrated_gradients-signed"
"""The method that came first in the leagues of ``docs/league.md`` that judge by what the model loses."""
_REGISTRY: dict[str, Method] = {method.name: method for method in _BUILT_IN}


def register(
    name: str, *, needs: str = "attention", help: str = "", reference: str = "", **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a method of your own: it then works in compare, on the page and in the terminal like a built-in one.

    Args:
        name: what tables call it; a built-in name cannot be taken.
        needs: "attention": the function is called as ``function(attention, position=…)``; "model": as
            ``function(example, goal)``. It returns a :class:`Relevance` ``[layers, keys]``.
        help, reference: for :func:`attnflow.methods`.
        defaults: options that belong to the name.

    >>> from attnflow import Relevance, register, methods
    >>> @register("first layer", help="Raw attention of the lowest layer, at every layer.")
    ... def first_layer(attention, position):
    ...     block = attention.only
    ...     rows = [block.weights[0][position]] * len(block.layers)
    ...     return Relevance(rows, block.keys, block.layers, "first layer")
    >>> "first layer" in set(methods()["name"])
    True
    >>> unregister("first layer")
    """
    from attnflow.numbers import word

    if word(needs, "needs") not in NEEDS:
        raise SelectionError(f"needs={needs!r} is not known. Use {' or '.join(map(repr, NEEDS))}.")
    if not word(name, "name") or any(method.name == name for method in _BUILT_IN):
        raise SelectionError(f"name={name!r} is a built-in method or empty: choose another name for yours.")

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise SelectionError(f"A {type(function).__name__} was registered as {name!r}: a method is a function.")
        _REGISTRY[name] = Method(name, function, needs, help, reference, defaults)
        return function

    return add


def unregister(name: str) -> None:
    """Remove a method of your own."""
    if any(method.name == name for method in _BUILT_IN) or name not in _REGISTRY:
        own = ", ".join(n for n in _REGISTRY if n not in {m.name for m in _BUILT_IN}) or "none"
        raise SelectionError(f"{name!r} is not a method that you registered. There is: {own}.")
    del _REGISTRY[name]


def methods() -> pd.DataFrame:
    """Every method: name, what it needs, whether it is computed by default, help, reference, options.

    >>> table = methods()
    >>> table[table["default"]]["name"].tolist()
    ['raw', 'rollout', 'flow', 'gradient', 'blankout']
    """
    import pandas as pd

    rows = [
        [m.name, m.needs, m.shown, m.help, m.reference, ", ".join(m.options), dict(m.defaults)]
        for m in _REGISTRY.values()
    ]
    return pd.DataFrame(rows, columns=["name", "needs", "default", "help", "reference", "options", "set"])


def names(needs: str | None = None, *, shown: bool = False, edges: bool = False) -> tuple[str, ...]:
    """Names of the methods that need ``needs``; with ``shown`` those that are computed where none are named.

    ``edges``: also the names with other edges, such as "rollout:alti".

    >>> names("attention", shown=True), names("model", shown=True)
    (('raw', 'rollout', 'flow'), ('gradient', 'blankout'))
    """
    kept = [m for m in _REGISTRY.values() if needs in (None, m.needs) and (m.shown or not shown)]
    return tuple(m.name for m in kept if edges or ":" not in m.name)


def composed() -> tuple[str, ...]:
    """Names of the methods that compose the edges of a layer, whatever their kind."""
    return tuple(m.name for m in _COMPOSED)


def with_edges(methods: Sequence[str], edges: Sequence[str]) -> tuple[str, ...]:
    """The names of ``methods`` with each of ``edges``; methods that read no edges, or have their own, stay as they are.

    >>> with_edges(["rollout", "chefer", "blankout"], ["attention", "alti"])
    ('rollout', 'rollout:alti', 'chefer', 'blankout')
    """
    from attnflow.attention import check_edges

    if not edges:
        return tuple(methods)
    out: list[str] = []
    for name in methods:
        kinds = [check_edges(e) for e in edges] if name in composed() else ["attention"]
        out += [name if kind == "attention" else f"{name}:{kind}" for kind in kinds]
    return tuple(dict.fromkeys(out))


def find(name: str, needs: str | None = None, argument: str = "method") -> Method:
    """The method of that name; for an unknown name, an error that lists the known ones."""
    found = _REGISTRY.get(name)
    if found is None or needs not in (None, found.needs):
        raise SelectionError(f"{argument} {name!r} is not known. Use some of: {', '.join(names(needs))}{_hint(needs)}.")
    return found


def calls(argument: str, spec: Spec, needs: str | None = None) -> tuple[MethodCall, ...]:
    """What ``spec`` asks for: a name, names, or a dict of names with options or with functions of the user's own.

    >>> [c.settings() for c in calls("methods", {"half": {"method": "rollout", "residual": 0.2}}, "attention")]
    [{'function': 'rollout', 'residual': 0.2}]
    """
    given = {spec: {}} if isinstance(spec, str) else spec if isinstance(spec, Mapping) else {name: {} for name in spec}
    if not given:
        raise SelectionError(f"{argument} is empty: choose from {', '.join(names(needs))}.")
    return tuple(_call(argument, name, value, needs) for name, value in given.items())


def _call(argument: str, name: str, value: Any, needs: str | None) -> MethodCall:
    if callable(value):
        return MethodCall(name, _own(value, needs or "attention"))
    options = dict(value or {})
    base = options.pop("method", name)
    found = _REGISTRY.get(base) if isinstance(base, str) else None
    if found is None or needs not in (None, found.needs):
        raise SelectionError(
            f"{argument}: {base!r} is not known. Use {', '.join(names(needs))}{_hint(needs)}, or a function:  "
            f"{argument}={{{name!r}: my_function}}"
        )
    wrong = [o for o in options if o not in found.options]
    if wrong:
        have = ", ".join(found.options)
        raise SelectionError(f"{argument}: {name!r} has no option {wrong[0]!r}. Its options: {have}.")
    return MethodCall(name, found, options)


def _hint(needs: str | None) -> str:
    return "" if needs == "model" else "; with other edges, for instance rollout:alti"


def _own(function: Callable[..., Any], needs: str) -> Method:
    """A function that was passed where a name is expected; one that needs the model gets it with its inputs."""
    named = function if hasattr(function, "__qualname__") else type(function)  # a partial has no name of its own
    title = f"{named.__module__}.{named.__qualname__}"
    if needs == "attention":
        return Method(title, function, needs, "")
    return Method(title, _Plain(function), needs, "")


@dataclass(frozen=True)
class _Plain:
    """``function(model, tokenizer, inputs)`` as a method that needs the model."""

    function: Callable[..., Any]

    def __call__(self, example: Example, goal: Goal) -> Any:
        return self.function(example.model, example.tokenizer, example.inputs)
