"""Which start of its ranks a run is at, when the launcher starts all of them again after one was lost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Restart:
    """One start of all ranks, in the words of torchrun."""

    number: int = 0
    """How often all ranks were started again before; 0 for the first start."""
    most: int = 0
    """How often that may happen."""
    metrics_bytes: int = 0
    """How much of metrics.jsonl the ranks before wrote; what of it still counts, the rank that goes on decides."""
