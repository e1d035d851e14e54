"""The line of the user's script that called into lockstep. Costs about half a microsecond."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parents[1])
_PASSED_OVER = (PACKAGE, contextlib.__file__)


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside of this package (and of torch)."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PASSED_OVER) or "/torch/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def frames() -> Iterator[tuple[str, int]]:
    """File and line of every frame of the caller's thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def where() -> str:
    """`file:line` of the caller, the file without its folder."""
    file, line = caller()
    return f"{file.rpartition('/')[2]}:{line}"
