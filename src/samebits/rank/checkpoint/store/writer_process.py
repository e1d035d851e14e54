"""The process that writes states: plain Python, without torch, at the lowest priority.

Runs in: a process of its own for rank 0; orders come in through a thread of it.

    python -P -m samebits.rank.checkpoint.store.writer_process CHANNEL MEMORY PARENT

CHANNEL: a socket; each message is an order's place in memory, and each is answered by `{"problem": "", "cpu_s": 0.1}` when the
state is on the disk, or not. MEMORY: the anonymous file. Both are descriptors. The process ends at once when the channel closes, and
with PARENT, which is 0 if the thread that started it may end earlier.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from samebits.errors import SamebitsError
from samebits.machine.processes import ENDING, die_with_parent
from samebits.protocol.state_files.flushed import sync_above
from samebits.protocol.state_files.folder import StateFolder, complete, not_written
from samebits.protocol.state_files.manifest import SavedFile
from samebits.rank.checkpoint.format.finite import is_finite
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.checkpoint.store.writer_handle import Image, Order

PIECE_BYTES = 16 << 20
"""Written in one go, after which a signal can end the process."""
NICEST = 19
NEW_FOLDERS = 3
"""The run's folder, that of all runs, and the one around it: their entries may be as new as the run."""


class Memory:
    """The anonymous file as this process sees it, which grows now and then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    def read(self, at: int, size: int) -> bytes:
        """A copy of some bytes."""
        return os.pread(self._descriptor, size, at)

    def bytes_to(self, end: int) -> memoryview:
        """All bytes before `end`, mapped. Raises OSError when there is no room for the pages' table."""
        if self._mapped is None or len(self._mapped) < end:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self._mapped = mmap.mmap(self._descriptor, end, flags=flags, prot=mmap.PROT_READ)
        return memoryview(self._mapped)[:end]


def write(memory: Memory, order: Order) -> str:
    """Write the state that `memory` holds, then copy it; return why that failed as a sentence, or an empty text."""
    folder = StateFolder(order.target)
    try:
        folder.begin()
        data = memory.bytes_to(max((image.at + image.size for image in order.images), default=0))
        parts = [data[image.at : image.at + image.size] for image in order.images]
        # [Note: why a thread hashes]
        # Hashing takes a core and writing waits for the disk, so the two take as long as the slower one.
        with ThreadPoolExecutor(1) as beside:
            hashes = beside.map(_hash, parts)
            for image, part in zip(order.images, parts, strict=True):
                _write_file(part, folder.stage / image.name)
            found = {
                one.name: SavedFile(one.size, hashed, tuple(one.tensors))
                for one, hashed in zip(order.images, hashes, strict=True)
            }
        sync_above(folder.target.parent.parent, NEW_FOLDERS)
        not_finite = _not_finite(data, order.images)
        complete(folder, order.documents, found, order.facts, order.taken_s, not_finite=not_finite)
    except (OSError, SamebitsError) as error:
        folder.abandon()
        return str(not_written(folder.target, str(error)))
    store = Store(folder.target.parent, order.keep, order.url, others=order.others, keeps_finite=order.keeps_finite)
    return store.added(folder.target)


def _hash(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_file(data: memoryview, path: Path) -> None:
    """Write whole pages past the system's cache: one copy less, and what the script has there stays there."""
    with path.open("xb", buffering=0) as file:
        is_past, done = _go_past_cache(file.fileno(), True), 0
        while left := len(data) - done:
            if is_past and (left < mmap.PAGESIZE or done % mmap.PAGESIZE):
                is_past = _go_past_cache(file.fileno(), False)
            size = min(left - left % mmap.PAGESIZE if is_past else left, PIECE_BYTES)
            try:
                done += file.write(data[done : done + size])
            except OSError as error:
                if not is_past or error.errno != errno.EINVAL:
                    raise
                # [Note: where O_DIRECT ends]
                # A disk may have larger blocks than pages. The rest is written through the cache.
                is_past = _go_past_cache(file.fileno(), False)
        os.fsync(file.fileno())


def _go_past_cache(descriptor: int, is_wanted: bool) -> bool:
    """Let writes go past the cache, or through it; whether they go past it now, which not every file system can."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_wanted else 0))
        return is_wanted
    return False


def _not_finite(data: memoryview, images: Sequence[Image]) -> str:
    """The first tensor that is to be finite and is not; empty where there is none."""
    judged = (one for image in images for one in image.judged)
    return next((name for name, code, at, size in judged if not is_finite(code, data[at : at + size])), "")


def _step_aside() -> None:
    """Let everything else go first. A signal for the whole run is the rank's to answer."""
    # [Note: why the process has the lowest priority]
    # Niceness 19 gives the lowest usual priority at the disk too. SCHED_IDLE gets a few thousandths of a busy core, and a state
    # that takes minutes is lost more often.
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICEST)


def _listen(channel: socket.socket, orders: queue.SimpleQueue[tuple[int, int]]) -> None:
    """Take in orders until the rank is gone: then nobody waits for a state any more."""
    with suppress(OSError):
        while message := channel.recv(1 << 10):
            at, size = json.loads(message)
            orders.put((at, size))
    # [Note: why the process ends without a word]
    # Its memory has no name and its stage is swept by the next save, so nothing else is left behind.
    os._exit(0)


def main() -> None:
    """Write what is ordered, one state after the other."""
    descriptor, anonymous, parent = map(int, sys.argv[1:])
    if parent:
        die_with_parent(parent)
    _step_aside()
    channel, memory = socket.socket(fileno=descriptor), Memory(anonymous)
    orders: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, orders), daemon=True).start()
    before_s = time.process_time()
    while True:
        at, size = orders.get()
        problem = write(memory, Order.decode(memory.read(at, size)))
        cpu_s, before_s = time.process_time() - before_s, time.process_time()
        channel.send(json.dumps({"problem": problem[: 1 << 12], "cpu_s": cpu_s}).encode())


if __name__ == "__main__":
    main()
