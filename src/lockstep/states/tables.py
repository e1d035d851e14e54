"""What tables of states and the lines around them share: words for sizes and counts, styles."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from lockstep.visible import visible

GOOD, BAD, ASIDE = "green", "bold red", "yellow"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a line or a sentence, broken by the terminal alone."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def size_text(size: int | None) -> str:
    """`840 B`, `1.6 KiB`, `12.0 GiB`; a dash for what is unknown."""
    if size is None:
        return "–"
    amount, unit = float(size), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def count(number: int, noun: str) -> str:
    """`1 tensor`, `1,200 tensors`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
