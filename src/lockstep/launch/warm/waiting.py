"""The nursery that waits: who asks, and what it gets.

One thread, and nothing that waits for somebody else: a command that sends half a message, or none, is dropped after a second. A
run gets a forked launcher (`standing_in`); everything about it must be as if it had been started by its command, so
whatever cannot be taken over must be equal, and every loaded file as it was.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.launch.warm.life import Seen, why_end
from lockstep.launch.warm.order import Order, parse_order
from lockstep.launch.warm.stamps import Stamp, first_changed
from lockstep.launch.warm.standing_in import ROOM, Made, size_of, stand_in
from lockstep.launch.warm.variables import Reads, hindrance
from lockstep.machine import packets
from lockstep.machine.available_memory import available_bytes
from lockstep.machine.inherited import inherited
from lockstep.machine.packets import NotUnderstood

Task = Callable[[], int]
SAYS_WITHIN_S = 1.0
"""How long a command may take to say what it wants."""
LOOKS_EVERY_S = 10.0
MOST_ASKING = 32


@dataclass(frozen=True)
class Loaded:
    """What was imported, and with what."""

    same: Mapping[str, Any]
    """As in an `Order`."""
    variables: Mapping[str, str]
    """Of the command that started it."""
    reads: Reads
    stamps: Mapping[str, Stamp]
    made: Made

    def hindrance(self, order: Order) -> str:
        """Why these imports are not those that the run would make; empty: they are."""
        for name, value in self.same.items():
            if order.same.get(name) != value:
                return f"the {name} is another one"
        if why := hindrance(self.variables, order.variables, self.reads):
            return why
        if max(size_of(order.command, {}), size_of([], order.variables)) >= ROOM:
            return "its variables or its command line are too long"
        return ""


def other_surroundings(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What a launcher would inherit from its command, but not from here; empty: nothing."""
    names = sorted(ours.keys() | theirs.keys())
    return next((f"{name} is not the same" for name in names if ours.get(name) != theirs.get(name)), "")


@dataclass
class Waiting:
    """The process. `run` returns in a forked one, with what that is to do; or with None when this one is to end."""

    listener: socket.socket
    path: str
    """Of its socket."""
    loaded: Loaded
    for_s: float
    _asking: dict[int, tuple[socket.socket, int, float]] = field(default_factory=dict)
    """Connections that have said nothing yet: the end, the process behind it, until when."""
    _runs: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)
    """By a descriptor of the launcher's process: its number, and the connection to its command."""
    _served: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _used_s: float = field(default_factory=time.monotonic)
    _looks_s: float = 0.0
    _ends: bool = False

    def run(self) -> Task | None:
        """Serve until there is a reason to end. Launchers that are still at work then go on alone."""
        self.listener.setblocking(False)
        while not self._ends:
            if time.monotonic() >= self._looks_s:
                self._looks_s = time.monotonic() + LOOKS_EVERY_S
                if self._look() and not self._runs:
                    break
            watched: list[Any] = [self.listener, *self._asking, *self._runs]
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            for descriptor in ready:
                if descriptor is self.listener:
                    self._accept()
                elif descriptor in self._runs:
                    self._bury(descriptor)
                elif descriptor in self._asking and (task := self._hear(descriptor)) is not None:
                    return task
            self._drop_the_silent()
        self._remove_socket()
        return None

    def _patience_s(self) -> float:
        until = min([self._looks_s, *(until for _, _, until in self._asking.values())])
        return max(0.0, until - time.monotonic())

    def _look(self) -> str:
        """Why it should end."""
        used = time.monotonic() if self._runs else self._used_s
        seen = Seen(time.monotonic() - used, self._has_socket(), first_changed(self.loaded.stamps), available_bytes())
        return why_end(seen, self.for_s)

    def _has_socket(self) -> bool:
        try:
            return Path(self.path).is_socket()
        except OSError:
            return False

    def _remove_socket(self) -> None:
        with suppress(OSError):
            Path(self.path).unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            end, _ = self.listener.accept()
            try:
                peer = packets.peer_of(end)
            except OSError:
                end.close()
                return
            if len(self._asking) >= MOST_ASKING:
                end.close()
                return
            end.setblocking(False)
            self._asking[end.fileno()] = end, peer, time.monotonic() + SAYS_WITHIN_S

    def _drop_the_silent(self) -> None:
        for descriptor, (end, _, until) in list(self._asking.items()):
            if time.monotonic() >= until:
                end.close()
                del self._asking[descriptor]

    def _hear(self, descriptor: int) -> Task | None:
        end, peer, _ = self._asking.pop(descriptor)
        descriptors: list[int] = []
        try:
            word, told, descriptors = packets.receive(end)
            task = self._answer(word, told, descriptors, end, peer)
        except (NotUnderstood, OSError):
            task = None
        if task is None:
            for one in descriptors:
                os.close(one)
            if all(end is not kept for _, kept in self._runs.values()):
                end.close()
        return task

    def _answer(self, word: str, told: list[Any], descriptors: list[int], end: socket.socket, peer: int) -> Task | None:
        if word in {"run", "keep"}:
            order = parse_order(told[:1], len(descriptors))
            if why := self._hindrance(order, peer) or (self._threads_differ(told) if word == "keep" else ""):
                packets.send(end, "no", why)
            elif word == "run" and descriptors:
                return self._start(order, descriptors, end, peer)
            elif word == "keep" and _is_time(told[-1]):
                self.for_s, self._used_s = max(self.for_s, float(told[-1])), time.monotonic()
                packets.send(end, "status", self._status())
        elif word == "status":
            packets.send(end, "status", self._status())
        elif word == "stop":
            self._ends = True
            self._remove_socket()
            packets.send(end, "stopped")
        return None

    def _threads_differ(self, told: list[Any]) -> str:
        threads = int(self.loaded.made.variables["OMP_NUM_THREADS"])
        return "" if told[1:2] == [threads] else f"it is for {threads} threads per rank"

    def _hindrance(self, order: Order, peer: int) -> str:
        """Why this run needs another nursery. One that has loaded what is no longer there ends."""
        if changed := first_changed(self.loaded.stamps):
            self._ends = not self._runs
            self._remove_socket()
            return f"{changed} has changed"
        return self.loaded.hindrance(order) or other_surroundings(inherited(os.getpid()), inherited(peer))

    def _start(self, order: Order, descriptors: list[int], end: socket.socket, peer: int) -> Task | None:
        process = os.fork()
        if process:
            self._runs[os.pidfd_open(process)] = process, end
            self._served += 1
            return None
        self.listener.close()
        for other, _, _ in self._asking.values():
            other.close()
        for descriptor, (_, other) in self._runs.items():
            os.close(descriptor)
            other.close()
        end.setblocking(True)
        try:
            return stand_in(order, descriptors, end, peer, self.loaded.made)
        except BaseException:  # noqa: BLE001 - the command sees that this one has ended, and starts as always
            os._exit(1)

    def _bury(self, descriptor: int) -> None:
        """Tell a command how its launcher has ended."""
        process, end = self._runs.pop(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(process, 0)
        with suppress(OSError):
            packets.send(end, "ended", status)
        end.close()
        self._used_s = time.monotonic()

    def _status(self) -> dict[str, Any]:
        now = time.monotonic()
        return {
            "process": os.getpid(),
            "bytes": held_bytes(),
            "threads": int(self.loaded.made.variables["OMP_NUM_THREADS"]),
            "python": self.loaded.same["interpreter"][0],
            "lockstep": self.loaded.same["lockstep"],
            "age_s": round(now - self._began_s, 1),
            "left_s": round(max(0.0, self.for_s - (0.0 if self._runs else now - self._used_s)), 1),
            "runs": self._served,
            "under_way": len(self._runs),
            "socket": self.path,
        }


def held_bytes() -> int:
    """What this process holds of the memory, its part of what is shared."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value < float("inf")
