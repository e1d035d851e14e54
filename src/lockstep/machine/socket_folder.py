"""Where the processes of a run keep the sockets through which they hand each other tensors.

multiprocessing makes a folder for each process that sends some, and only that process removes it: one that is killed, as the
loader workers of a killed rank are, leaves it behind. So all below one nursery share a folder, which is removed with them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import process
from pathlib import Path

from lockstep.machine.held_folder import hold_together, remove_unfinished
from lockstep.machine.leftovers import MARKER

SOCKET, LONGEST = "/listener-12345678", 107
"""What multiprocessing adds for a socket; how long the path of one may be (unix(7))."""
SHORT = Path("/tmp")  # noqa: S108 - the folder in it has mode 0700 and a random name

_HELD: list[int] = []
"""Descriptors of folders that nobody may take for left behind."""


def share_socket_folder() -> None:
    """Let this process and those that it starts keep their sockets in the folder of their nursery, if they have one."""
    if marker := os.environ.get(MARKER):
        folder = _folder(marker)
        with suppress(OSError):  # then multiprocessing makes folders of its own
            _HELD.append(hold_together(folder))  # until the last process ends that has inherited it
            process.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]  # noqa: SLF001


def remove_socket_folder(marker: str) -> None:
    """Remove the folder of a nursery whose other processes have ended, if one was made."""
    folder = _folder(marker)
    shutil.rmtree(folder, ignore_errors=True)
    remove_unfinished(folder)


def _folder(marker: str) -> Path:
    """Among temporary files; in /tmp where a socket's path would be too long there, on which multiprocessing would wait forever."""
    name = f"lsmp-{marker[-8:]}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(str(folder)) + len(SOCKET) <= LONGEST else SHORT / name
