"""When a run saves its state by itself: after a number of steps, a time, or at the end of each epoch. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError
from lockstep.protocol.steps import parse_steps

_TIME = re.compile(r"([1-9][0-9]{0,14}) ?(s|min|h)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Schedule:
    """`500steps`, `10min` or `epoch`."""

    steps: int = 0
    seconds: float = 0.0
    epoch: bool = False

    @classmethod
    def parse(cls, text: Any, option: str = "save_every=") -> Schedule:
        """Read what a person wrote for `option`.

        Raises:
            UsageError: for anything else.
        """
        if text == "epoch":
            return cls(epoch=True)
        if steps := parse_steps(text):
            return cls(steps=steps)
        if isinstance(text, str) and (found := _TIME.fullmatch(text)):
            return cls(seconds=int(found[1]) * _SECONDS[found[2]])
        raise UsageError(f"{option}{text!r} cannot be read.", "Write 500steps, 10min or epoch.")

    def is_due(self, step: int, seconds: float, *, ends_epoch: bool) -> bool:
        """Whether to save after `step`, `seconds` after the last save."""
        if self.epoch:
            return ends_epoch
        return step % self.steps == 0 if self.steps else seconds >= self.seconds
