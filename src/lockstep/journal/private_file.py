"""Files of a run folder that only their owner can read, whatever the umask is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


def open_private(path: Path, mode: str) -> IO[str]:
    """`open` in text mode; a new file gets mode 0600."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def write_private(path: Path, text: str) -> None:
    """Write atomically: a reader sees the whole text or the one before."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with open_private(temporary, "w") as file:
        file.write(text)
    temporary.rename(path)
