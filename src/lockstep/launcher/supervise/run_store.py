"""What the launcher makes for the ranks of a run to meet: a memory without a name, or on several nodes a socket to it; and a reserved port.

The ranks meet there, so nothing listens. The port is for scripts that make a `TCPStore` at MASTER_PORT
themselves: it is bound, so that nothing else gets it, and listens from the first such call on. Then a process serves
there (`store_server`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self

from lockstep.errors import UsageError
from lockstep.launcher.nodes.meeting import NodeMeeting
from lockstep.launcher.nursery.handle import NurseryHandle
from lockstep.protocol.nursery.messages import StartStore

TABLE_BYTES = 64 << 20
"""Room for what ranks tell each other; unwritten pages cost nothing."""
CONNECT_S = 5.0


class RunStore:
    """`with RunStore(...) as store: ...` gives all back; nothing of it has a name that could be left behind.

    Args:
        nursery: of the run.
        ranks: on all nodes.
        meeting: where ranks of several nodes meet, taken over; None on one node.
    """

    def __init__(self, nursery: NurseryHandle, ranks: int, meeting: NodeMeeting | None = None) -> None:
        self._nursery, self._num_ranks, self._meeting = nursery, ranks, meeting
        self.table = meeting.bell.fileno() if meeting is not None else _new_table()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # a store that a script serves there itself, outside the ranks, still gets the port
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._serves = False
        if meeting is not None:
            meeting.lead_out(self._connected)

    @property
    def descriptors(self) -> tuple[int, int]:
        """What ranks meet through and the port's socket, in the order in which ranks get them."""
        return self.table, self._socket.fileno()

    def serve(self) -> None:
        """Start the server, once, when a script wants a store at MASTER_PORT, where its rank has begun to listen.

        Of several nodes, the first one's serves all.
        """
        if self._serves:
            return
        self._serves = True
        self._socket.listen()
        if self._meeting is None or not self._meeting.serve(self._socket):
            self._nursery.send(StartStore(self.port, self._num_ranks), (self._socket.fileno(),))

    def _connected(self) -> socket.socket | None:
        """To the server, for a rank of another node."""
        self.serve()
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", self.port), CONNECT_S)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meeting is not None:
            self._meeting.close()
        else:
            os.close(self.table)
        self._socket.close()


def _new_table() -> int:
    table = _memory_without_a_name()
    os.fchmod(table, 0o600)
    os.ftruncate(table, TABLE_BYTES)
    # nothing can shrink it under a rank, which would be a SIGBUS there
    fcntl.fcntl(table, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return table


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
