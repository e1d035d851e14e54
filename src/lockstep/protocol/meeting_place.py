"""What a rank inherits from its launcher to meet the others: a memory, and a port that nothing listens on yet.

Descriptors are passed by number and identity. A process that the rank starts has the rank's environment, but not its
descriptors, and the number may be some other file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class InheritedFile:
    """An open file, as one process names it to itself or to a child."""

    number: int
    """The descriptor."""
    identity: str
    """The identity of its file, on this machine."""

    @classmethod
    def at(cls, descriptor: int) -> InheritedFile:
        """Make one of the file that is open at `descriptor` now."""
        return cls(descriptor, _identity(descriptor))

    def is_open(self) -> bool:
        """Whether this process has it under that number."""
        try:
            return _identity(self.number) == self.identity
        except OSError:
            return False


@dataclass(frozen=True)
class MeetingPlace:
    """What the ranks of a run on one node meet through."""

    table: InheritedFile
    """A shared memory that was full of zeros when the run began (`native/src/table.hpp`)."""
    port: InheritedFile
    """A socket bound to MASTER_PORT on 127.0.0.1. Any rank may make it listen, as often as it likes."""
    news: InheritedFile
    """The pipe on which ranks tell the launcher what has happened (`lockstep.protocol.journal.news`)."""


def _identity(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"
