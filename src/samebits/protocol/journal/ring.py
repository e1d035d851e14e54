"""The mapped ring: one file per rank, one writer, any number of readers, no locks.

The page cache keeps what a killed process wrote, so the launcher reads the last record of a dead rank. Writing a
record costs well under a microsecond besides the clock (`tests/unit/protocol/journal/test_journal.py` prints it); nothing is
flushed to the disk on purpose.

Layout: header (8 KiB: magic, capacity, rank, pid, asking, reached, gauges, losses, note; waiting), 255 texts of 128
bytes, records of 64 bytes.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from samebits.machine.regular_file import open_regular
from samebits.machine.visible import visible
from samebits.protocol.journal.gauges import FORMAT as GAUGES
from samebits.protocol.journal.gauges import SINCE, WAITING, Gauges, Waiting, pack, unpack, unpack_waiting

# [Note: why a record has its number at both ends]
# A reader may come while a record is written, and the writer may be killed in the middle of one. Only a record whose ends agree counts.
FORMAT = struct.Struct("<QQqIHHHxxI16xQ")
"""sequence, time_ns, step, epoch, phase, operation, file, line, sequence again."""


class Phase(IntEnum):
    """What a rank does with its time."""

    START = 0
    """Before `samebits.init`: imports."""
    SCRIPT = 1
    """In the script, outside everything below."""
    DATA = 2
    """Waiting for samples."""
    COMPUTE = 3
    """Inside a lane: forward and backward."""
    EXCHANGE = 4
    """Exchanging with other ranks; the operation says what."""
    UPDATE = 5
    """Between a step's lanes and its end: the optimizer."""
    EVALUATE = 6
    """Inside plain iteration of a prepared loader."""
    PAUSED = 7
    """In `breakpoint()`."""


BETWEEN_STEPS, IN_STEP, FETCH = "between steps", "step", "fetch"
"""Operations around a step: of `Phase.SCRIPT` behind its body, and in its body before the lanes; of `Phase.DATA` in it."""
RESULT = "result"
"""Where the note has what rank 0 leaves at the end, besides `result.json`."""
ENDING = "ending"
"""The operation of `Phase.SCRIPT` from the script's end on: ranks compare their weights, and rank 0 writes the result."""


@dataclass(frozen=True)
class Record:
    """What a rank noted at one moment."""

    sequence: int
    """1 for the first record, without gaps; 0 for a ring without records."""
    time_ns: int
    """time.monotonic_ns(): the same clock for all processes of a node."""
    step: int
    """The current step, counted from 1; 0 before the first."""
    epoch: int
    phase: Phase
    operation: str
    file: str
    line: int

    @property
    def is_in_step(self) -> bool:
        """Whether the step has begun and not ended."""
        return is_in_step(self.phase, self.operation)


def is_in_step(phase: Phase, operation: str) -> bool:
    """Whether a step is under way in this phase."""
    return phase in {Phase.COMPUTE, Phase.EXCHANGE, Phase.UPDATE} or operation in {IN_STEP, FETCH}


MAGIC = b"lkstpJ02"
HEADER = struct.Struct("<8sIIIIQ")
"""magic, capacity, rank, pid, number of texts, last sequence."""
PID_OFFSET, TEXTS_OFFSET, LAST_OFFSET = 16, 20, 24
ASKING_OFFSET = 64
"""Three numbers (`samebits.protocol.journal.signals`)."""
LOST_NODE_OFFSET = 104
"""One number (`samebits.protocol.journal.signals`)."""
REACHED_OFFSET = 112
"""Two numbers (`samebits.protocol.journal.signals`)."""
GAUGES_OFFSET, NOTE_OFFSET, NOTE_BYTES = 256, 1024, 3000
LOST_OFFSET, LOST_BYTES = 400, 600
WAITING_OFFSET = 4096
"""What the rank waits for (`samebits.protocol.journal.gauges`)."""
TEXT_TABLE, TEXT_BYTES, MAX_TEXTS = 8192, 128, 255
RECORDS = TEXT_TABLE + (MAX_TEXTS + 1) * TEXT_BYTES
CAPACITY = 1024
_PHASES = frozenset(Phase)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def make_ring(path: Path, rank: int, capacity: int = CAPACITY) -> None:
    """Make an empty ring of mode 0600. The launcher does so before the rank starts, so that it can always be read."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        # [Note: why the ring is allocated at once]
        # A page of a sparse file that finds no room on the disk later would end the rank by SIGBUS. Here it is an error.
        os.posix_fallocate(descriptor, 0, RECORDS + capacity * FORMAT.size)
        os.pwrite(descriptor, HEADER.pack(MAGIC, capacity, rank, 0, 0, 0), 0)
    finally:
        os.close(descriptor)


def map_ring(path: Path, access: int) -> mmap.mmap:
    """Map a ring with `mmap.ACCESS_READ` or `ACCESS_WRITE`. Raises `ValueError` for another version's, or a damaged one."""
    with path.open("r+b") if access == mmap.ACCESS_WRITE else open_regular(path) as file:
        ring = mmap.mmap(file.fileno(), 0, access=access)
    if ring[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is not a journal of this version")
    capacity: int = HEADER.unpack_from(ring)[1]
    if not capacity or len(ring) < RECORDS + capacity * FORMAT.size:
        raise ValueError(f"{path} is damaged")
    return ring


class JournalWriter:
    """The rank's end. One thread writes. A process may reopen its ring: it continues where the last writer stopped."""

    def __init__(self, path: Path) -> None:
        self._ring = map_ring(path, mmap.ACCESS_WRITE)
        self._capacity: int = HEADER.unpack_from(self._ring)[1]
        self._sequence: int = HEADER.unpack_from(self._ring)[5]
        self._texts = {_text(self._ring, number): number for number in range(HEADER.unpack_from(self._ring)[4] + 1)}
        self._lost = _lost(self._ring)
        name_process(self._ring)

    def write(  # noqa: PLR0917 - the hottest call of the package; keywords cost
        self, phase: Phase, operation: str = "", step: int = 0, epoch: int = 0, file: str = "", line: int = 0
    ) -> None:
        """Append one record with the current time. The oldest is overwritten when the ring is full."""
        texts = self._texts
        operation_number = texts.get(operation)
        if operation_number is None:
            operation_number = self._intern(operation)
        file_number = texts.get(file)
        if file_number is None:
            file_number = self._intern(file)
        self._sequence = sequence = self._sequence + 1
        FORMAT.pack_into(
            self._ring,
            RECORDS + (sequence - 1) % self._capacity * FORMAT.size,
            sequence,
            time.monotonic_ns(),
            step,
            epoch,
            phase,
            operation_number,
            file_number,
            line,
            sequence,
        )
        _U64.pack_into(self._ring, LAST_OFFSET, sequence)

    def gauges(self, values: Gauges) -> None:
        """Replace the gauges."""
        publish(self._ring, GAUGES_OFFSET, pack(values))

    def note(self, values: dict[str, Any]) -> None:
        """Replace the note: a small JSON object for people, such as the last values of `run.log`; drop one too long."""
        text = json.dumps(values).encode()
        if len(text) + 4 <= NOTE_BYTES:
            data = _U32.pack(len(text)) + text
            publish(self._ring, NOTE_OFFSET, data)

    def lost(self, sentence: str) -> None:
        """Report to the launcher that something could not be written; the ring has room for it, however full the disk is."""
        if (sentence := visible(sentence)) not in self._lost:
            self._lost.append(sentence)
            text = "\n".join(self._lost).encode()[: LOST_BYTES - 4]
            publish(self._ring, LOST_OFFSET, _U32.pack(len(text)) + text)

    def _intern(self, text: str) -> int:
        number = len(self._texts)
        # A full table loses names, never records: number 0 is the empty text.
        if number > MAX_TEXTS:
            return 0
        data = text.encode(errors="backslashreplace")[-(TEXT_BYTES - 1) :]
        offset = TEXT_TABLE + number * TEXT_BYTES
        self._ring[offset : offset + len(data)] = data
        self._texts[text] = number
        _U32.pack_into(self._ring, TEXTS_OFFSET, number)
        return number


class JournalReader:
    """Everybody else's end. Never blocks, never fails on a half-written ring: it returns the newest whole values."""

    def __init__(self, path: Path) -> None:
        self._ring = map_ring(path, mmap.ACCESS_READ)
        self._capacity: int = HEADER.unpack_from(self._ring)[1]
        self._texts: dict[int, str] = {}
        """Those that were read. A text is written before its number is used, and never changes."""

    @property
    def pid(self) -> int:
        """The process id of the rank; 0 before it began."""
        pid: int = _U32.unpack_from(self._ring, PID_OFFSET)[0]
        return pid

    def last(self) -> Record | None:
        """The newest record, or None before the first."""
        newest = self.tail(1)
        return newest[-1] if newest else None

    def tail(self, count: int) -> list[Record]:
        """Up to `count` newest whole records, oldest first."""
        last: int = _U64.unpack_from(self._ring, LAST_OFFSET)[0]
        wanted = range(max(last - min(count, self._capacity), 0) + 1, last + 1)
        return [record for sequence in wanted if (record := self._read(sequence)) is not None]

    def gauges(self) -> Gauges:
        """The gauges; all zero before the first step."""
        return unpack(_consistent(self._ring, GAUGES_OFFSET, GAUGES.size))

    def note(self) -> dict[str, Any]:
        """The note; empty before the first."""
        data = _consistent(self._ring, NOTE_OFFSET, NOTE_BYTES)
        size: int = _U32.unpack_from(data)[0]
        note: dict[str, Any] = json.loads(data[4 : 4 + size]) if size else {}
        return note

    def waiting(self) -> Waiting | None:
        """What the rank waits for; None when it does not, which one number says."""
        if not SINCE.unpack_from(self._ring, WAITING_OFFSET + _U64.size)[0]:
            return None
        waiting = unpack_waiting(_consistent(self._ring, WAITING_OFFSET, WAITING.size))
        return waiting if waiting.since_ns else None

    def lost(self) -> list[str]:
        """What could not be written, one sentence each."""
        return _lost(self._ring)

    def _read(self, sequence: int) -> Record | None:
        offset = RECORDS + (sequence - 1) % self._capacity * FORMAT.size
        first, time_ns, step, epoch, phase, operation, file, line, again = FORMAT.unpack_from(self._ring, offset)
        if first != sequence or again != sequence or phase not in _PHASES:
            return None
        texts = self._text_of(operation), self._text_of(file)
        return Record(sequence, time_ns, step, epoch, Phase(phase), *texts, line)

    def _text_of(self, number: int) -> str:
        text = self._texts.get(number)
        if text is None:
            text = self._texts[number] = _text(self._ring, number)
        return text


def _text(ring: mmap.mmap, number: int) -> str:
    offset = TEXT_TABLE + number * TEXT_BYTES
    return ring[offset : offset + TEXT_BYTES].rstrip(b"\0").decode(errors="replace")


def _lost(ring: mmap.mmap) -> list[str]:
    if not _U64.unpack_from(ring, LOST_OFFSET)[0]:
        return []
    data = _consistent(ring, LOST_OFFSET, LOST_BYTES)
    return data[4 : 4 + _U32.unpack_from(data)[0]].decode(errors="replace").split("\n")


def name_process(ring: mmap.mmap) -> None:
    """Say that this process is the ring's rank."""
    _U32.pack_into(ring, PID_OFFSET, os.getpid())


def publish(ring: mmap.mmap, offset: int, data: bytes) -> None:
    """Write `data` after a version number that is odd while it is written."""
    version: int = _U64.unpack_from(ring, offset)[0] | 1
    _U64.pack_into(ring, offset, version)
    ring[offset + 8 : offset + 8 + len(data)] = data
    _U64.pack_into(ring, offset, version + 1)


def _consistent(ring: mmap.mmap, offset: int, size: int) -> bytes:
    """Read the data of `publish`; after 100 tries take what a writer that died in the middle left."""
    data = ring[offset + 8 : offset + 8 + size]
    for _ in range(100):
        before: int = _U64.unpack_from(ring, offset)[0]
        data = ring[offset + 8 : offset + 8 + size]
        if before % 2 == 0 and before == _U64.unpack_from(ring, offset)[0]:
            break
    return data
