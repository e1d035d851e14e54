"""The process that writes states: plain Python, without torch, at the lowest priority.

    python -P -m lockstep.run.saving.aside.process CHANNEL MEMORY PARENT

CHANNEL: a socket; each message is an order's place in memory, and each is answered by `{"problem": "", "cpu_s": 0.1}` when the
state is on the disk, or not. MEMORY: the anonymous file. Both are descriptors. The process ends at once when the channel closes, and
with PARENT, which is 0 if the thread that started it may end earlier.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lockstep.checkpoint.completion import complete, not_written
from lockstep.checkpoint.finite import is_finite
from lockstep.checkpoint.flushed import sync_above
from lockstep.checkpoint.folder import StateFolder
from lockstep.checkpoint.manifest import SavedFile
from lockstep.checkpoint.remote_ring import copied
from lockstep.errors import LockstepError
from lockstep.machine.ending_signals import ENDING
from lockstep.machine.processes import die_with_parent
from lockstep.run.saving.aside.order import Image, Order
from lockstep.run.saving.ring import Ring

PIECE_BYTES = 1 << 20
"""Read, hashed and written in one go: small enough to stay in the cache between the three."""
NICEST = 19
NEW_FOLDERS = 3
"""The run's folder, that of all runs, and the one around it: their entries may be as new as the run."""


def write(memory: int, order: Order) -> str:
    """Write the state that `memory` holds, then copy it; return why that failed as a sentence, or an empty text."""
    folder = StateFolder(order.target)
    try:
        folder.begin()
        files = {image.name: _write_file(memory, image, folder.stage / image.name) for image in order.images}
        sync_above(folder.target.parent.parent, NEW_FOLDERS)
        not_finite = _not_finite(memory, order.images)
        complete(folder, order.documents, files, order.facts, order.taken_s, not_finite=not_finite)
    except (OSError, LockstepError) as error:
        folder.abandon()
        return str(not_written(folder.target, str(error)))
    Ring(folder.target.parent, order.keep, keeps_finite=order.keeps_finite).prune()
    return copied(folder.target, order.url, order.keep)


def _write_file(memory: int, image: Image, path: Path) -> SavedFile:
    digest, piece = hashlib.sha256(), memoryview(bytearray(min(PIECE_BYTES, image.size)))
    with path.open("xb", buffering=0) as file:
        done = 0
        while done < image.size:
            read = os.preadv(memory, [piece[: image.size - done]], image.at + done)
            digest.update(piece[:read])
            written = 0
            while written < read:
                written += file.write(piece[written:read])
            done += read
        os.fsync(file.fileno())
    return SavedFile(image.size, digest.hexdigest(), tuple(image.tensors))


def _not_finite(memory: int, images: Sequence[Image]) -> str:
    """The first tensor that is to be finite and is not; empty where there is none."""
    for name, code, at, size in (one for image in images for one in image.judged):
        for done in range(0, size, PIECE_BYTES):
            if not is_finite(code, os.pread(memory, min(PIECE_BYTES, size - done), at + done)):
                return name
    return ""


def _step_aside() -> None:
    """Let everything else go first. A signal for the whole run is the rank's to answer."""
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
    os._exit(0)


def main() -> None:
    """Write what is ordered, one state after the other."""
    descriptor, memory, parent = map(int, sys.argv[1:])
    if parent:
        die_with_parent(parent)
    _step_aside()
    channel = socket.socket(fileno=descriptor)
    orders: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, orders), daemon=True).start()
    before_s = time.process_time()
    while True:
        at, size = orders.get()
        problem = write(memory, Order.decode(os.pread(memory, size, at)))
        cpu_s, before_s = time.process_time() - before_s, time.process_time()
        channel.send(json.dumps({"problem": problem[: 1 << 12], "cpu_s": cpu_s}).encode())


if __name__ == "__main__":
    main()
