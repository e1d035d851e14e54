"""What a rank inherits from its launcher: which start of its ranks this is, which node it is on, and where it meets the others."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class InheritedFile:
    """An open file, as one process names it to itself or to a child."""

    number: int
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
    """The pipe on which ranks report to the launcher what has happened (`samebits.protocol.journal.signals`)."""


def _identity(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


@dataclass(frozen=True)
class Seat:
    """This node among the nodes of one round."""

    round: int
    """Which start of all ranks on all nodes this is, counted from 0."""
    node: int
    """This node's place among them, which ranks get as GROUP_RANK."""
    sizes: tuple[int, ...]
    interface: str = ""
    """The network interface for exchanges between nodes; empty: the library chooses."""

    @property
    def first_rank(self) -> int:
        return [0, *accumulate(self.sizes)][self.node]

    @property
    def world_size(self) -> int:
        return sum(self.sizes)

    @property
    def num_nodes(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Restart:
    """One start of all ranks, in the words of torchrun."""

    number: int = 0
    """How often all ranks were started again before; 0 for the first start."""
    most: int = 0
    """How often that may happen."""
    metrics_bytes: int = 0
    """How much of metrics.jsonl the ranks before wrote. The rank that resumes decides what of it still counts."""


last: list[Callable[[], None]] = []
left_at: list[str] = []
"""The line of the `sys.exit` that ended the script, `train.py:31`; nothing where it came to its end."""


def do_last() -> None:
    """Do it. Registered with `atexit` before the script begins, so that it comes after all that the script registers."""
    while last:
        last.pop(0)()
