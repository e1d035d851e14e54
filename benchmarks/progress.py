"""The line of a terminal that says what is being measured, and for how long already."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_S = 1.0
MOST_CHARACTERS = 78


def show(text: str) -> None:
    """Put this in the place of what the line said before; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:MOST_CHARACTERS]}", end="", file=sys.stderr, flush=True)


@contextmanager
def shown(text: str) -> Iterator[None]:
    """Say `text` and the seconds that have passed for as long as the block takes; then the line is empty."""
    ended, began = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(EVERY_S):
            show(f"{text} ({time.monotonic() - began:.0f} s)")

    show(text)
    ticking = threading.Thread(target=tick, daemon=True)
    if sys.stderr.isatty():
        ticking.start()
    try:
        yield
    finally:
        ended.set()
        if ticking.ident is not None:
            ticking.join()
        show("")
