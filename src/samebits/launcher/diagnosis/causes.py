"""Why a rank that others wait for does not come, where its stack or the kernel's counters tell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from samebits.launcher.diagnosis.movement import Sample
from samebits.launcher.diagnosis.stack import Frame, Stack
from samebits.machine.effort import HeldBack

MOST = 0.75
"""The share of samples that must show a call of the kernel that cannot be interrupted."""
MUCH = 0.2
"""The share of the time from which something keeps a rank from running."""


class Why(StrEnum):
    KERNEL = "kernel"
    """In a call that cannot be interrupted (state D): a disk, a network mount."""
    THREAD = "thread"
    """Another of its threads has the interpreter's lock."""
    LIBRARY = "library"
    """It is inside a library that the script has called."""
    THROTTLED = "throttled"
    CROWDED = "crowded"
    """Other processes have its cores."""


@dataclass(frozen=True)
class Cause:
    why: Why
    text: str
    """Behind `rank 3 is at train.py:41: it `: `is inside wait (subprocess.py:1264)`."""
    who: str = "it"
    """Whom the text is about; `its loader worker`."""

    @property
    def sentence(self) -> str:
        """`it is inside wait (subprocess.py:1264)`."""
        return f"{self.who} {self.text}"


_CALLS = (
    (r"\bsleep\(", "sleeps, and the others wait as long: sleep on all ranks, or allow it with --stall-after SECONDS"),
    (r"\binput\(", "waits for a person: ask before the run, or give the answer as an argument"),
    (r"\.(acquire|lock)\(|\bflock\(|\bwith \w*lock\b", "waits for a lock: give it a time limit, and see who holds it"),
    (
        r"\.(wait|communicate)\(|\.join\((timeout=.*|[\d.]*)\)|\bsubprocess\.",
        "waits for a child or a thread: give it timeout=, and see what that does",
    ),
    (r"\brequests\.|\burlopen\(|\.recv\(|\.connect\(", "waits for the network: give it timeout="),
    (r"^while\b", "is a loop that has not ended: all ranks must leave it at the same step"),
)
"""Calls that keep a rank, and what to do; of a line of the script."""


def call_help(source: str) -> str:
    """What to do where a rank is kept by this line: `time.sleep(12)` sleeps, ...; empty where the line does not tell."""
    return next((f"`{source}` {text}." for pattern, text in _CALLS if re.search(pattern, source)), "")


def cause(samples: Sequence[Sample], line: Frame | None = None) -> Cause | None:
    """The cause that the samples of a rank show; None if they show none.

    Args:
        samples: oldest first.
        line: where the rank is in the script, if that is known.
    """
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    if last.letter == "D" and sum(sample.letter == "D" for sample in samples) >= MOST * len(samples):
        return Cause(Why.KERNEL, "is in a call of the kernel that cannot be interrupted (state D): a disk, or a mount")
    kept = None
    if first.held_back is not None and last.held_back is not None:
        kept = kept_from_running(first.held_back, last.held_back, last.at_s - first.at_s)
    if last.stack is None or (kept is not None and kept.why is not Why.CROWDED):
        return kept
    return _by_stack(last.stack, line) or kept


def _by_stack(stack: Stack, line: Frame | None) -> Cause | None:
    for thread in stack.threads[1:]:
        if thread.holds_gil and thread.frames:
            name = f" ({thread.name})" if thread.name else ""
            place = thread.frames[0].text
            return Cause(Why.THREAD, f"waits for another thread{name}, which holds the interpreter's lock at {place}")
    if line is None or line not in stack.main[1:]:
        return None
    inner = stack.main[0]
    return Cause(Why.LIBRARY, f"is inside {inner.function} ({Path(inner.file).name}:{inner.line})")


def kept_from_running(before: HeldBack, now: HeldBack, seconds: float) -> Cause | None:
    """What kept a rank from running between two looks, if it took much of the time."""
    seconds = max(seconds, 1e-3)
    throttled = min((now.throttled_s - before.throttled_s) / seconds, 1.0)
    if now.quota and throttled >= MUCH:
        return Cause(
            Why.THROTTLED,
            f"is held back by its control group, {throttled:.0%} of the time: it may use {now.quota:g} cores (cpu.max)",
        )
    delayed = min((now.run_delay_s - before.run_delay_s) / seconds, 1.0)
    if delayed >= MUCH:
        return Cause(Why.CROWDED, f"has no core {delayed:.0%} of the time: other processes have them")
    return None
