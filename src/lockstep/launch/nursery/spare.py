"""A process that has imported everything and becomes the nursery of this launcher: forked beside it, where one waited.

A launcher that was started as a program has none; its nursery is a new interpreter.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from lockstep.machine import packets

READ_ONCE = ("OMP_NUM_THREADS", "PYTHONHASHSEED", "OPENBLAS_NUM_THREADS")
"""What a nursery is started with because libraries and Python read it while they load."""


class Spare:
    """The process, a child of this one."""

    def __init__(self, pid: int, end: socket.socket, modules: Collection[str], variables: Mapping[str, str]) -> None:
        """Know what it has.

        Args:
            pid: its number.
            end: where it waits for what it is to become.
            modules: what it has imported.
            variables: those of `READ_ONCE` that were set then.
        """
        self._pid, self._end = pid, end
        self._modules, self._variables = set(modules), dict(variables)

    def become(self, words: Sequence[str], variables: Mapping[str, str], modules: Sequence[str], channel: int) -> int:
        """Let it be the nursery; its process, or 0 when it cannot be this one.

        Args:
            words: the nursery's command line.
            variables: its environment.
            modules: what it would import; none when every rank is a new interpreter.
            channel: its end of the channel.
        """
        fits = modules and self._modules.issuperset(modules)
        if fits and all(variables.get(name) == self._variables.get(name) for name in READ_ONCE):
            with suppress(OSError):  # it was killed
                packets.send(self._end, "be", list(words), dict(variables), descriptors=[channel])
                return self._pid
        return 0

    def close(self) -> None:
        """Let it end if it has become nothing."""
        self._end.close()


_SPARES: list[Spare] = []


def keep_spare(spare: Spare) -> None:
    """Have it for the next nursery of this process."""
    _SPARES.append(spare)


def take_spare() -> Spare | None:
    """The one that this process has, once."""
    return _SPARES.pop() if _SPARES else None
