"""What samebits says to a script, for a test to look at."""

from __future__ import annotations

import logging


class Heard(logging.Handler):
    """The notices of this process; add it to the logger `samebits`."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.notices.append(record.getMessage())
