"""What a rank says again that takes a dead one's place: until it has caught up, it goes to its log only."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

_shown: list[tuple[int, int]] = []
"""Standard output and error, and where they went before."""


def hide(log: int) -> None:
    """Let standard output and error of this process go to `log`."""
    for target in (1, 2):
        before = os.dup(target)
        os.set_inheritable(before, False)
        _shown.append((target, before))
        os.dup2(log, target)


def show() -> None:
    """Let them go where they went before; does nothing where they were not hidden."""
    while _shown:
        target, before = _shown.pop()
        with suppress(OSError, ValueError):
            (sys.stdout if target == 1 else sys.stderr).flush()
        os.dup2(before, target)
        os.close(before)
