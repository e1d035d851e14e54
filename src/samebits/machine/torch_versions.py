"""The versions of torch: those that the tests ran with, what one means for a run, and what the installed one was built for.

`make test-torches` runs the tests with each of `TESTED`. A version alone forbids nothing: whether a newer torch and
samebits fit is tried at the start of a run (`rank/process_group/self_test.py`), and `samebits doctor` reports the result.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

TESTED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""Oldest first; the oldest is the lower bound in pyproject.toml."""


def release(version: str) -> str:
    """`2.13.0` of `2.13.0+cpu`: builds for GPUs and for CPUs of one release have the same kernels for CPUs."""
    return version.partition("+")[0]


def minor(version: str) -> tuple[int, int]:
    """(2, 13) for `2.13.0+cpu` and `2.13.0.dev20260401`; (0, 0) for anything but a version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


OLDEST, NEWEST = minor(TESTED[0]), minor(TESTED[-1])


def is_too_old(version: str) -> bool:
    """Whether it is too old for samebits."""
    return minor(version) < OLDEST


def is_untested(version: str) -> bool:
    """Whether it is newer than everything that the tests ran with."""
    return minor(version) > NEWEST


def tested_range() -> str:
    """`2.11 to 2.15`."""
    return " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))


UNKNOWN_BUILD = {"cuda": ""}
"""Of a torch that does not say: it may be for GPUs."""


def torch_is_for() -> dict[str, str]:
    """What the installed torch was built for besides CPUs, with versions: `{"cuda": "12.8"}`, by its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return UNKNOWN_BUILD
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return UNKNOWN_BUILD
    return built_for(text)


def built_for(version_file: str) -> dict[str, str]:
    """The same from the text of torch's version.py."""
    found: list[tuple[str, str]] = re.findall(r"^(cuda|hip|rocm|xpu)\b[^=\n]*=\s*(.+?)\s*$", version_file, re.MULTILINE)
    if not found:
        return UNKNOWN_BUILD
    names = {"hip": "rocm"}
    return {names.get(name, name): value.strip("'\"") for name, value in found if value != "None"}
