"""All that a user may rely on, line by line: public names with their arguments, and the commands with their options.

``python -m tests.surface > tests/surface.txt`` records it anew, where a change is meant.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import typer

PACKAGES = (
    "attnflow",
    "attnflow.audit",
    "attnflow.capturing",
    "attnflow.comparing",
    "attnflow.faithfulness",
    "attnflow.flowgraph",
)


def names() -> Iterator[str]:
    """Every public name of the packages; functions with their arguments, classes with their public members."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield from _described(f"{package}.{name}", getattr(module, name))


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"{name}: class"
        for member in sorted(m for m in vars(value) if not m.startswith("_") or m in ("__init__", "_repr_html_")):
            yield f"{name}.{member}{_arguments(getattr(value, member))}"
    else:
        yield f"{name}{_arguments(value)}"


def _arguments(value: Any) -> str:
    if not (inspect.isroutine(value) and callable(value)):  # a cached property is the one without the other
        return ""
    return f"({', '.join(_argument(p) for p in inspect.signature(value).parameters.values())})"


def _argument(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty or callable(parameter.default) else f"={parameter.default!r}"
    return f"{star}{parameter.name}{default}"


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as they are typed."""
    from attnflow.commands.app import app

    yield from _command("attnflow", typer.main.get_command(app))


def _command(name: str, command: Any) -> Iterator[str]:
    for parameter in command.params:
        typed = "/".join([*parameter.opts, *parameter.secondary_opts])
        shown = typed if parameter.opts[0].startswith("-") else parameter.name.upper()
        yield f"{name} {shown}"
    for inner in sorted(getattr(command, "commands", {})):
        yield from _command(f"{name} {inner}", command.commands[inner])


def surface() -> str:
    """The whole list."""
    return "\n".join([*names(), *commands()]) + "\n"


if __name__ == "__main__":
    print(surface(), end="")
