"""`python -P -m lockstep.launch.warm.process ORDER STARTER ROOM`: import, make the socket, say so, wait.

It is started by `lockstep warm`, or by a run that is to keep one, and outlives it: a session of its own, nothing open but its socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from lockstep.launch.warm.place import address, make_folder, socket_name
from lockstep.launch.warm.stamps import changed_since, loaded_files, stamps_of
from lockstep.launch.warm.standing_in import Made
from lockstep.launch.warm.variables import Reads, is_foreign, seen_reads
from lockstep.launch.warm.waiting import Loaded, Waiting, held_bytes
from lockstep.machine import packets
from lockstep.machine.shown_command import show

OF_NURSERIES = ("lockstep.launch.nursery.process",)
OF_LAUNCHERS = ("lockstep.cli.main", "lockstep.cli.run")
MOST_BYTES = 1 << 22


def read_json(descriptor: int) -> Any:
    """What is in a file in memory, which is closed."""
    data = os.pread(descriptor, MOST_BYTES, 0)
    os.close(descriptor)
    return json.loads(data)


class Imported:
    """The imports: what they read and printed, and the sentence that says why they will not do, if so."""

    def __init__(self, modules: Collection[str], before: Collection[str]) -> None:
        """Import, without collecting garbage in between: what is made here stays."""
        self.failed: tuple[str, ...] = ()
        """The module that cannot be imported, and its traceback."""
        self.problem, self.reads, self.said = "", Reads(), (b"", b"")
        began_ns = time.time_ns()
        gc.disable()
        captured = [os.memfd_create("lockstep-imports") for _ in range(2)]
        for target, descriptor in zip((1, 2), captured, strict=True):
            os.dup2(descriptor, target)
        of_nurseries: set[str] = set()
        with seen_reads(before) as told:
            try:
                for module in (*OF_NURSERIES, *modules, *OF_LAUNCHERS):
                    if module == OF_LAUNCHERS[0]:
                        of_nurseries = set(sys.modules)
                    importlib.import_module(module)
            except Exception:  # noqa: BLE001 - an import may raise anything
                self.failed = (module, traceback.format_exc()[-30_000:])
        self.reads = told[0]
        self.of_launchers = tuple(name for name in sys.modules if name not in of_nurseries and is_foreign(name))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.said = (_content(captured[0]), _content(captured[1]))
        gc.collect()
        gc.freeze()
        self.stamps = stamps_of(loaded_files())
        if tasks := len(list(Path("/proc/self/task").iterdir())) - 1:
            self.problem = (
                self.problem or f"Importing torch starts {tasks} threads here, and none can be forked from then."
            )
        if changed := changed_since(self.stamps, began_ns):
            self.problem = self.problem or f"{changed} was changed while it was imported."


def _content(descriptor: int) -> bytes:
    data = os.pread(descriptor, MOST_BYTES, 0)
    os.close(descriptor)
    return data


def main() -> int:
    """Be the nursery that waits; in what is forked from it, a launcher or its nursery."""
    before = set(sys.modules)
    show(sys.orig_argv[:-1])  # the last word only keeps room
    _close_all_but(int(sys.argv[1]), int(sys.argv[2]))
    order = read_json(int(sys.argv[1]))
    starter = socket.socket(fileno=int(sys.argv[2]))
    os.set_inheritable(starter.fileno(), False)
    os.setsid()
    began_s = time.monotonic()
    imported = Imported(order["modules"], before)
    if imported.failed:
        _give_up(starter, "failed", *imported.failed)
    if imported.problem:
        _give_up(starter, "broken", imported.problem)
    folder = make_folder(order["variables"])
    if folder is None:
        _give_up(starter, "broken", "There is no folder that only you can enter, neither XDG_RUNTIME_DIR nor ~/.cache.")
    listener, path = _listen(*folder)
    made = Made(tuple(order["modules"]), dict(os.environ), imported.said, imported.of_launchers)
    loaded = Loaded(order["same"], order["variables"], imported.reads, imported.stamps, made)
    _let_go()
    waiting = Waiting(listener, path, loaded, float(order["for_s"]))
    with suppress(OSError):
        packets.send(starter, "ready", {"bytes": held_bytes(), "import_s": time.monotonic() - began_s})
    starter.close()
    task: Callable[[], int] | None = waiting.run()
    if task is None:
        os._exit(0)
    return task()


def _close_all_but(*kept: int) -> None:
    """Close what the command that started this would have handed on: somebody may wait for the end of a pipe."""
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if number > 2 and number not in kept:
            with suppress(OSError):  # it was that of the listing
                os.close(number)


def _listen(folder: int, path: str) -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    name = socket_name()
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)
    listener.bind(address(folder, name))
    os.umask(mask)
    listener.listen(64)
    os.close(folder)
    return listener, f"{path}/{name}"


def _let_go() -> None:
    """Hold no folder, no terminal and no file of the command that started this."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.close(null)


def _give_up(starter: socket.socket, word: str, *told: str) -> NoReturn:
    with suppress(OSError):
        packets.send(starter, word, *told)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
