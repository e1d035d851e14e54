"""Where the processes of a run keep the sockets through which they hand each other tensors.

multiprocessing makes a folder for each process that sends some, and only that process removes it: one that is killed, as the
loader workers of a killed rank are, leaves it behind. So all below one nursery share a folder, which is removed with them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing import process
from pathlib import Path

from lockstep.machine.leftovers import MARKER


def share_socket_folder() -> None:
    """Let this process and those that it starts keep their sockets in the folder of their nursery, if they have one."""
    if marker := os.environ.get(MARKER):
        folder = _folder(marker)
        folder.mkdir(mode=0o700, exist_ok=True)
        process.current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]  # noqa: SLF001


def remove_socket_folder(marker: str) -> None:
    """Remove the folder of a nursery whose other processes have ended, if one was made."""
    shutil.rmtree(_folder(marker), ignore_errors=True)


def _folder(marker: str) -> Path:
    """As long as multiprocessing's own: the path of a socket has 107 characters at most."""
    return Path(tempfile.gettempdir()) / f"pymp-{marker[-8:]}"
