"""Try something of ours with this torch, and say in a few words what goes wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from lockstep.errors import WorldError

OF_THE_MACHINE = (WorldError, OSError, MemoryError)
"""A lack of memory or descriptors is not torch's fault; the real use will report it later."""


def trouble_of(trial: Callable[[], None]) -> str:
    """Call it; return type and first line of what it raises, without a full stop, or "". Warnings are swallowed."""
    hook = sys.excepthook
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial()
    except OF_THE_MACHINE:
        return ""
    except Exception as error:  # noqa: BLE001 - torch may raise anything
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip('.')}"
    finally:
        sys.excepthook = hook  # torch wraps it for each default group, and leaves it wrapped
    return ""
