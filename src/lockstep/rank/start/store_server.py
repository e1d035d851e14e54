"""A `TCPStore` for scripts that make one at MASTER_PORT, on a socket that is already bound to 127.0.0.1.

torch's own server listens on all interfaces without a password; given a listening socket it keeps to that. It is a
separate process, forked from the nursery, because the launcher has no torch, and starts when a rank first wants it; the
ranks of most scripts meet without a port.
"""

from __future__ import annotations

import importlib
import os
import signal

from lockstep.machine.processes import die_with_parent


def serve_store(listener: int, port: int, world_size: int, parent: int) -> int:
    """Serve until killed.

    Args:
        listener: a listening socket; this process takes it over.
        port: its port.
        world_size: the number of ranks.
        parent: the nursery; when it ends, the store ends.
    """
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
