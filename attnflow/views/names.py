"""How tokens are shown: white space is made visible, and control characters and direction marks are disarmed."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attnflow.attention import NEXT
from attnflow.tokens import Tokens

_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "·"}
# How byte-level tokenizers write a space and a line break, and SentencePiece's space.
_MARKERS = {"Ġ": "·", "Ċ": "⏎", "▁": "·"}
# Categories of control and format characters, halves of characters, and separators of lines and paragraphs.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# Joiners hold emoji and Persian words together; they turn nothing around.
_JOINERS = "\u200c\u200d"


def show(token: str) -> str:
    """A token as people can read it.

    >>> show("Ġthe"), show("a\\nb"), show("\\u202eabc")
    ('·the', 'a⏎b', '<202E>abc')
    """
    if token[:1] in _MARKERS:
        token = _MARKERS[token[0]] + token[1:]
    out = []
    for at, char in enumerate(token):
        if char in _SHOWN:
            out.append(_SHOWN[char])
        elif char in _JOINERS and 0 < at < len(token) - 1 and not (token[at - 1] + token[at + 1]).isascii():
            out.append(char)
        elif unicodedata.category(char) in _HIDDEN:
            out.append(f"<{ord(char):04X}>")
        else:
            out.append(char)
    return "".join(out) or "∅"


def show_line(text: str) -> str:
    """A note with control and direction characters made visible, its spaces left as they are."""
    return " ".join(show(part) for part in text.split())


def show_ahead(predicted: Sequence[str]) -> list[str]:
    """What outputs predict, for a reader; ``NEXT`` is no token but words, which keep their spaces.

    >>> show_ahead(["Ġkey", "next token"])
    ['·key', 'next token']
    """
    return [name if name == NEXT else show(name) for name in predicted]


def drawn_on(scores: Mapping[str, tuple[Tokens, Any]]) -> str:
    """Which input each method ranks first, special tokens aside; methods that agree stand together.

    A method that scores all inputs alike names none of them.

    >>> tokens = Tokens(["[CLS]", "key", "is"], special=[True, False, False])
    >>> drawn_on({"raw": (tokens, [0.9, 0.1, 0.0]), "flow": (tokens, [0.1, 0.5, 0.2]), "mine": (tokens, [0, 1, 2])})
    '“key” (by raw, flow), “is” (by mine)'
    """
    first: dict[str, list[str]] = {}
    votes: dict[str, float] = {}
    for method, (tokens, given) in scores.items():
        plain = [j for j, special in enumerate(tokens.special) if not special and not np.isnan(given[j])]
        best = max(plain, key=lambda j: given[j], default=0)  # of equal ones the first in the text
        tied = sum(given[j] == given[best] for j in plain)
        if tied == 0 or 1 < tied == len(plain):
            continue
        name = _quoted(tokens[best])
        first.setdefault(name, []).append(f"{method} [tied with {tied - 1} more]" if tied > 1 else method)
        # A method that ranks several inputs alike counts less.
        votes[name] = votes.get(name, 0) + (0.5 if tied > 1 else 1)
    agreed = sorted(first.items(), key=lambda item: -votes[item[0]])
    return ", ".join(f"{name} (by {', '.join(methods)})" for name, methods in agreed)


def _quoted(token: str) -> str:
    """A token within a sentence, in quotes: "to" and "the" would read as words of that sentence."""
    return f"“{show_line(token).lstrip('·') or show(token)}”"


def show_text(text: str) -> str:
    """A passage as it stands, its spaces and lines kept; control and direction characters are made visible.

    >>> show_text("a b\\nc\\u202ed") == "a b\\nc<202E>d"
    True
    """
    out = []
    for char in text:
        hidden = unicodedata.category(char) in _HIDDEN
        out.append(f"<{ord(char):04X}>" if hidden and char not in "\n\t" and char not in _JOINERS else char)
    return "".join(out)
