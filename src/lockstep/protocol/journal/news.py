"""What a rank tells the launcher at once, through a pipe, before its journal and its exit say it.

One JSON object per line, short enough for a pipe to take it whole.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from lockstep.protocol.journal.failure import Failure, decode_failure


class Event(StrEnum):
    """What has happened."""

    JOINED = "joined"
    """The script was in a group of ranks that it made in its own way."""
    MET = "met"
    """The script's ranks have met through the run."""
    STORE = "store"
    """The script wants a store at the run's port."""
    LEAVING = "leaving"
    """The script has ended, by `sys.exit` or at its end, and the process has not."""
    FAILED = "failed"
    KEEPS = "keeps"
    """From here on the rank takes a last snapshot if another one is lost."""
    KEPT = "kept"
    """Another rank was lost, and it has taken one. The code: 1 if it will not."""


@dataclass(frozen=True)
class News:
    """One line."""

    rank: int
    event: Event
    code: int = 0
    """The exit code, for LEAVING."""
    place: str = ""
    """The line of `sys.exit`, for LEAVING: `train.py:31`; empty at the end of the script."""
    time_ns: int = 0
    failure: Failure | None = field(default=None)
    """The failure, shortened, for FAILED when its record could not be written."""

    def tell(self, pipe: int) -> None:
        """Write it; it does not matter if the launcher is gone."""
        with suppress(OSError):
            os.write(pipe, json.dumps(asdict(self)).encode() + b"\n")


def read_news(line: bytes) -> News:
    """Read what a rank told."""
    told: dict[str, Any] = json.loads(line)
    return News(**{**told, "event": Event(told["event"]), "failure": decode_failure(told["failure"])})
