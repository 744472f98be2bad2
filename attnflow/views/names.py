"""How tokens are shown: white space is made visible, and control characters and direction marks are disarmed."""

from __future__ import annotations

import unicodedata

_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "·"}
# How byte-level tokenizers write a space and a line break, and SentencePiece's space.
_MARKERS = {"Ġ": "·", "Ċ": "⏎", "▁": "·"}
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
        elif unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            out.append(f"<{ord(char):04X}>")
        else:
            out.append(char)
    return "".join(out) or "∅"


def show_line(text: str) -> str:
    """A note with control and direction characters made visible, its spaces left as they are."""
    return " ".join(show(part) for part in text.split())
