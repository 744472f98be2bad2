"""``attnflow demo``: one sentence on the model inside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnflow.commands.console import quiet
from attnflow.commands.explain import Request


def demo_command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("attnflow-demo.html"),
) -> None:
    """Explain one sentence on the model inside the package, without any network."""
    from attnflow import demo
    from attnflow.scoring.registry import names

    quiet()
    typer.echo(f"{demo.NOTE}\n\n  {demo.SENTENCE} …\n")
    wanted = Request((demo.METHOD, *names(shown=True)), {"position": "cls"}, out=out, overwrite=True)
    wanted.run(demo.model(), demo.tokenizer(), demo.SENTENCE)
    typer.echo(f"\n{demo.WHY}")
