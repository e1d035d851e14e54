"""Whether the compiled part of the package, `lockstep._native`, can be used here, and why not.

Without a C++ compiler, or on a system other than Linux, an installation has no compiled part: then the ranks of one
node talk over Gloo. Ask `why_not` first, then use `compiled`.
"""

import sys

from lockstep.errors import WorldError

__all__ = ["available", "compiled", "reason", "why_not"]

_NAME = "lockstep._native"
_NOT_BUILT = (
    "lockstep was installed without its compiled part, because no C++20 compiler was found or it failed; "
    "install g++ 11 or newer, then lockstep again with `pip install --force-reinstall --no-deps -v lockstep-train` (in a "
    "clone: `.` instead of the name), which says why"
)


class _Missing:
    """A stand-in for a missing compiled part: its first use raises."""

    class GroupError(RuntimeError):
        """Never raised."""

    def __getattr__(self, name: str) -> object:
        raise WorldError(f"There is no {name} here: {why_not()}.")


_problem: ImportError | None = None
try:
    import lockstep._native as compiled
except ImportError as error:
    _problem = error
    compiled = _Missing()  # type: ignore[assignment]


def available() -> bool:
    """Whether `compiled` is there."""
    return _problem is None


def why_not() -> str:
    """One sentence without a full stop about what is missing, with the fix; empty if nothing is."""
    return "" if _problem is None else reason(_problem, sys.platform)


def reason(error: ImportError, platform: str) -> str:
    """Say what a failed import means. Never empty."""
    if not platform.startswith("linux"):
        return f"the compiled part of lockstep needs Linux, and this is {platform}"
    if isinstance(error, ModuleNotFoundError) and error.name == _NAME:
        return _NOT_BUILT
    return f"the compiled part of lockstep does not load: {error}"
