"""Messages of the library in the words of the command line: ``--overwrite`` where Python says ``overwrite=True``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

# What a function calls otherwise than the command, by command; "" holds for all of them.
ALIASES = {
    "": {"on_error": "--skip-errors", "special_tokens": "--special", "dataset": "DATA", "methods": "--method"},
    "audit": {"target_column": "--label-column", "folder": "--work"},
}
# What a command takes otherwise than as an option of that name, or not at all.
CUT = {r"truncation=True  in this call, or  tokenizer\(.*max_length=(\d+).*?\)": r"--max-length \1"}
OTHERWISE = {
    "explain": {
        r"blank='(mask|unk|pad|delete|mean-embedding)'": r"--method blankout-\1",
        r"(?<![(\w])steps=(\d+)": r"steps=\1  of attnflow.gradient in Python",
        r", a word of the text or None\.": " or a word of the text.",
    },
}
_VALUE = r"""(?:'[^']*'|"[^"]*"|\[[^\]]*\]|\([^)]*\)|[^\s,;:)\]]*[^\s,;:.)\]])"""


def command_of(app: typer.Typer, arguments: Sequence[str]) -> Any:
    """The command that was typed, as click knows it; None where there is none."""
    command: Any = typer.main.get_command(app)
    for part in arguments:
        inner = getattr(command, "commands", {})
        if part in inner:
            command = inner[part]
        elif inner and not part.startswith("-"):
            return None
    return None if hasattr(command, "commands") else command


def options_of(command: Any) -> dict[str, tuple[str, bool]]:
    """Python's name → (the option as it is typed, whether it stands alone)."""
    known: dict[str, tuple[str, bool]] = {}
    typed: dict[str, bool] = {}
    for parameter in command.params:
        flag = bool(getattr(parameter, "is_flag", False))
        option = max(parameter.opts, key=len)
        name = option if option.startswith("-") else parameter.name.upper()
        known[parameter.name] = name, flag
        typed[name] = flag
    for aliases in (ALIASES[""], ALIASES.get(command.name, {})):
        known |= {name: (option, typed[option]) for name, option in aliases.items() if option in typed}
    return known


def as_options(message: str, command: Any) -> str:
    """The message with the options of ``command`` in place of Python's arguments.

    >>> from attnflow.commands.app import app
    >>> explain = command_of(app, ["explain"])
    >>> as_options("x.html exists already and overwrite=False. Pass overwrite=True to replace it.", explain)
    'x.html exists already and --overwrite is not given. Pass --overwrite to replace it.'
    >>> as_options("residual='x' is not known. Use position=-1.", explain)
    '--residual x is not known. Use --position -1.'
    >>> as_options("Go on with it by resume=True (--resume).", command_of(app, ["compare"]))
    'Go on with it by --resume.'
    """
    if command is None:
        return message
    known = options_of(command)

    def typed(match: re.Match[str]) -> str:
        option, flag = known[match[1]]
        value = match[2].strip("'\"")
        if flag:
            return f"{option} is not given" if value == "False" else option
        # A list is typed with commas.
        plain = re.sub(r"['\"\[\]() ]", "", value) if value[:1] in "[(" else value
        return f"{option} {plain}" if not re.search(r"\s", plain) else f'{option} "{plain}"'

    ways = OTHERWISE.get(command.name, {}) | (CUT if "max_length" in known else {})
    for way, option in ways.items():
        message = re.sub(way, option, message)
    said = re.sub(rf"(?<![\w.\-])({'|'.join(known)})=({_VALUE})", typed, message)
    return re.sub(r"(--[\w-]+) \(\1\)", r"\1", said)  # where Python's message names the option too


def worded(message: str, command: str) -> str:
    """A message of the library as :func:`as_options` says it, by the name of the command."""
    from attnflow.commands.app import app

    return as_options(message, command_of(app, [command]))


def suggested(name: str, known: Sequence[str] | Mapping[str, Any], limit: int = 5) -> str:
    """ " Did you mean …?" with the names that are near, or nothing.

    >>> suggested("berrt", ["bert", "albert", "gpt2"])
    ' Did you mean bert or albert?'
    """
    import difflib

    lower = name.lower()
    near = difflib.get_close_matches(lower, list(known), n=limit, cutoff=0.6)
    near += [one for one in known if lower and lower in one and one not in near]
    shown = near[:limit]
    if not shown:
        return ""
    first = ", ".join(shown[:-1])
    return f" Did you mean {f'{first} or ' if first else ''}{shown[-1]}?"
