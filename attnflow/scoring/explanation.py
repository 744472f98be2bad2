"""What several methods say of one text, as one object: the prediction, a table, a check, a plot and a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from attnflow.correlation import correlate
from attnflow.errors import SelectionError
from attnflow.inputs.prediction import Prediction
from attnflow.relevance import Relevance
from attnflow.tokens import whole_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Explanation(Sequence[Relevance]):
    """The results of several methods on one text, for one output position: what :func:`attnflow.explain` gives.

    It is a sequence of its results, which are also found by name: ``explanation["rollout"]``. ``print`` shows what the
    command line shows.

    Attributes:
        results: one for each method, in the order in which they were asked for.
        prediction: what the model predicted; None for a model without a head.
        text: what was explained.
        layer: the layer that table, check and page begin with, by its true number or counted from the top.

    >>> from attnflow import demo, explain
    >>> e = explain(demo.model(), demo.tokenizer(), "the keys to the cabinet", methods=("rollout", "blankout"))
    >>> e
    Explanation(rollout, blankout: 7 inputs; The model predicts plural (100.0 %); next singular (< 0.1 %).)
    >>> e["blankout"].top(1)[0][0]
    'keys'
    >>> list(e.table().columns)
    ['token', 'rollout', 'blankout']
    """

    results: tuple[Relevance, ...]
    prediction: Prediction | None = None
    text: Any = None
    layer: int = -1

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Relevance]:
        return iter(self.results)

    @overload
    def __getitem__(self, which: int | str) -> Relevance: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Relevance]: ...
    def __getitem__(self, which: int | str | slice) -> Relevance | Sequence[Relevance]:
        if isinstance(which, str):
            found = next((r for r in self.results if r.method == which), None)
            if found is None:
                have = ", ".join(r.method for r in self.results)
                raise SelectionError(
                    f"{which!r} is not one of the methods of this explanation: {have}. "
                    f"Ask for it:  explain(model, tokenizer, text, methods=[{which!r}])"
                )
            return found
        return self.results[which]

    def __repr__(self) -> str:
        names = ", ".join(r.method for r in self.results)
        said = f"; {self.prediction.line}" if self.prediction is not None else ""
        return f"Explanation({names}: {len(self.results[0].tokens)} inputs{said})"

    def __str__(self) -> str:
        from attnflow.views.terminal import as_text

        return as_text(self.shown())

    def shown(self, layer: int | None = None, *, words: bool = False, special: bool = True) -> list[Relevance]:
        """Each result at one layer, as words or without special tokens where that is asked for."""
        at = [r if r.layers == ("input",) else r.at(layer=self.layer if layer is None else layer) for r in self.results]
        at = [r.words() for r in at] if words else at
        return at if special else [r.drop_special() for r in at]

    def table(self, layer: int | None = None, *, words: bool = False, special: bool = True) -> pd.DataFrame:
        """One row per input and one column per method: the scores at one layer (the last, unless another is named)."""
        import pandas as pd

        shown = self.shown(layer, words=words, special=special)
        columns: dict[str, Any] = {"token": [whole_text(t) for t in shown[0].tokens]}
        return pd.DataFrame(columns | {r.method: r.scores[-1] for r in shown})

    def informative(self, layer: int | None = None) -> pd.DataFrame:
        """Whether each method says something about this text: shares, order, likeness of outputs, and a line."""
        import pandas as pd

        return pd.DataFrame([{"method": r.method, **r.informative.to_dict()} for r in self.shown(layer)])

    def check(self, special: bool = False) -> pd.DataFrame:
        """The rank correlation of each method of attention with each that asks the model itself, layer by layer.

        Methods that ask the model are gradient and blank-out; without one of them there is nothing to check against.
        One text is one example: :func:`attnflow.compare` does the same over a data set.
        """
        import pandas as pd

        references = [r for r in self.results if r.layers == ("input",)]
        if not references:
            raise SelectionError(
                "There is nothing to check against: every method reads attention. Ask for one that asks the model:  "
                "explain(model, tokenizer, text, methods=['rollout', 'blankout'])"
            )
        rows = []
        for r in (r for r in self.results if r.layers != ("input",)):
            for reference in references:
                found = correlate(r, reference, special_tokens=special)
                rows += [
                    {"method": r.method, "reference": reference.method, "layer": layer, found.method: float(value)}
                    for layer, value in zip(found.layers, found.values, strict=True)
                ]
        return pd.DataFrame(rows)

    def plot(self, *, words: bool = False, special: bool = True) -> Figure:
        """One heat-map per method, layers × inputs, below one another."""
        from attnflow.views.plot import plot_all

        results = [r.words() for r in self.results] if words else list(self.results)
        return plot_all(results if special else [r.drop_special() for r in results])

    def to_html(self, path: str | os.PathLike[str] | None = None, overwrite: bool = False, **options: Any) -> str:
        """One self-contained page of all methods; see :meth:`Relevance.to_html`."""
        layer = options.pop("layer", self.layer)
        first, *others = self.results
        return first.to_html(path, overwrite, others=others, **({"layer": layer} if layer != -1 else {}), **options)

    def _repr_html_(self) -> str:
        from attnflow.flowgraph import graph_at_once
        from attnflow.formats import frame
        from attnflow.views.html import document

        return frame(document(self.results, graph_at_once(self.results)), 900)
