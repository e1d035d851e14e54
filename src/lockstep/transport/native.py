"""Whether the compiled part of the package, `lockstep._native`, can be used here, and why not.

An installation without a C++ compiler, or on another system than Linux, has no compiled part: then the ranks of one node
talk over Gloo. Whoever wants the compiled part asks here first and imports `lockstep._native` after that. Nothing is
compiled or loaded before somebody asks.
"""

import importlib
import sys

_NAME = "lockstep._native"
_NOT_BUILT = (
    "lockstep was installed without its compiled part, because no C++20 compiler was found or it failed; "
    "install g++ 11 or newer and run `pip install --force-reinstall --no-deps -v lockstep-train` to see what happens"
)


def available() -> bool:
    """Whether `import lockstep._native` works in this process. Loads it, so that the answer holds."""
    return why_not() == ""


def why_not() -> str:
    """One sentence without a full stop about what is missing, with the way out; empty where nothing is."""
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        return reason(error, sys.platform)
    return ""


def reason(error: ImportError, platform: str) -> str:
    """Say what a failed import means. Never empty."""
    if not platform.startswith("linux"):
        return f"the compiled part of lockstep needs Linux, and this is {platform}"
    if isinstance(error, ModuleNotFoundError) and error.name == _NAME:
        return _NOT_BUILT
    return f"the compiled part of lockstep does not load: {error}"
