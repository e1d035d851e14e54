"""The options with which this interpreter was started, for further interpreters like it."""

from __future__ import annotations

import importlib
import sys


def interpreter_options() -> list[str]:
    """This interpreter's own options (-O, -W, -X, ...), without -P, which our commands add themselves."""
    flags = sys.flags
    if not (sys.warnoptions or sys._xoptions or flags.optimize or flags.isolated or flags.verbose):  # noqa: SLF001
        return []
    # The standard library's own way of telling a child; multiprocessing relies on it too.
    options: list[str] = importlib.import_module("subprocess")._args_from_interpreter_flags()  # noqa: SLF001
    return [option for option in options if option != "-P"]
