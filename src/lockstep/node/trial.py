"""Trying out something of ours with this torch, and what torch makes of it in a few words."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from lockstep.errors import WorldError

OF_THE_MACHINE = (WorldError, OSError, MemoryError)
"""Memory and descriptors are no trouble of torch; what is made later in earnest will say them."""


def trouble_of(trial: Callable[[], None]) -> str:
    """Call it; kind and first line of what it raises, without a full stop, or nothing. Warnings are swallowed."""
    hook = sys.excepthook
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial()
    except OF_THE_MACHINE:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever torch makes of it
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    finally:
        sys.excepthook = hook  # torch wraps it for each default group, and leaves it so
    return ""
