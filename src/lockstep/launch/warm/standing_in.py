"""In a process that was forked from the nursery that waits: become the launcher of a command, as if it had been started so.

It has the command's descriptors, folder, variables, mask of rights and ignored signals, and a session of its own; the kernel
shows its command line and environment. When the command ends, however it ended, the kernel kills it at once: a pipe whose
other end only the command has sends SIGKILL (`F_SETSIG`). Everything of the run ends with the launcher, as always.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from lockstep.launch.nursery.spare import READ_ONCE, Spare, keep_spare
from lockstep.launch.warm.order import Order
from lockstep.machine import packets
from lockstep.machine.inherited import mask_of, umask_of
from lockstep.machine.shown_command import show
from lockstep.machine.stood_for import stand_for
from lockstep.standard_streams import flush_output

Task = Callable[[], int]
ROOM = 1 << 16
"""Bytes for another command line and environment, where the kernel shows them; the process was started with as many."""
OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
"""Signals that every Python ignores."""
_F_SETSIG = 10
LOWEST = 64
"""Where descriptors are put that must not be in the way of those of a run."""


@dataclass(frozen=True)
class Made:
    """What the nursery that waits has made, and launchers and nurseries that are forked from it have."""

    modules: tuple[str, ...]
    variables: Mapping[str, str]
    """With which it was started."""
    said: tuple[bytes, bytes]
    """What the imports printed to standard output and error; every new nursery prints it too."""
    of_launchers: tuple[str, ...] = ()
    """Other people's modules that only launchers import; a nursery of a cold start has none of them."""


def size_of(words: Iterable[str], variables: Mapping[str, str]) -> int:
    """How many bytes the kernel would show."""
    texts = [*words, *(f"{name}={value}" for name, value in variables.items())]
    return sum(len(os.fsencode(text)) + 1 for text in texts)


def stand_in(order: Order, descriptors: Sequence[int], end: socket.socket, peer: int, made: Made) -> Task:
    """Become the launcher up to the moment at which it begins; the task is the rest, or that of the nursery beside it.

    Args:
        order: the run.
        descriptors: the run's, as `order.targets` numbers them, its working directory, the pipe that ends with its command.
        end: the connection to the command.
        peer: the command's process.
        made: what is imported.
    """
    os.setsid()
    *given, folder, tie = descriptors
    os.fchdir(folder)
    os.close(folder)
    end, tie = _place(order.targets, given, end, tie)
    _die_with(tie)
    os.umask(umask_of(peer))
    for number in (mask_of(peer, "SigIgn") & signal.valid_signals()) - OF_PYTHON:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask_of(peer, "SigBlk") & signal.valid_signals())
    stand_for(peer)
    own_path = list(sys.path)
    _look_like(order.command, order.variables)
    sys.path[:] = order.path
    sys.argv[:] = order.argv
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    packets.send(end, "ready", os.getpid(), descriptors=[own := os.pidfd_open(os.getpid())])
    os.close(own)
    spare = os.fork()
    if not spare:
        for one in (mine, end):
            one.close()
        os.close(tie)
        sys.path[:] = own_path
        return _spare(theirs, made)
    theirs.close()
    Path("/proc/self/comm").write_bytes(Path(f"/proc/{peer}/comm").read_bytes().removesuffix(b"\n"))
    keep_spare(Spare(spare, mine, made.modules, {name: made.variables[name] for name in READ_ONCE}))
    if packets.receive(end)[0] != "go":
        os._exit(1)  # the command has not waited
    return partial(_launch, end)


def _place(targets: Sequence[int], given: Sequence[int], end: socket.socket, tie: int) -> tuple[socket.socket, int]:
    """Give the run's descriptors their numbers; the two others get numbers above."""
    base = max(LOWEST, *(target + 1 for target in targets))
    lifted = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, base) for one in (*given, end.fileno(), tie)]
    end.close()
    for one in (*given, tie):
        os.close(one)
    for target, descriptor in zip(targets, lifted, strict=False):
        os.dup2(descriptor, target)
        os.close(descriptor)
    return socket.socket(fileno=lifted[-2]), lifted[-1]


def _die_with(tie: int) -> None:
    """Get SIGKILL from the kernel when the other end of a pipe, on which nothing is ever written, closes."""
    fcntl.fcntl(tie, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(tie, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(tie, fcntl.F_SETFL, fcntl.fcntl(tie, fcntl.F_GETFL) | fcntl.FASYNC)
    if select.select([tie], [], [], 0)[0]:  # it closed before
        os._exit(1)


def _look_like(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have a program's variables and standard streams, and let the kernel show its command line and environment."""
    os.environ.clear()
    os.environ.update(variables)  # copies: nothing looks at the memory any more that the kernel shows
    show(words, variables)
    sys.orig_argv[:] = words
    tempfile.tempdir = None  # it may be another one now
    importlib.invalidate_caches()  # folders are looked through anew, as by a new interpreter
    _open_streams()
    gc.enable()


def _open_streams() -> None:
    """Make sys.stdin, sys.stdout and sys.stderr anew, as Python makes them at its start for what is open there."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        old = getattr(sys, f"__{name}__")
        is_raw = mode == "w" and old.write_through  # PYTHONUNBUFFERED
        raw = io.FileIO(number, mode, closefd=False)
        raw.name = f"<{name}>"
        binary: Any = raw if is_raw else io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
        lines = not is_raw and (name == "stderr" or os.isatty(number))
        new = io.TextIOWrapper(binary, old.encoding, old.errors, "\n", line_buffering=lines, write_through=bool(is_raw))
        new.mode = mode  # type: ignore[misc]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _launch(end: socket.socket) -> NoReturn:
    """Run the command; end without taking torch apart, which no launcher has."""
    try:
        importlib.import_module("lockstep.cli.main").main()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # noqa: SLF001 - what the interpreter's end calls
    flush_output()
    with suppress(OSError):
        packets.send(end, "code", code & 0xFF)
    os._exit(code & 0xFF)


def _spare(end: socket.socket, made: Made) -> Task:
    """Become the nursery when the launcher wants one."""
    word, told, descriptors = packets.receive(end)
    if word != "be":
        os._exit(0)  # it wanted none
    end.close()
    words, variables = told
    words[4] = str(descriptors[0])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for target, text in zip((1, 2), made.said, strict=True):
        with suppress(OSError):
            os.write(target, text)
    for name in made.of_launchers:
        sys.modules.pop(name, None)
    _look_like(words, variables)
    sys.argv[:] = [words[3], *words[4:]]
    task: Task = importlib.import_module("lockstep.launch.nursery.process").main
    return task
