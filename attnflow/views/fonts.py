"""Letters of other scripts in plots: matplotlib's own font has no Chinese, Japanese or Korean, and few emoji."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

from attnflow.errors import AttnFlowWarning
from attnflow.formats import texts_of

# Looked for in this order; those that are not installed are passed over. Emoji in colour cannot be drawn by matplotlib.
WIDE = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Noto Sans JP", "Noto Sans SC", "Source Han Sans",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Hiragino Sans", "PingFang SC",
    "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "SimHei", "Noto Emoji", "Symbola",
    "Segoe UI Symbol", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Thai", "Noto Sans Hebrew", "FreeSans",
    "Unifont",
)  # fmt: skip
HINT = (
    "Install one that has it, for instance  apt-get install fonts-noto-cjk fonts-symbola  (or Noto Sans CJK from "
    "fonts.google.com), and draw again; the page has no such limit:  relevance.to_html('page.html')"
)


@cache
def _letters(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(path).get_charmap())


@cache
def _installed() -> dict[str, str]:
    from matplotlib import font_manager

    return {font.name: font.fname for font in font_manager.fontManager.ttflist}


def families(texts: Iterable[str]) -> list[str]:
    """The font families with which these texts can be drawn: matplotlib's own, then installed ones for the rest.

    Letters that no installed font has are named in a warning, with what to do; they are drawn as boxes.

    >>> families(["key"]), families([])
    (['DejaVu Sans'], ['DejaVu Sans'])
    """
    from matplotlib import font_manager

    plain = "DejaVu Sans"
    missing = {ord(c) for text in texts for c in text} - _letters(font_manager.findfont(plain))
    found = [plain]
    for name in WIDE:
        path = _installed().get(name)
        if missing and path is not None and (has := missing & _letters(path)):
            missing -= has
            found.append(name)
    if missing:
        shown = " ".join(chr(c) for c in sorted(missing)[:8])
        warnings.warn(
            f"No installed font has {len(missing)} of the characters of this plot ({shown}): they are drawn as boxes. "
            f"{HINT}",
            AttnFlowWarning,
            stacklevel=3,
        )
    return found


def in_fonts(ax: Any) -> Any:
    """The axes with fonts that have the letters of all its texts."""
    texts = texts_of(ax)
    names = families(text.get_text() for text in texts)
    if len(names) > 1:
        for text in texts:
            text.set_fontfamily(names)
    return ax
