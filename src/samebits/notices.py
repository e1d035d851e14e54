"""Notices of ranks and programs on standard error: `samebits: ...`, through the logger `samebits`.

A script redirects or silences them through the level and the handlers of `logging.getLogger("samebits")`. Where standard
error cannot be written (closed, a full disk), what was to be said is dropped: no run ends for a notice.
"""

from __future__ import annotations

import logging

from samebits.machine.visible import hung, write_error


class _OnStandardError(logging.Handler):
    """A handler that writes to whatever `sys.stderr` is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        write_error(f"samebits: {record.getMessage()}")


_LOGGER = logging.getLogger("samebits")
if _LOGGER.level == logging.NOTSET:
    _LOGGER.setLevel(logging.INFO)
_LOGGER.propagate = False
_LOGGER.addHandler(_OnStandardError())


def say(text: object) -> None:
    """Print a notice; no control character in it acts on a terminal."""
    _LOGGER.disabled = False  # logging.config disables existing loggers, which nobody means for this one
    _LOGGER.info("%s", hung(text))
