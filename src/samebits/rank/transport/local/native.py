"""Whether the compiled part of the package, `samebits._native`, can be used here, and why not.

Without a C++ compiler, or on a system other than Linux, an installation has no compiled part: then the ranks of one
node talk over Gloo. Ask `why_not` first, then use `compiled`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from samebits.errors import EnvironmentFailure
from samebits.protocol.installation import to_install

__all__ = ["available", "compiled", "reason", "why_not"]

_NAME = "samebits._native"
_NOT_BUILT = (
    "samebits was installed without its compiled part, because no C++20 compiler was found or it failed; "
    f"install g++ 11 or newer, then samebits again: {to_install(options='--force-reinstall --no-deps -v')}, which says why"
)


class _Missing:
    """A stand-in for a missing compiled part: its first use raises."""

    class GroupError(RuntimeError):
        """Never raised."""

    def __getattr__(self, name: str) -> object:
        raise EnvironmentFailure(f"There is no {name} here: {why_not()}.")


_problem: ImportError | None = None
try:
    import samebits._native as compiled
except ImportError as error:
    _problem = error
    compiled = _Missing()  # type: ignore[assignment]


def available() -> bool:
    return _problem is None


def why_not() -> str:
    """One sentence without a full stop about what is missing, with the fix; empty if nothing is."""
    return "" if _problem is None else reason(_problem, sys.platform)


def reason(error: ImportError, platform: str) -> str:
    """Say what a failed import means. Never empty."""
    if not platform.startswith("linux"):
        return f"the compiled part of samebits needs Linux, and this is {platform}"
    if isinstance(error, ModuleNotFoundError) and error.name == _NAME:
        return _NOT_BUILT
    return f"the compiled part of samebits does not load: {error}"


LOST, DISAGREEMENT, ABORTED, NO_MEMORY = 1, 2, 4, 5

SAME_CALLS = "Make the same calls in the same order on every rank."
"""The fix of a disagreement."""

SHUT_DOWN = "The group was shut down on this rank."
"""What it says where nothing but this rank's own leaving has failed."""


OF_THE_MACHINE = (EnvironmentFailure, OSError, MemoryError)
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
        # torch wraps it for each default group, and leaves it wrapped.
        sys.excepthook = hook
    return ""
