"""What a rank prints again that takes a dead one's place: until it has caught up, nobody sees it.

hide                      as soon as the rank begins
forget                    when it comes to the place from which it goes on
show                      when it has caught up: what the dead one had not printed yet, and from now on everything
give_up                   when it fails before that: its log has all of it
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lockstep.handover.said import unsaid
from lockstep.standard_streams import flush_output


@dataclass(frozen=True)
class _Hidden:
    target: int
    """1 for standard output, 2 for standard error."""
    before: int
    """Where it went."""
    memory: int
    """Where it goes."""
    said: bytes


_hidden: list[_Hidden] = []


def hide(said: Sequence[bytes]) -> None:
    """Let standard output and error of this process go into memory.

    Args:
        said: the last that the dead rank printed to each.
    """
    for target, already in zip((1, 2), said, strict=True):
        before, memory = os.dup(target), os.memfd_create("lockstep-hidden-output")
        os.set_inheritable(before, False)
        _hidden.append(_Hidden(target, before, memory, already))
        os.dup2(memory, target)


def forget() -> None:
    """Drop what is hidden: the dead rank printed all of it, and this one has come to a later place."""
    if _hidden:
        flush_output()
    for stream in _hidden:
        os.ftruncate(stream.memory, 0)
        os.lseek(stream.memory, 0, os.SEEK_SET)


def show() -> None:
    """Print what is new, and go on in the open; does nothing where nothing is hidden."""
    for stream, printed in _taken_back():
        _write(stream.target, unsaid(stream.said, printed))


def give_up(log: int) -> None:
    """Write all of it to `log`, and later output too; does nothing where nothing is hidden."""
    for stream, printed in _taken_back():
        _write(log, printed)
        os.dup2(log, stream.target)


def _taken_back() -> Iterator[tuple[_Hidden, bytes]]:
    flush_output()
    while _hidden:
        stream = _hidden.pop(0)
        printed = os.pread(stream.memory, os.fstat(stream.memory).st_size, 0)
        os.dup2(stream.before, stream.target)
        os.close(stream.before)
        os.close(stream.memory)
        yield stream, printed


def _write(target: int, data: bytes) -> None:
    with suppress(OSError):  # a closed pipe, a full disk: as with a print that nobody reads
        while data:
            data = data[os.write(target, data) :]
