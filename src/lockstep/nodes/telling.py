"""What a link tells its launcher: lines of JSON, written by a thread of their own, so that nobody else waits while the launcher is stopped."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self


class Telling:
    """`with Telling(launcher) as telling: ...` ends when all is written, or the launcher has closed its end.

    Args:
        launcher: a stream socket.
    """

    def __init__(self, launcher: socket.socket) -> None:
        self._launcher = launcher
        self._told: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write)

    def tell(self, told: dict[str, Any]) -> None:
        """Tell the launcher something, after all that it was told before. Returns at once."""
        self._told.put(told)

    def _write(self) -> None:
        with suppress(OSError):
            while (told := self._told.get()) is not None:
                self._launcher.sendall(json.dumps(told).encode() + b"\n")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told.put(None)
        self._thread.join()
