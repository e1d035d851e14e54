"""What the launcher makes for the ranks of a run to meet: a memory without a name, and a reserved port.

The ranks meet in the memory, so nothing listens. The port is for scripts that make a `TCPStore` at MASTER_PORT
themselves: it is bound, so that nothing else gets it, and listens from the first such call on. Then a process serves
there (`store_server`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from types import TracebackType
from typing import Self

from lockstep.errors import UsageError
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.launch.nursery.messages import StartStore

TABLE_BYTES = 64 << 20
"""Room for what ranks tell each other; unwritten pages cost nothing."""


class RunStore:
    """`with RunStore() as store: ...` gives both back; nothing of it has a name that could be left behind."""

    def __init__(self) -> None:
        self.table = _memory_without_a_name()
        os.fchmod(self.table, 0o600)
        os.ftruncate(self.table, TABLE_BYTES)
        # nothing can shrink it under a rank, which would be a SIGBUS there
        fcntl.fcntl(self.table, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # a store that a script serves there itself, outside the ranks, still gets the port
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._serves = False

    @property
    def descriptors(self) -> tuple[int, int]:
        """The memory and the port's socket, in the order in which ranks get them."""
        return self.table, self._socket.fileno()

    def serve(self, nursery: NurseryHandle, ranks: int) -> None:
        """Start the server, once, when a script wants a store at MASTER_PORT, where its rank has begun to listen."""
        if not self._serves:
            nursery.send(StartStore(self.port, ranks), (self._socket.fileno(),))
        self._serves = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.table)
        self._socket.close()


def _memory_without_a_name() -> int:
    try:
        return os.memfd_create("lockstep-store", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        raise UsageError(
            f"This system refuses memory without a name (memfd_create: {error.strerror}), in which ranks meet.",
            "Use a seccomp profile for this container that allows the call, or Linux 3.17 or newer.",
        ) from None
