"""A record as it lies on the disk, read line by line; it may be half written, or somebody's who means harm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.machine.regular_file import open_regular
from samebits.machine.visible import visible
from samebits.protocol.record.lines import (
    CONDITIONS,
    DIFFERS,
    END,
    MOST_BYTES,
    RECORD,
    START,
    STATE,
    STEP,
    VERSION,
    decoded,
    first_step_of,
    link_after,
    split,
)

FILE = "record.jsonl"
MOST_OTHER_BYTES = 64 << 20
"""Of conditions, starts and states together: in memory they are several times larger."""
MOST_FILE_BYTES = 4 << 30
"""Twenty million steps."""


@dataclass
class Record:
    """What a record says."""

    path: Path
    lines: dict[int, bytes] = field(default_factory=dict)
    """Of each step, in order."""
    conditions: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    """Under which the steps behind each number were made, the newest last."""
    condition_lines: dict[int, bytes] = field(default_factory=dict)
    """Their lines, by the same numbers."""
    starts: list[Mapping[str, Any]] = field(default_factory=list)
    end: tuple[int, str] | None = None
    """After which step the script ended well, and the bits of its model."""
    states: dict[int, Mapping[str, str]] = field(default_factory=dict)
    """Of a published record: by step, the SHA-256 of each file of a state."""
    differs: Mapping[str, Any] | None = None
    """The line about a step that came again otherwise."""
    broken: str = ""
    """Where the chain is not what its lines make it, in a sentence."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Steps that are not there, first and last of each gap."""
    is_cut: bool = False
    """Whether it ends within a line, as after a kill of the machine."""
    num_bytes: int = 0

    @property
    def last(self) -> int:
        """The last step; 0 where there is none."""
        return next(reversed(self.lines), 0)

    @property
    def first(self) -> int:
        """The first step, with a backward or without; 0 where there is none."""
        line = next(iter(self.lines.values()), None)
        return 0 if line is None else first_step_of(decoded(line))

    def step(self, number: int) -> dict[str, Any] | None:
        """What stands of a step; None where nothing does."""
        return decoded(self.lines[number]) if number in self.lines else None

    def link(self, number: int) -> str:
        """The chain's link at a step; empty where the step is not there."""
        return split(self.lines[number])[1] if number in self.lines else ""

    def conditions_of(self, step: int) -> Mapping[str, Any]:
        """Under which a step was made; empty where nothing says so."""
        return next((found for after, found in reversed(self.conditions) if after < step), {})

    def conditions_within(self, after: int, last: int) -> list[Mapping[str, Any]]:
        """All under which the steps behind `after`, up to `last`, were made."""
        later = [found for begins, found in self.conditions if after <= begins < last]
        # Conditions stand before the first step with a backward.
        first = next((step for step in self.lines if step > after), after + 1)
        return [self.conditions_of(first), *later]


def read_record(path: Path) -> Record:
    """Read all of it. Steps that were made again under other conditions take the place of those before.

    Raises:
        UsageError: for what is no record of this version.
    """
    name = visible(str(path))
    try:
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_FILE_BYTES:
                raise UsageError(f"{name} has {size >> 30} GiB, which no run writes.", "Name the record of a run.")
            record = Record(path, num_bytes=size)
            reader = _Reader(record)
            for number, line in _lines(file, record):
                try:
                    reader.take(number, line)
                except ValueError as error:
                    raise UsageError(
                        f"{name} is not a record of this version: line {number}: {error}.", "Name another one."
                    ) from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}.", "Name a run that was recorded.") from None
    if not reader.has_begun:
        raise UsageError(f"{name} has no line of a record.", "Record a run: `samebits run --record SCRIPT`.")
    record.gaps = _gaps(record)
    if record.end is not None and record.end[0] != record.last:
        record.end = None
    return record


def _lines(file: BufferedReader, record: Record) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        if not line.endswith(b"\n"):
            if len(line) > MOST_BYTES:
                raise UsageError(
                    f"{visible(str(record.path))} has a line of more than {MOST_BYTES >> 20} MiB, which no run writes.",
                    "Name the record of a run.",
                )
            record.is_cut = True
            return
        yield number, line[:-1]


class _Reader:
    """Takes the lines of a record, one after the other."""

    def __init__(self, record: Record) -> None:
        self._record, self._head = record, ""
        self.has_begun = False
        self._other_bytes = 0
        """Of lines that are no steps'."""

    def take(self, number: int, line: bytes) -> None:
        """Raises ValueError for what is no line of a record."""
        body = decoded(line)
        kind = next(iter(body))
        if not self.has_begun:
            if kind != RECORD:
                raise ValueError("it is not the first line of a record")
            self.has_begun = True
        record = self._record
        self._count(0 if kind == STEP else len(line))
        if kind == RECORD and body[RECORD] != VERSION:
            raise ValueError(f"it is of format {body[RECORD]}, and this version reads format {VERSION}")
        if kind == CONDITIONS:
            self._rewind(body["after"])
            record.conditions.append((body["after"], body[CONDITIONS]))
            record.condition_lines[body["after"]] = line
            self._link(number, line, "conditions")
        elif kind == STEP:
            self._take_step(number, line, body)
        elif kind == END:
            record.end = (body[END], body["bits"])
        elif kind == START:
            record.starts.append(body)
        elif kind == STATE:
            record.states[body[STATE]] = body["files"]
        elif kind == DIFFERS:
            record.differs = body

    def _count(self, other_bytes: int) -> None:
        self._other_bytes += other_bytes
        if self._other_bytes > MOST_OTHER_BYTES:
            raise ValueError(f"lines that are no steps' have more than {MOST_OTHER_BYTES >> 20} MiB together")

    def _take_step(self, number: int, line: bytes, body: Mapping[str, Any]) -> None:
        step, record = body[STEP], self._record
        if step <= record.last:
            self._break(f"line {number} goes back from step {record.last} to step {step}")
        record.lines.pop(step, None)
        record.lines[step] = line
        self._link(number, line, f"step {step}")

    def _rewind(self, after: int) -> None:
        """What was made behind the step `after` is made again."""
        lines, record = self._record.lines, self._record
        while lines and record.last > after:
            lines.popitem()
        while record.conditions and record.conditions[-1][0] >= after:
            del record.condition_lines[record.conditions.pop()[0]]
        self._head = record.link(record.last)

    def _link(self, number: int, line: bytes, what: str) -> None:
        # The script goes on, so it has not ended.
        self._record.end = None
        text, link = split(line)
        if self._record.differs is not None:
            self._break(f"line {number} follows a step that came again otherwise, where a record ends")
        if link_after(self._head, text) != link:
            self._break(f"the chain breaks at {what} (line {number}): that line was changed, or one before it left out")
        self._head = link

    def _break(self, why: str) -> None:
        self._record.broken = self._record.broken or why


def _gaps(record: Record) -> list[tuple[int, int]]:
    found, before = [], 0
    for step, line in record.lines.items():
        if step != before + 1:
            first = first_step_of(decoded(line))
            if first > before + 1:
                found.append((before + 1, first - 1))
        before = step
    return found
