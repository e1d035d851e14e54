"""All nurseries of this user that wait, seen from a command: what each says of itself, and their end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.launch.warm.asked import order
from lockstep.launch.warm.place import address, open_folder, places, sockets
from lockstep.machine import packets
from lockstep.machine.process_state import process_state

WITHIN_S = 1.0
SILENT = "it does not answer"
SAYS = (
    "process", "bytes", "threads", "python", "lockstep", "age_s", "left_s", "runs", "under_way", "socket",
)  # fmt: skip
"""The keys of what one says of itself."""


@dataclass(frozen=True)
class Waiter:
    """One of them."""

    process: int
    said: Mapping[str, Any]
    """What it says; empty where it does not answer."""

    @property
    def bytes(self) -> int:
        """The memory that it holds."""
        return int(self.said.get("bytes", 0))

    def as_json(self) -> dict[str, Any]:
        """For machines: every key, None where that is not known, and its state."""
        state = "waits" if self.said else "does not answer"
        return {"state": state, **dict.fromkeys(SAYS), "process": self.process, **self.said}


def waiters(variables: Mapping[str, str]) -> list[Waiter]:
    """All that are there, the newest first."""
    return _asked(places(variables, os.geteuid()))


def _asked(paths: Iterable[str]) -> list[Waiter]:
    """All in these folders."""
    found = []
    for end, process in _connections(paths):
        word, told = _ask(end, process, "status")
        found.append(Waiter(process, told[0] if word == "status" and told and isinstance(told[0], dict) else {}))
    return found


def keep_longer(variables: Mapping[str, str], threads: int, for_s: float) -> tuple[Waiter | None, list[str]]:
    """The one that fits runs of this command, which now waits at least so long; and why others do not fit."""
    reasons: list[str] = []
    for end, process in _connections(places(variables, os.geteuid())):
        word, told = _ask(end, process, "keep", order(()), threads, for_s)
        if word == "status":
            return Waiter(process, told[0]), reasons
        reasons.append(str(told[0]) if word == "no" and told else SILENT)
    return None, reasons


def stop_waiters(variables: Mapping[str, str]) -> int:
    """End all; their number. A run that one has begun goes on. One that does not answer, because it is stopped, is killed."""
    number = 0
    for end, process in _connections(places(variables, os.geteuid())):
        stop_one(end, process)
        number += 1
    return number


def stop_oldest(path: str, most: int) -> list[int]:
    """End those in a folder that nobody has used for longest, until there are at most so many; their processes."""
    found = _asked([path])
    idle = sorted((one for one in found if not one.said.get("under_way")), key=_left_s)
    surplus = {one.process for one in idle[: max(0, len(found) - most)]}
    for end, process in _connections([path]):
        if process in surplus:
            stop_one(end, process)
        else:
            end.close()
    return sorted(surplus)


def stop_one(end: socket.socket, process: int) -> None:
    """End one, and return when it has ended."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.pidfd_open(process)
    word, _ = _ask(end, process, "stop")
    if descriptor is None:
        return
    if word != "stopped" or not select.select([descriptor], [], [], WITHIN_S)[0]:
        with suppress(OSError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], WITHIN_S)
    os.close(descriptor)


def _left_s(one: Waiter) -> float:
    return float(one.said.get("left_s", 0.0))


def _connections(paths: Iterable[str]) -> Iterator[tuple[socket.socket, int]]:
    """A connection to each in these folders; sockets behind which nobody is are removed."""
    for path in paths:
        folder = open_folder(path)
        if folder is None:
            continue
        for name in sockets(folder):
            try:
                yield packets.connect(address(folder, name))
            except ConnectionRefusedError:
                with suppress(OSError):
                    (Path(path) / name).unlink()
            except OSError:
                continue
        os.close(folder)


def _ask(end: socket.socket, process: int, word: str, *values: Any) -> tuple[str, list[Any]]:
    """Its answer; an empty word where there is none in time."""
    state = process_state(process)
    until_s = time.monotonic() + WITHIN_S
    with end, suppress(OSError, ValueError):
        if state is not None and not state.is_stopped:
            packets.send(end, word, *values)
            if select.select([end], [], [], max(0.0, until_s - time.monotonic()))[0]:
                answer, told, _ = packets.receive(end)
                return answer, told
    return "", []
