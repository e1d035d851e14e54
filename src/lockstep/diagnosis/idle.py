"""Ranks that wait without a note: those of a plain script that meet over Gloo or NCCL.

Such a rank uses no processor time and does not wake up, and its stack ends in a function of torch.distributed, or in a
backward pass, where DistributedDataParallel exchanges without a Python frame. A loop of short steps and pauses uses
hardly more time, but wakes up in each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.diagnosis.scene import Wait
from lockstep.diagnosis.stack import Stack, collective, is_in_backward

LONG_S = 2.0
"""How long a rank must have been idle before its stack is looked at."""
BUSY = 0.03
"""The share of a core up to which a rank counts as idle."""
TICK_S = 0.011
"""The kernel counts in steps of 10 ms, and a rank that waits looks around now and then."""
WAKES_PER_S = 3.0
"""How often a rank that waits may fall asleep anew: a question for its stack, twice a second, wakes it up."""
SETTLED_S = 1.0
"""How long a rank must have been idle before a backward pass counts as waiting."""


@dataclass
class Idleness:
    """Since when one process has used no processor time, and slept on."""

    _seen: tuple[float, float, int] | None = None
    _since_s: float = field(default=0.0)

    def note(self, now_s: float, processor_s: float, sleeps: int = 0) -> float:
        """How long it has been idle.

        Args:
            now_s: the time.
            processor_s: what it has used since it began.
            sleeps: how often its first thread has fallen asleep since it began.
        """
        if self._seen is None:
            self._seen, self._since_s = (now_s, processor_s, sleeps), now_s
        before_s, used_s, slept = self._seen
        if now_s > before_s:
            works = processor_s - used_s > BUSY * (now_s - before_s) + TICK_S
            if works or sleeps - slept > WAKES_PER_S * (now_s - before_s) + 1:
                self._since_s = now_s
            self._seen = now_s, processor_s, sleeps
        return now_s - self._since_s


def wait_of(stack: Stack | None, idle_s: float, script: str) -> Wait | None:
    """The wait of a rank that has been idle for a while; None if it is not one for other ranks.

    Args:
        stack: its newest one, if it could be read.
        idle_s: for how long it has used next to no processor time.
        script: the user's script.
    """
    if stack is None:
        return None
    what = collective(stack.main)
    if not what and is_in_backward(stack.main) and idle_s >= SETTLED_S:
        what = "the backward pass"
    line = stack.in_script(script)
    place = f" ({line.text.partition(' ')[0]})" if line is not None else ""
    return Wait(idle_s, frozenset(), what + place) if what else None
