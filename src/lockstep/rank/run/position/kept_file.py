"""Files that a rank leaves in the run folder: a failed write is told to the launcher, and the training goes on."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.protocol.run_folder import write_private
from lockstep.rank.run.position.step_timer import Ledger


def keep(path: Path, text: str, ledger: Ledger) -> None:
    """Atomically write a file that the run can do without."""
    try:
        write_private(path, text)
    except OSError as error:
        ledger.lost(f"{path.name} cannot be written ({error.strerror})")


def append_line(path: Path, line: str) -> None:
    """Append a line, all of it or nothing. A new file gets mode 0600. One process writes.

    Raises:
        OSError: when it cannot be written; the file still ends with a whole line.
    """
    data = f"{line}\n".encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
