"""What a command tells a nursery that waits about itself. Imports next to nothing: every `lockstep run` asks."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_OWN_FLAGS = ("safe_path", "hash_randomization")
"""The nursery's own: it imports nothing from the working directory, and its texts have the hashes that ranks need."""


def must_be_same() -> dict[str, Any]:
    """What the nursery and this process must have in common, as far as Python knows it."""
    names = (name for name in dir(sys.flags) if not name.startswith(("_", "n_", *_OWN_FLAGS)))
    flags = [f"{name}={value}" for name in names if isinstance(value := getattr(sys.flags, name), int)]
    package = sys.modules["lockstep"].__file__
    return {
        "interpreter": [sys.executable, sys.version, sys.prefix],
        "options": [flags, list(sys.warnoptions), str(sorted(sys._xoptions.items()))],  # noqa: SLF001
        "import path": sys.path if sys.flags.safe_path else sys.path[1:],
        "lockstep": package,
        "host": list(os.uname()),
    }


def order(targets: Sequence[int]) -> dict[str, Any]:
    """The fields of an `Order`."""
    with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123
        command = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    return {
        "same": must_be_same(),
        "variables": dict(os.environ),
        "argv": sys.argv,
        "path": sys.path,
        "command": command,
        "targets": list(targets),
    }
