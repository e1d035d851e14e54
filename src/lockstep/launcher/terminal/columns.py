"""How much of a terminal's line a text takes, and how to cut or fold it. Pure; the text must be visible already."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r" *[^ ]+")


def columns(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def cut(text: str, most: int) -> str:
    """As much of the beginning as fits in `most` columns."""
    if text.isascii():
        return text[:most]
    left = most
    for number, letter in enumerate(text):
        left -= _columns(letter)
        if left < 0:
            return text[:number]
    return text


def folded(text: str, most: int) -> list[str]:
    """The text in rows of at most `most` columns, broken only at spaces: a longer path stays whole.

    Invariant: the rows have the same words in the same order.
    """
    rows = [""]
    for word in _WORD.findall(text):
        if rows[-1] and columns(rows[-1]) + columns(word) > most:
            rows.append(word.lstrip(" "))
        else:
            rows[-1] += word
    return rows


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
