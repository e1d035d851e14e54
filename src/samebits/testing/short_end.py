"""Processes that are forked from this one end without taking apart what it had imported. Import it before anything else.

A process that ends copies all these pages from the one that it was forked from, and frees them: with torch 0.25 s of a
core, half of what a rank of a short test costs. Exit handlers, threads, buffered output, the script's own modules and
torch.distributed's end as always. For tests that do not look at the end itself.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from types import ModuleType

ENDED = ("__main__.", "builtins.", "sys.", "samebits.", "torch.distributed.")
"""Modules that are emptied when a process ends, and what is below them: there are objects whose end somebody awaits."""
_imported: dict[str, ModuleType] = {}


def _remember_imported() -> None:
    """In a forked process; what it forks in its turn has the same modules from here."""
    if not _imported:
        _imported.update((name, module) for name, module in sys.modules.items() if not f"{name}.".startswith(ENDED))


def _leave_imported() -> None:
    """The last exit handler: hide from the interpreter's end what it need not take apart, and from libc's, torch's C++."""
    if not _imported:
        return
    # [Note: why modules are never freed]
    # The interpreter takes objects apart in any order, and these must outlive all that refer to them.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_imported))
    for name, module in _imported.items():
        if sys.modules.get(name) is module:
            sys.modules[name] = None  # type: ignore[assignment]  # as the interpreter's end does
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    # [Note: why on_exit comes last]
    # The function registered last is called first, with the exit code: nothing of C++'s own end runs.
    libc.on_exit(libc["_exit"], None)


atexit.register(_leave_imported)
os.register_at_fork(after_in_child=_remember_imported)
