"""``attnflow models``: what can be captured, and how."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from attnflow.commands.wording import suggested
from attnflow.errors import AttnFlowError
from attnflow.models.families import families, table, tried_with


def model_types(incomplete: str) -> list[str]:
    """Shell completion of model types, from the list that the package ships."""
    return [name for name in table()["types"] if name.startswith(incomplete)]


def models_command(
    only: Annotated[
        str | None, typer.Argument(help="A model type, for instance bert.", autocompletion=model_types)
    ] = None,
) -> None:
    """List which model types of the installed transformers can be captured, and how."""
    found = families()
    if only is not None:
        if only not in found:
            raise AttnFlowError(
                f"{only!r} is not one of the {len(found)} model types of transformers and of attnflow."
                f"{suggested(only, found, 8)}"
            )
        typer.echo(f"{only}: {found[only]}")
        return
    for name, route in found.items():
        typer.echo(f"{name}\t{route}")
    counts = Counter(route.split(" (as a part")[0] for route in found.values())
    total = "; ".join(f"{n} {route}" for route, n in counts.most_common())
    typer.echo(f"{len(found)} model types, tried with transformers {tried_with()}: {total}", err=True)
