"""Files of a run folder that only their owner can read, whatever the umask is."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write atomically, with mode 0600: a reader sees the whole text or the one before.

    Raises:
        OSError: when it cannot be written; nothing is left of the attempt.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
