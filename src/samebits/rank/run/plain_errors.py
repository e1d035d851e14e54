"""How a script that runs without `samebits run` ends by an exception: what to do, behind its traceback or in its place."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from samebits.errors import UsageError, mistake_text
from samebits.machine.visible import visible, write_error
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.journal.failure import user_line
from samebits.protocol.journal.torch_words import way_out

_is_there = False


def help_with_errors(environment: RankEnvironment) -> None:
    """Let this process's last traceback be followed by what to do, where that is known; a misuse needs no traceback.

    Not under `samebits run`, which has it in its report. Torch's own hook may come around it.
    """
    global _is_there
    if _is_there or environment.settings is not None:
        return
    _is_there, previous = True, sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if isinstance(error, UsageError) and script and (place := user_line(error, Path(script))):
            write_error(mistake_text(f"{place}: {error.problem}", error.fix))
            raise SystemExit(2)
        previous(kind, error, trace)
        if words := way_out(error):
            write_error(f"help: {visible(words)}")

    sys.excepthook = hook
