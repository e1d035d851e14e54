"""How often a snapshot is taken, and whether there is room for one. Pure: measured times and sizes in, a decision out.

A snapshot costs the time for which the step stands still, and the processor time of the process that writes: in a run
that uses all cores, every rank waits for the one that gives them to it.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.01
"""Of the run's time, what snapshots may cost."""
FIRST_S = 2.0
"""After how much work the first one is taken, before anything is measured."""
FIRST_STEPS = 20
"""Where a state on the disk comes within so many steps, it is the first one."""
COPIES = 3
"""Copies of the state at one moment, at most: that being written from, that being written, and the one before."""
MOST_OF_MEMORY = 0.5
"""Of the memory that is available, what a snapshot may take more: the rest is the run's own."""


def steps_between(cost_s: float, step_s: float) -> int:
    """Every how many steps a snapshot may be taken that costs `cost_s`, where a step takes `step_s`."""
    return max(1, -(-int(cost_s * 1e9) // max(int(step_s * SHARE * 1e9), 1)))


@dataclass
class Pace:
    """When the next one is due.

    Args:
        steps: every so many steps; 0: as often as costs `SHARE` of the time.
        step: the run's step now.
        now_s: a clock, here and below.
    """

    steps: int
    step: int
    now_s: float
    cost_s: float = 0.0
    """Of the newest one; 0.0 before the first."""
    waits: bool = False
    """Whether the first one is to be a state on the disk."""

    def is_due(self, step: int, now_s: float) -> bool:
        """Whether to take one after `step`, which has begun."""
        made = step - self.step
        if made < 1 or self.steps:
            return made >= max(self.steps, 1)
        if not self.cost_s:
            return not self.waits and now_s - self.now_s >= FIRST_S
        return made >= steps_between(self.cost_s, (now_s - self.now_s) / made)

    def took(self, step: int, now_s: float, stall_s: float) -> None:
        """One was taken after `step`, or refused, or is on the disk; the step stood still for `stall_s`. Its writing is not measured yet."""
        self.step, self.now_s, self.cost_s = step, now_s, max(self.cost_s, stall_s)


def no_room(state_bytes: int, shared_bytes: int, available_bytes: int) -> str:
    """Why a state of this size is not kept; empty when it fits.

    Args:
        state_bytes: one copy of it.
        shared_bytes: what is free in the file system of shared memory.
        available_bytes: what processes may still use.
    """
    needed = COPIES * state_bytes
    if (COPIES - 1) * state_bytes > shared_bytes:
        return f"shared memory has {_size(shared_bytes)} free, and a state has {_size(state_bytes)}"
    if needed > available_bytes * MOST_OF_MEMORY:
        return (
            f"{_size(available_bytes)} of memory are available, and {COPIES} copies of the state need {_size(needed)}"
        )
    return ""


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
