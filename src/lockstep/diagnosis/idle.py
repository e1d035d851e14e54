"""Ranks that wait without a note: those of a plain script that meet over Gloo or NCCL.

Such a rank uses no processor time, and its stack ends in a function of torch.distributed, or in a backward pass, where
DistributedDataParallel exchanges without a Python frame.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.diagnosis.scene import Wait
from lockstep.diagnosis.stack import Stack, collective, is_in_backward

LONG_S = 3.0
"""How long a rank must have been idle before its stack is looked at."""
BUSY = 0.03
"""The share of a core up to which a rank counts as idle."""


@dataclass
class Idleness:
    """Since when one process has used no processor time."""

    _seen: tuple[float, float] | None = None
    _since_s: float = field(default=0.0)

    def note(self, now_s: float, processor_s: float) -> float:
        """How long it has been idle.

        Args:
            now_s: the time.
            processor_s: what it has used since it began.
        """
        if self._seen is None:
            self._seen, self._since_s = (now_s, processor_s), now_s
        before_s, used_s = self._seen
        if now_s > before_s:
            if (processor_s - used_s) / (now_s - before_s) > BUSY:
                self._since_s = now_s
            self._seen = now_s, processor_s
        return now_s - self._since_s


def wait_of(stack: Stack | None, idle_s: float, script: str) -> Wait | None:
    """The wait of a rank that has been idle for a while; None if it is not one for other ranks.

    Args:
        stack: its newest one, if it could be read.
        idle_s: for how long it has used no processor time.
        script: the user's script.
    """
    if stack is None or idle_s < LONG_S:
        return None
    what = collective(stack.main) or ("the backward pass" if is_in_backward(stack.main) else "")
    line = stack.in_script(script)
    place = f" ({line.text.partition(' ')[0]})" if line is not None else ""
    return Wait(idle_s, frozenset(), what + place) if what else None
