"""The versions of torch that the tests ran with, and what a version means for a run.

`make test-torches` runs the tests with each of `TESTED`. A version alone forbids nothing: whether a newer torch and
lockstep fit is tried at the start of a run (`rank/process_group/self_test.py`), and `lockstep doctor` reports the result.
"""

from __future__ import annotations

import re

TESTED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""Oldest first; the oldest is the lower bound in pyproject.toml."""


def minor(version: str) -> tuple[int, int]:
    """(2, 13) for `2.13.0+cpu` and `2.13.0.dev20260401`; (0, 0) for anything but a version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


OLDEST, NEWEST = minor(TESTED[0]), minor(TESTED[-1])


def is_too_old(version: str) -> bool:
    """Whether it is too old for lockstep."""
    return minor(version) < OLDEST


def is_untested(version: str) -> bool:
    """Whether it is newer than everything that the tests ran with."""
    return minor(version) > NEWEST


def tested_range() -> str:
    """`2.11 to 2.15`."""
    return " to ".join(".".join(map(str, each)) for each in (OLDEST, NEWEST))
