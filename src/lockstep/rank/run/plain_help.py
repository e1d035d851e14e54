"""What the failure block says under `lockstep run`, where the script was started in another way: `help:` behind the traceback."""

from __future__ import annotations

import sys
from types import TracebackType

from lockstep.machine.standard_streams import write_error
from lockstep.machine.visible import visible
from lockstep.protocol.journal.torch_words import way_out

_is_there = False


def help_with_errors() -> None:
    """Let this process's last traceback be followed by what to do, where that is known. Torch's own hook may come around it."""
    global _is_there
    if _is_there:
        return
    _is_there, previous = True, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        if words := way_out(error):
            write_error(f"help: {visible(words)}")

    sys.excepthook = hook
