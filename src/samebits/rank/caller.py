"""The line of the user's script that called into samebits. Costs about half a microsecond."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from typing_extensions import deprecated

from samebits.machine.visible import visible

PACKAGE = str(Path(__file__).parent)
DEPRECATIONS = deprecated.__call__.__code__.co_filename
"""Whose function is called in place of each that torch calls deprecated: all_gather_into_tensor, reduce_scatter_tensor."""
INTEGRATIONS = str(Path(__file__).parents[1] / "integrations")
PASSED_OVER = (f"{PACKAGE}/", f"{INTEGRATIONS}/", contextlib.__file__, DEPRECATIONS)
"""How the names of files that are never the user's begin."""
TORCH = f"{Path(torch.__file__).parent}/"
"""How the names of torch's files begin."""


class _Passed(dict[str, bool]):
    """Whether the frames of a file are passed over, by its name; a step asks thirty times."""

    def __missing__(self, file: str) -> bool:
        self[file] = is_passed = file.startswith((*PASSED_OVER, TORCH))
        return is_passed


_PASSED = _Passed()


def is_passed_over(file: str) -> bool:
    """Whether a file is ours or torch's, never the user's."""
    return _PASSED[file]


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside this package (and of torch)."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame.f_back is not None and _PASSED[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def caller_frame() -> FrameType:
    """The innermost frame outside this package and torch."""
    frame = sys._getframe(1)  # noqa: SLF001 - as above
    while frame.f_back is not None and _PASSED[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def calling_file() -> str:
    """The file of the innermost frame outside this package, torch's or the user's."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() costs milliseconds
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PASSED_OVER):
        frame = frame.f_back
    return frame.f_code.co_filename


def frames() -> Iterator[tuple[str, int]]:
    """File and line of every frame of the caller's thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def where() -> str:
    """`file:line` of the caller, the file without its folder."""
    return short(*caller())


def short(file: str, line: int) -> str:
    """`file:line`, the file without its folder; what is no UTF-8 in it as Python writes it, because others are told."""
    name = file.rpartition("/")[2]
    return f"{name if name.isascii() else visible(name)}:{line}"
