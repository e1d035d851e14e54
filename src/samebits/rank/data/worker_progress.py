"""Which samples loader workers are fetching: all that is known about a worker that was killed or is stuck.

A worker writes each sample's index before fetching it, into memory that it shares with its rank. This costs about a
microsecond per sample. On a signal, a worker appends its stack, whatever it is doing.

Runs in: the loader's workers, which write, and the rank, which reads.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import mmap
import os
import re
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any

from samebits.errors import SAMPLE_NOTE
from samebits.protocol.script_files import running_script

ROW = 192
HEAD, MAX_INDEX, MAX_PLACE = 4, 62, 120
KEPT = "kept "
NOTHING, ONE, SEVERAL, COLLATING = 0, 1, 2, 3
_NOTES = {
    NOTHING: "samebits: while fetching an unknown sample of the data set",
    ONE: SAMPLE_NOTE,
    SEVERAL: "samebits: while fetching a whole lane of the data set at once: sample {index} or a later one of the lane",
    COLLATING: "samebits: while collating the lane that begins with sample {index} of the data set",
}
ASKS_FOR_STACK = signal.SIGRTMAX - 5
"""A signal that programs leave alone."""
ANSWERS_WITHIN_S = 0.5
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Doing:
    """What a worker is doing."""

    kind: int = NOTHING
    index: str = ""
    place: str = ""
    """`epoch 2, step 13`."""

    @property
    def note(self) -> str:
        """For an exception."""
        return note(_NOTES[self.kind], self.index, self.place if self.kind != NOTHING else "")

    @property
    def words(self) -> str:
        """For a sentence about a worker that is gone."""
        return "between two lanes" if self.kind == NOTHING else self.note.removeprefix("samebits: ")


def note(form: str, index: Any, place: str) -> str:
    """A note with its place, where one is known."""
    return form.format(index=index) + (f" ({place})" if place else "")


class WorkerProgress:
    """A row for each worker, in memory that forked and spawned workers share.

    Args:
        num_workers: of one DataLoader.
    """

    def __init__(self, num_workers: int) -> None:
        size = num_workers * ROW
        descriptor = os.memfd_create("samebits-under-way")
        os.ftruncate(descriptor, size)
        # Workers append their stacks behind the rows.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
        self._share(descriptor, size)

    def _share(self, descriptor: int, size: int) -> None:
        self._descriptor, self._size, self._start = descriptor, size, 0
        self._rows = mmap.mmap(descriptor, size)

    def __getstate__(self) -> dict[str, Any]:
        # This copy is not on its way to a worker, so it gets memory of its own.
        if get_spawning_popen() is None:
            return {"size": self._size}
        return {"size": self._size, "descriptor": DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "descriptor" in state:
            self._share(state["descriptor"].detach(), state["size"])
        else:
            WorkerProgress.__init__(self, state["size"] // ROW)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def be_worker(self, number: int) -> None:
        """Make this process worker `number`: from now on it writes to that row, and its stack on a signal."""
        self._start = number * ROW
        self.end()
        faulthandler.register(ASKS_FOR_STACK, file=self._descriptor, all_threads=False)
        self._rows[self._start + 1] = 1

    def enter(self, place: str) -> None:
        """Note the place of the lane that is fetched from now on."""
        text = place.encode(errors="replace")[:MAX_PLACE]
        start = self._start + HEAD + MAX_INDEX
        self._rows[self._start + 3] = len(text)
        self._rows[start : start + len(text)] = text

    def begin(self, index: Any, kind: int = ONE) -> None:
        """Note the sample that is fetched now, or the first of several."""
        text = str(index).encode(errors="replace")[:MAX_INDEX]
        start = self._start + HEAD
        self._rows[self._start + 2] = len(text)
        self._rows[start : start + len(text)] = text
        self._rows[self._start] = kind

    def end(self) -> None:
        """Note that nothing is being fetched any more."""
        self._rows[self._start] = NOTHING

    def keep(self, found: Iterable[Sequence[Any]]) -> None:
        """Note rows of plain values for good, behind the rows."""
        os.write(self._descriptor, f"\n{KEPT}{json.dumps([*found])}\n".encode())

    def kept(self) -> list[Any]:
        """The rows that workers have noted."""
        lines = os.pread(self._descriptor, 1 << 20, self._size).decode(errors="replace").splitlines()
        return [one for line in lines if line.startswith(KEPT) for one in json.loads(line.removeprefix(KEPT))]

    def doing(self, worker: int) -> Doing:
        """What a worker is doing, or was when it ended."""
        row = self._rows[worker * ROW : (worker + 1) * ROW]
        index, place = row[HEAD : HEAD + row[2]], row[HEAD + MAX_INDEX : HEAD + MAX_INDEX + row[3]]
        return Doing(row[0], index.decode(errors="replace"), place.decode(errors="replace"))

    def busy(self, workers: list[int]) -> int | None:
        """The first of `workers` that is fetching something; None if none is."""
        return next((worker for worker in workers if self._rows[worker * ROW] != NOTHING), None)

    def line_of(self, worker: int, pid: int) -> str:
        """Ask a living worker where it is: `train.py:12 in __getitem__`; empty if no answer comes within half a second."""
        if not self._rows[worker * ROW + 1]:
            return ""
        before = os.fstat(self._descriptor).st_size
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        with suppress(OSError):
            os.kill(pid, ASKS_FOR_STACK)
        text = ""
        while LAST not in text and time.monotonic() < deadline:
            time.sleep(0.005)
            text = os.pread(self._descriptor, 1 << 16, before).decode(errors="replace")
        return user_line(text)


LAST = "samebits/rank/data/lane_dataset.py"
"""In the frame that called the user's data set: what is above it matters."""


def user_line(stack: str) -> str:
    """The innermost line of the user in a stack as faulthandler writes it, newest first; empty if there is none."""
    frames = _FRAME.findall(stack.partition(LAST)[0])
    place = running_script().innermost([file for file, _, _ in frames]) or 0
    return "{}:{} in {}".format(*frames[place]) if frames else ""
