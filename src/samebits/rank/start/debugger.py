"""`breakpoint()` in rank 0 of a launched script.

The other ranks continue to their next exchange with rank 0 and wait there. Only the first `breakpoint()` imports this:
pdb costs 30 ms.
"""

from __future__ import annotations

import os
import pdb  # noqa: T100 - this is the debugger
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from samebits.protocol.journal.ring import JournalReader, JournalWriter, Phase
from samebits.protocol.script_files import is_library
from samebits.rank.caller import is_passed_over

OURS = f"{Path(__file__).parents[2]}/"
"""How the names of this package's files begin."""


def stop_at(frame: FrameType, journal: Path, *args: Any, **kwargs: Any) -> Any:
    """Stop the script at `frame`. PYTHONBREAKPOINT keeps its meaning.

    Args:
        frame: the caller of `breakpoint()`.
        journal: the rank's ring.
        args, kwargs: what `breakpoint()` was given, for the debugger that PYTHONBREAKPOINT names.
    """
    if os.environ.get("PYTHONBREAKPOINT", ""):
        with _Pause(journal):
            return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100
    return _RankDebugger(journal).set_trace(frame)


def stop_in_script(frame: FrameType, journal: Path) -> None:
    """Stop at the next line of the script that runs below `frame`, or behind it; of a library where no line of the script is there."""
    _RankDebugger(journal, only_script=not is_library(frame.f_code.co_filename)).set_trace(frame)


class _Pause:
    """Sets the journal to PAUSED, and back afterwards. Texts are left out: the rank's own writer numbers them."""

    def __init__(self, journal: Path) -> None:
        self._writer = JournalWriter(journal)
        self._before = JournalReader(journal).last()

    def __enter__(self) -> None:
        # While the journal says PAUSED, the launcher hides its progress line, gives Ctrl-C to rank 0 alone, and calls no
        # rank stalled.
        self._write(Phase.PAUSED)

    def __exit__(self, *_exception: object) -> None:
        self._write(self._before.phase if self._before else Phase.START)

    def _write(self, phase: Phase) -> None:
        step, epoch = (self._before.step, self._before.epoch) if self._before else (0, 0)
        self._writer.write(phase, step=step, epoch=epoch)


class _RankDebugger(pdb.Pdb):
    def __init__(self, journal: Path, *, only_script: bool = False) -> None:
        # pdb's own handler would turn Ctrl-C after `continue` into another prompt.
        super().__init__(nosigint=True)
        self._journal, self._only_script = journal, only_script

    def stop_here(self, frame: FrameType) -> bool:
        """Pass over our own lines and torch's: a step leads from a line of the script to the next one."""
        file = frame.f_code.co_filename
        if self._only_script and is_library(file):
            return False
        return not (file.startswith(OURS) or is_passed_over(file)) and super().stop_here(frame)

    def interaction(self, frame: FrameType | None, *rest: Any) -> None:
        self._only_script = False
        with _Pause(self._journal):
            super().interaction(frame, *rest)
