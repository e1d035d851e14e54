"""One thing to measure, and what the command line needs to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.summary import Line


@dataclass(frozen=True)
class Measurement:
    """Measured when it is its turn."""

    label: str
    """What progress says while it runs."""
    measure: Callable[[], list[Line]]
