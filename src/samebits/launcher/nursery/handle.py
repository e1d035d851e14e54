"""The launcher's end of a nursery: start it, talk to it, end it. One nursery may serve several runs in turn."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from samebits.errors import EnvironmentFailure
from samebits.launcher.nursery.rank_variables import nursery_variables
from samebits.launcher.signals import CaughtSignals
from samebits.machine.clocks import readable
from samebits.machine.leftovers import (
    MARKER,
    ending,
    have_ended,
    kill,
    marked,
    remove_left_folders,
    remove_shared_memory,
    remove_socket_folder,
    remove_unmarked_group_files,
)
from samebits.machine.private_view import ViewReport
from samebits.machine.processes import address_limit, interpreter, interpreter_options
from samebits.protocol.installation import check_import
from samebits.protocol.nursery_messages import (
    Broken,
    ChannelClosed,
    MakeView,
    Message,
    Ready,
    ViewMade,
    channel_pair,
)

END_S = 5.0
"""How long a nursery has to end everything below it and itself."""


class NurseryHandle:
    """A running nursery. `with NurseryHandle(threads) as nursery: ...` ends it and everything below it."""

    def __init__(
        self, threads: int, modules: Sequence[str] = ("torch",), torch_variables: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; it imports `modules` while the caller continues.

        Args:
            threads: OMP_NUM_THREADS of its ranks, which is read when torch is loaded.
            modules: what to import once for all ranks; empty when every rank will be a fresh interpreter.
            torch_variables: further variables that are read when torch is loaded (`kept.torch_variables_of`).
        """
        self.threads = threads
        self.channel, theirs = channel_pair()
        self.marker = f"{os.getpid()}-{os.urandom(8).hex()}"
        self.ready: Ready | None = None
        """Its first message, once received."""
        self._ended = False
        self._environment = dict(os.environ)
        self.torch_variables = dict(torch_variables or {})
        """Those variables; its ranks keep them."""
        theirs.set_inheritable(True)
        launcher = str(os.getpid())
        options = ["-P", "-m", "samebits.rank.start.nursery", str(theirs.fileno()), ",".join(modules), launcher]
        variables = {**os.environ, **nursery_variables(threads, self.marker, os.environ), **self.torch_variables}
        arguments = [interpreter(), *interpreter_options(), *options]
        null = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        self.process = os.posix_spawn(interpreter(), arguments, variables, file_actions=null)
        theirs.close()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> bool:
        """Send; False when the nursery is gone."""
        try:
            self.channel.send(message, descriptors)
        except ChannelClosed:
            return False
        return True

    def make_view(self, folder: Path, num_runs: int = 1) -> ViewReport:
        """Give the ranks of the next runs a private view of the file system; what they write goes to `folder`.

        Call it while no run is under way. The view ends with the last of these runs.

        Raises:
            EnvironmentFailure: when the nursery cannot import what it should, or is gone.
            UsageError: when it has too few addresses to import it.
            SystemExit: at a signal that ends this process, with 128 + its number.
        """
        self.send(MakeView(str(folder), num_runs))
        while True:
            message = self._next_message()
            match message:
                case Broken():
                    raise message.failure
                case Ready():
                    self.ready = message
                case ViewMade():
                    return ViewReport(message.problem, message.real)

    def await_ready(self) -> None:
        """Wait until everything is imported. Raises as `make_view` does."""
        while self.ready is None:
            message = self._next_message()
            if isinstance(message, Broken):
                raise message.failure
            if isinstance(message, Ready):
                self.ready = message

    def _next_message(self) -> Message:
        with CaughtSignals() as signals:
            while not (ready := readable([self.channel.fileno(), signals.fileno()])):
                pass
            if signals.fileno() in ready and (numbers := signals.take()):
                raise SystemExit(128 + numbers[0])
        try:
            return self.channel.receive()[0]
        except ChannelClosed:
            self.check_import()
            raise EnvironmentFailure("The nursery (the parent of all ranks) was killed from outside.") from None

    def check_import(self) -> None:
        """Raise `UsageError` where a limit explains why the nursery, importing torch, has died."""
        check_import(self.ready is not None, address_limit())

    def changed(self, variables: Mapping[str, str]) -> dict[str, str | None]:
        """What has changed in the launcher's environment since the nursery was started; None for what is gone."""
        old = self._environment
        return {
            name: variables.get(name) for name in old.keys() | variables.keys() if old.get(name) != variables.get(name)
        }

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        if not self._ended:
            with suppress(ChildProcessError):
                return os.waitpid(self.process, os.WNOHANG) == (0, 0)
        return False

    def close(self) -> None:
        """End the nursery, and every process of its runs with it."""
        if self._ended:
            return
        self._ended = True
        self.channel.close()
        if self.ready is None:
            kill([self.process])
        with suppress(ProcessLookupError):
            # A stopped nursery notices that the channel is closed only when it continues.
            os.kill(self.process, signal.SIGCONT)
        until = time.monotonic() + END_S
        with suppress(ChildProcessError):
            while os.waitpid(self.process, os.WNOHANG) == (0, 0):
                if time.monotonic() > until:
                    self.kill()
                    self.bury()
                    os.waitpid(self.process, 0)
                    break
                select.select([], [], [], 0.002)

    def kill(self) -> None:
        """End the nursery at once; its ranks end with it, and `bury` ends what they leave."""
        kill([self.process])

    def bury(self, ranks: Iterable[int] = ()) -> None:
        """Kill what carries the marker of a dead nursery, and remove what it leaves, since nobody else will.

        Args:
            ranks: their processes, which the kernel ends with the nursery; a process that ends shows no marker any more.
        """
        ended: set[int] = {self.process, *ranks}
        until = time.monotonic() + END_S
        while (left := marked(MARKER, self.marker)) and time.monotonic() < until:
            ended.update(left)
            kill(left)
            select.select([], [], [], 0.002)
        ended |= ending()
        while not have_ended(ended) and time.monotonic() < until:
            select.select([], [], [], 0.002)
        remove_shared_memory(ended)
        remove_socket_folder(self.marker)
        remove_unmarked_group_files()
        remove_left_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
