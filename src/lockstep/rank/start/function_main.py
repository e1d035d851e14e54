"""Run a function that `lockstep.spawn` has packed: in a `__main__` that knows the caller's names.

Classes and functions of the caller's `__main__` are put into the rank's, so that pickle, `torch.save` and exchanges of
objects between ranks find them by name.
"""

from __future__ import annotations

import linecache
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep.protocol.unpacking import Header
from lockstep.rank.start.script_main import Program


def function_program(parcel: str, rank: int, folder: str) -> Program:
    """Set up the import path, the working directory and `__main__`; the result calls `function(rank, *args)`.

    Args:
        parcel: where the packed call can be read.
        rank: the function's first argument.
        folder: the caller's working directory.
    """
    os.chdir(folder)
    with Path(parcel).open("rb") as file:
        header: Header = pickle.load(file)  # noqa: S301 - written by the caller, who is this person
    sys.path[:] = header.path
    sys.argv[:] = header.argv
    for name, lines in header.sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __package__=None, __file__=header.main_file)
    sys.modules["__main__"] = main

    def run() -> None:
        function, args = pickle.loads(header.call)  # noqa: S301
        _know_names(main, function)
        function(rank, *args)

    return run


def _know_names(main: ModuleType, function: Any) -> None:
    """Put the names of the caller's `__main__` that were sent along into `main`."""
    if getattr(function, "__module__", None) == "__main__":
        for name, value in getattr(function, "__globals__", {}).items():
            main.__dict__.setdefault(name, value)
