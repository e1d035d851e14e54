"""The nursery: a process that imports torch once and forks every rank from there, in tens of milliseconds.

`python -P -m samebits.rank.start.nursery SOCKET MODULES LAUNCHER`. It has its own session (Ctrl-C reaches only the
launcher), adopts every orphan below it, and reports every exit. When the launcher ends, however it died, the socket
shows it, and the nursery kills all its descendants and ends; if it was stopped, the kernel lets it continue.

A forked child leaves the loop by returning to the top level, so it ends like any interpreter: exit handlers, threads,
buffered output.

Runs in: the nursery, a process beside the launcher; `serve_store` in a child of it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from samebits.machine.leftovers import (
    MARKER,
    cleans_up,
    descendants,
    kill,
    remove_left_folders,
    remove_shared_memory,
    remove_socket_folder,
    remove_unmarked_group_files,
)
from samebits.machine.private_view import PrivateView, make_view
from samebits.machine.processes import (
    adopt_orphans,
    die_with_parent,
    interpreter,
    interpreter_options,
    set_parent_death_signal,
)
from samebits.protocol.nursery_messages import (
    Broken,
    Channel,
    ChannelClosed,
    Exited,
    MakeView,
    NotSpawned,
    Ready,
    Signal,
    Signalled,
    Spawn,
    Spawned,
    StartStore,
    Sweep,
    Swept,
    ViewMade,
)
from samebits.protocol.rank_task import RankTask, apply_variables, read_task
from samebits.rank.start.entrance import run_rank

Task = Callable[[], int]
"""What a forked child does; its result is the exit code."""
CLEANERS_GRACE_S = 0.5
"""How long descendants that remove shared memory may take once all others are gone."""
STORE = -1
"""The key of the store among the children; ranks have their numbers."""


class Nursery:
    """The loop and its children."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._children: dict[int, int] = {}
        """Rank (or STORE) by process."""
        self._known: set[int] = set()
        """Descendants that were stopped or reaped here, loader workers too: the sweep removes their shared memory."""
        self._looked = False
        self._view: PrivateView | None = None
        """Where the ranks of the current run see files, if not as they are."""
        self._runs_in_view = 0
        """Those that have not ended."""
        self._wake, self._wakened = os.pipe()
        os.set_blocking(self._wakened, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # SLURM may send it to every process of a job; only the launcher's counts.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakened, warn_on_full_buffer=False)

    def run(self) -> Task | None:
        """Serve the launcher until it is gone; in a forked child, return the child's task instead."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            try:
                self._reap()
                task = self._serve() if self._channel.fileno() in ready else None
            except ChannelClosed:
                self._sweep()
                return None
            if task is not None:
                return task

    def _serve(self) -> Task | None:
        message, descriptors = self._channel.receive()
        task: Task | None = None
        match message:
            case MakeView():
                self._make_view(message)
            case Spawn():
                task = self._spawn(message, descriptors)
            case StartStore():
                task = self._store(message, descriptors)
            case Signal():
                self._signal(message)
            case Sweep():
                self._channel.send(Swept(self._sweep()))
        if task is None:
            for descriptor in descriptors:
                os.close(descriptor)
        return task

    def _make_view(self, message: MakeView) -> None:
        self._close_view()
        report, self._view = make_view(Path(message.folder))
        self._runs_in_view = message.num_runs
        self._channel.send(ViewMade(report.problem, report.real))

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()
        self._view = None

    def _spawn(self, message: Spawn, descriptors: list[int]) -> Task | None:
        parent, (order, stdin, stdout, stderr, news, *place) = os.getpid(), descriptors
        process = self._fork(f"rank {message.rank}")
        if process is None:
            return None
        if process:
            self._children[process] = message.rank
            self._channel.send(Spawned(message.rank, process))
            return None
        self._leave()
        for target, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, target)
            os.close(descriptor)
        request = read_task(order)
        if self._view is not None:
            self._view.join()
        if request.folder != str(Path.cwd()):
            os.chdir(request.folder)
        if message.spawns:
            _become_interpreter(request, (order, news, *place), parent)
        os.close(order)
        return partial(run_rank, request, news, parent, place)

    def _store(self, message: StartStore, descriptors: list[int]) -> Task | None:
        parent = os.getpid()
        process = self._fork("the store at MASTER_PORT")
        if process is None:
            return None
        if process:
            self._children[process] = STORE
            return None
        self._leave()
        return partial(serve_store, descriptors[0], message.port, message.world_size, parent)

    def _fork(self, what: str) -> int | None:
        """As `os.fork`; None where the kernel makes no process more, which is reported to the launcher."""
        try:
            return os.fork()
        except OSError as error:
            # There is no memory, or no process more for this user.
            self._channel.send(NotSpawned(what, error.strerror or str(error)))
            return None

    def _leave(self) -> None:
        """In a forked child: give back what belongs to the nursery."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake)
        os.close(self._wakened)
        self._channel.close()
        gc.enable()

    def _signal(self, message: Signal) -> None:
        ranks = set(message.ranks)
        chosen = [process for process, rank in self._children.items() if rank in ranks]
        if not self._looked:
            self._look(chosen if len(chosen) > 1 else [])
        _send(message.number, chosen)
        self._channel.send(Signalled())

    def _look(self, busy: Sequence[int]) -> None:
        """Remember what is below the ranks, once before they end: what a rank itself has reaped is not seen afterwards.

        Ranks that are `busy` (they have lost a peer, say, and all want the cores now) are stopped while this looks.
        """
        self._looked = True
        _send(signal.SIGSTOP, busy)
        self._known.update(descendants(os.getpid()))
        _send(signal.SIGCONT, busy)

    def _reap(self) -> None:
        """Report the ranks that have ended."""
        while True:
            try:
                process, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            self._known.add(process)
            rank = self._children.pop(process, STORE)
            if rank >= 0:
                self._channel.send(_exited(rank, status, used.ru_maxrss << 10))

    def _sweep(self) -> int:
        """Kill every descendant and remove their shared memory; return the number of processes killed."""
        killed: set[int] = set()
        deadline = time.monotonic() + CLEANERS_GRACE_S
        while alive := descendants(os.getpid()):
            # torch's shared-memory manager ends by itself once the others are gone, and removes what they left.
            doomed = [process for process in alive if not cleans_up(process)]
            if not doomed and time.monotonic() > deadline:
                doomed = alive
            killed.update(doomed)
            kill(doomed)
            select.select([], [], [], 0.002)
            with suppress(ChannelClosed):
                self._reap()
        with suppress(ChannelClosed):
            self._reap()
        self._runs_in_view -= 1
        if self._runs_in_view <= 0:
            self._close_view()
        remove_shared_memory(killed | self._known)
        remove_socket_folder(os.environ.get(MARKER, ""))
        remove_unmarked_group_files()
        remove_left_folders()
        self._looked = False
        self._known.clear()
        return len(killed)


def _send(number: int, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _exited(rank: int, status: int, peak_bytes: int) -> Exited:
    by_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + by_signal
    return Exited(rank, code, by_signal, time.monotonic_ns(), peak_bytes)


def _become_interpreter(request: RankTask, handed: Sequence[int], parent: int) -> None:
    """Replace the forked child by a new interpreter with the rank's environment and the descriptors `handed` to it."""
    apply_variables(request.variables)
    for descriptor in handed:
        os.set_inheritable(descriptor, True)
    arguments = ["-P", "-m", "samebits.rank.start.entrance", str(parent), *map(str, handed)]
    os.execv(interpreter(), [interpreter(), *interpreter_options(), *arguments])  # noqa: S606 - no shell on purpose


def _import_all(modules: list[str]) -> Ready | Broken:
    """Import, without collecting garbage in between: what is made here stays, in every rank."""
    # [Note: why a fork is safe]
    # The nursery has one thread and no CUDA context: it imports and does nothing else. If an import started a thread,
    # `Ready.tasks` says so, and new ranks become fresh interpreters.
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception:  # noqa: BLE001 - an import may raise anything
        return Broken(module, traceback.format_exc()[-30_000:])
    # Frozen objects are left alone by collections in the ranks, so their pages stay shared with the nursery.
    gc.freeze()
    return Ready(tasks=len(list(Path("/proc/self/task").iterdir())))


def serve_store(listener: int, port: int, world_size: int, parent: int) -> int:
    """Serve a `TCPStore` on a listening socket for scripts that make one at MASTER_PORT, until killed or the nursery ends."""
    # [Note: a store on a socket that is already bound]
    # torch's own server listens on all interfaces without a password; given a socket bound to 127.0.0.1 it keeps to that.
    # The launcher has no torch, so a child of the nursery serves, from when a rank first wants it: most scripts need no port.
    die_with_parent(parent)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    distributed = importlib.import_module("torch.distributed")
    server = distributed.TCPStore(
        "127.0.0.1", port, world_size, is_master=True, wait_for_workers=False, master_listen_fd=listener
    )
    while server is not None:
        signal.pause()
    return 0


def main() -> int:
    """Run the nursery, and every child that it forks; only a child returns."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    os.set_inheritable(channel.fileno(), False)
    os.setsid()
    die_with_parent(int(sys.argv[3]))
    adopt_orphans()
    nursery = Nursery(channel)
    task: Task | None = None
    # The launcher may end while this imports: then nobody wants the rest.
    with suppress(ChannelClosed):
        channel.send(_import_all([module for module in sys.argv[2].split(",") if module]))
        set_parent_death_signal(signal.SIGCONT)
        task = nursery.run()
    if task is None:
        os._exit(0)
    return task()


if __name__ == "__main__":
    sys.exit(main())
