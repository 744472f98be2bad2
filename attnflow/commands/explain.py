"""``attnflow explain``: one text, several methods, in the terminal and in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from attnflow.commands.console import progress, quiet, status
from attnflow.commands.options import (
    HEADS,
    METHODS,
    RESIDUALS,
    SHOWN,
    Edges,
    Untrained,
    one_of,
    position_of,
    residual_of,
)
from attnflow.commands.wording import worded
from attnflow.errors import AttnFlowError
from attnflow.formats import check_file, suffixes, write_file
from attnflow.scoring import registry
from attnflow.select import NAMED

BY_DEFAULT = f"{', '.join((*SHOWN, registry.BEST))}; a page also shows {', '.join(registry.names('model', shown=True))}"
WHY = (
    f"{registry.BEST}: first in the league of faithfulness (docs/league.md). For your model:  attnflow rank MODEL DATA"
)
PARTS = ("page", "figure", "frame", "json", "record")
ENDINGS = ", ".join(suffixes(*PARTS))


def explain_command(
    model: Annotated[str, typer.Argument(help="A hub name or a folder with a saved model.")],
    text: Annotated[str, typer.Argument(help="The text to explain.")],
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help=f"{', '.join(METHODS)}; may be repeated (default: {BY_DEFAULT}).",
            autocompletion=one_of(METHODS),
        ),
    ] = None,
    layer: Annotated[
        int, typer.Option(help="The layer to show, by the model's own number; negative numbers count from the top.")
    ] = -1,
    position: Annotated[
        str | None,
        typer.Option(
            help="Output position: a number, cls, last, mask, or a word of the text (default: cls; last in a causal "
            "model and where there is no cls).",
            autocompletion=one_of(NAMED),
        ),
    ] = None,
    heads: Annotated[
        str,
        typer.Option(
            help="How heads are combined: mean, max, min, or numbers: 3 or 0,2,5.", autocompletion=one_of(HEADS)
        ),
    ] = "mean",
    edges: Edges = None,
    residual: Annotated[
        str | None,
        typer.Option(
            help="Share of the residual connection in rollout and flow: number, none, add or measured (default: 0.5).",
            autocompletion=one_of(RESIDUALS),
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Show words in place of word pieces.")] = False,
    drop_special: Annotated[
        bool, typer.Option("--drop-special", help="Leave out [CLS], </s> and other special tokens.")
    ] = False,
    top: Annotated[
        int | None, typer.Option(help="Show only this many tokens, those that any method scores highest.", min=1)
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Cut the text to this many tokens.", min=2)] = None,
    untrained: Untrained = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help=f"Write to a file: {ENDINGS}.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    """Explain one text: tokens × methods at a layer, for one output position."""
    from attnflow.models.loading import load

    shown = registry.names(None if is_page(out) else "attention", shown=True)
    chosen = registry.with_edges(method or shown, edges or ())
    names = tuple(registry.find(name, argument="--method").name for name in dict.fromkeys(chosen))
    options = {"heads": _heads(heads), "residual": residual_of(residual), "position": position_of(position, words=True)}
    options["max_length"] = max_length
    best = registry.BEST if method is None and not names_one(out) else None
    wanted = Request(names, options, layer, words, drop_special, out, overwrite, best, top)
    wanted.check()
    quiet()
    with status(f"Loading {model}"):
        loaded, tokenizer = load(model)
    from attnflow.inputs.untrained import accepting

    with accepting(untrained):
        wanted.run(loaded, tokenizer, text)


def is_page(out: Path | None) -> bool:
    """True if ``out`` is to be a page, which shows every method and head."""
    return out is not None and out.suffix == ".html"


def names_one(out: Path | None) -> bool:
    """True if ``out`` is a file that holds one result."""
    return out is not None and out.suffix == ".safetensors"


def _heads(value: str) -> str | int | list[int]:
    if value in HEADS:
        return value
    try:
        numbers = [int(part) for part in value.split(",")]
    except ValueError:
        raise AttnFlowError(f"--heads {value} is not known. Use mean, max, min, or numbers: 3 or 0,2,5.") from None
    return numbers[0] if len(numbers) == 1 else numbers


@dataclass(frozen=True)
class Request:
    """What is to be explained and shown.

    Attributes:
        methods: their names.
        options: of :func:`attnflow.scoring.explain.explain`.
        layer: the layer of the table, by the model's own number.
        words, drop_special: how tokens are shown.
        out: the file, if one is wanted.
        best: a method to show beside them, where it can be computed: what the league says to look at.
        top: how many tokens the table shows; None for all.
    """

    methods: tuple[str, ...]
    options: dict[str, Any]
    layer: int = -1
    words: bool = False
    drop_special: bool = False
    out: Path | None = None
    overwrite: bool = False
    best: str | None = None
    top: int | None = None

    def check(self) -> None:
        """Refuse what cannot be written before a model is loaded."""
        check_file("--out", self.out, PARTS, self.overwrite)
        if names_one(self.out) and len(self.methods) > 1:
            raise AttnFlowError(
                f"--out {self.out} holds one result, and {len(self.methods)} methods are asked for. "
                f"Choose one:  --method {self.methods[-1]}"
            )

    def run(self, model: Any, tokenizer: Any, text: str) -> None:
        """Run the model once, show the table, write the file."""
        with status("Running the model"):
            results, said = self._explained(model, tokenizer, text)
        self._show(results)
        if said:
            Console(soft_wrap=True).print(said, style="dim", markup=False, highlight=False)
        if self.out is not None:
            self._write(results, self.out)

    def _explained(self, model: Any, tokenizer: Any, text: str) -> tuple[Any, str]:
        """(results, what is said about the best method): where that one cannot be computed, the others are shown."""
        from attnflow.scoring.explain import explain

        options, said = {"every_head": is_page(self.out), **self.options}, ""
        if self.best is not None:
            try:
                return explain(model, tokenizer, text, methods=(*self.methods, self.best), **options), WHY
            except AttnFlowError as error:
                said = f"Without {self.best}: {worded(str(error).splitlines()[0], 'explain')}"
        return explain(model, tokenizer, text, methods=self.methods, **options), said

    def _show(self, results: Any) -> None:
        from attnflow.views.terminal import show_results

        # The layer is taken before special tokens are dropped, so that the share in the footer is that layer's.
        shown = results.shown(self.layer, words=self.words, special=not self.drop_special)
        said = [replace(r, notes=tuple(worded(note, "explain") for note in r.notes)) for r in shown]
        show_results(said, Console(), self.top)

    def _write(self, results: Any, out: Path) -> None:
        shaped = [self._shaped(r) for r in results]
        # The page has switches for words and special tokens, so it gets the results whole.
        parts = {
            "page": lambda: self._page(results),
            "figure": lambda: _figure(shaped),
            "frame": lambda: _frame(shaped),
            "json": lambda: _json(shaped),
            "record": lambda: shaped[0],
        }
        write_file(out, parts, self.overwrite)
        typer.echo(f"Written: {out.resolve()}")

    def _page(self, results: Any) -> str:
        with progress("Computing the flows of the page") as bar:
            shown = {"words": self.words, "special": not self.drop_special, "layer": self.layer}
            page: str = results.to_html(**shown, progress=bar)
            return page

    def _shaped(self, result: Any) -> Any:
        result = result.words() if self.words else result
        return result.drop_special() if self.drop_special else result


def _figure(results: list[Any]) -> Any:
    from attnflow.views.plot import plot_all

    return plot_all(results)


def _frame(results: list[Any]) -> Any:
    import pandas as pd

    return pd.concat([r.to_frame().assign(method=r.method) for r in results])


def _json(results: list[Any]) -> str:
    import json

    return json.dumps([r.to_dict() for r in results], ensure_ascii=False, indent=1)
