"""What a rank does last of all, after the exit handlers of its script."""

from __future__ import annotations

from collections.abc import Callable

last: list[Callable[[], None]] = []
left_at: list[str] = []
"""The line of the `sys.exit` that ended the script, `train.py:31`; nothing where it came to its end."""


def do_last() -> None:
    """Do it. Registered with `atexit` before the script begins, so that it comes after all that the script registers."""
    while last:
        last.pop(0)()
