"""All processes below a launcher: found, killed and reaped, so that nothing of them is left."""

from __future__ import annotations

import os
import select
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def below(ancestor: int) -> list[int]:
    """The processes that an ancestor has started, and those that they have started; not itself."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children[parent].append(int(folder.name))
    found = list(children[ancestor])
    for pid in found:
        found += children[pid]
    return found


@contextmanager
def held(pids: Iterable[int]) -> Iterator[dict[int, int]]:
    """A descriptor of each that is still there, so that no number can mean another process meanwhile."""
    with ExitStack() as stack:
        found = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                found[pid] = os.pidfd_open(pid)
                stack.callback(os.close, found[pid])
        yield found


def kill_and_wait(descriptor: int, patience_s: float) -> None:
    """Nothing runs of this process afterwards, whoever's child it is."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], patience_s)


def reap(descriptors: Mapping[int, int]) -> None:
    """Those that have become this process's children (`adopt_orphans`); the others are their parents'."""
    for descriptor in descriptors.values():
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
