"""How a run failed, and which finding that is."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from lockstep.findings.catalogue import CRASH, FINDINGS, FULL_DISK, KILLED_FOR_MEMORY, WRONG_INTERFACE, Finding
from lockstep.journal.failure import Failure
from lockstep.machine.memory_pressure import LACK, Shortage

CRASHES = frozenset({signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV})
"""Signals that the kernel, or the process itself, sends for what its own code did."""
_FULL = re.compile(r"No space left on device|Disk quota exceeded|Errno (28|122)\b|PytorchStreamWriter failed writing")
_INTERFACE = re.compile(r"Unable to find (address|interface) for|Bootstrap : no socket interface found")


@dataclass(frozen=True)
class End:
    """How the rank ended that is to blame."""

    failure: Failure | None
    signal: int
    """0 when no signal ended it."""
    shortage: Shortage | None = None
    """Whose memory was short when a rank was killed; None if nobody's, or nobody knows."""


def is_full(text: str) -> bool:
    """Whether this says that something could not be written for lack of space."""
    return bool(_FULL.search(text))


def finding_of(end: End) -> Finding | None:
    """The finding; None for what a traceback or a mistake's sentence says itself."""
    if end.shortage is not None:
        return KILLED_FOR_MEMORY
    if end.failure is None:
        return CRASH if end.signal in CRASHES else None
    return FINDINGS.get(end.failure.finding) or _by_its_words(end.failure.error)


def _by_its_words(error: str) -> Finding | None:
    """The finding of an exception that is not one of ours."""
    if LACK in error:  # of a loader worker
        return KILLED_FOR_MEMORY
    if is_full(error):
        return FULL_DISK
    return WRONG_INTERFACE if _INTERFACE.search(error) else None
