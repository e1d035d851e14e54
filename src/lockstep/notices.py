"""What ranks and programs say on standard error: `lockstep: ...`, through the logger `lockstep`.

A script that wants them elsewhere, or not at all, uses `logging.getLogger("lockstep")`: its level, its handlers.
"""

from __future__ import annotations

import logging
import sys

from lockstep.visible import hung


class _OnStandardError(logging.Handler):
    """Writes to whatever standard error is at the moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"lockstep: {record.getMessage()}", file=sys.stderr)


_LOGGER = logging.getLogger("lockstep")
if _LOGGER.level == logging.NOTSET:
    _LOGGER.setLevel(logging.INFO)
_LOGGER.propagate = False
_LOGGER.addHandler(_OnStandardError())


def say(text: object) -> None:
    """Say something that needs no answer; no control character in it acts on a terminal."""
    _LOGGER.disabled = False  # logging.config disables what exists already, which nobody means for these
    _LOGGER.info("%s", hung(text))
