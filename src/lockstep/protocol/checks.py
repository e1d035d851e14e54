"""How often ranks compare what all of them hold: a number of steps, or chosen by its size. Pure."""

from __future__ import annotations

from typing import Any

from lockstep.errors import UsageError
from lockstep.protocol.steps import parse_steps

OFF = "off"

MOST_STEPS = 50
"""Damage is found within this many steps."""
LEAST_STEPS = 5
STEP_NS = 100_000
"""What comparing may cost per step: 0.5 % of a step of 20 ms."""
BYTES_PER_NS = 2
"""As measured after a step, with cold caches and another rank that sums at the same time."""
TENSOR_NS = 50_000
"""What a tensor costs besides its bytes, where it is summed by itself."""


def parse_checks(text: Any, option: str = "check_every=") -> int:
    """Read what a person wrote for `option`: after how many steps ranks compare; 0 for `off`.

    Raises:
        UsageError: for anything else.
    """
    if text == OFF:
        return 0
    if steps := parse_steps(text):
        return steps
    raise UsageError(f"{option}{text!r} cannot be read.", "Write 50steps or off.")


def chosen_steps(num_bytes: int, num_tensors: int) -> int:
    """After how many steps ranks compare this much; the least number whose cost per step is below `STEP_NS`, in bounds."""
    cost_ns = num_bytes // BYTES_PER_NS + num_tensors * TENSOR_NS
    return min(max(-(-cost_ns // STEP_NS), LEAST_STEPS), MOST_STEPS)
