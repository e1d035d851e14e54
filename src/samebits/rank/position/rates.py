"""The rates of the last steps, kept through restarts: a step that is computed again must have those of its first time.

A state has the rates of its own place. What sets them afterwards (a scheduler, a formula over a variable) may have begun
anew with the script, and trains at a thousandth of the rate without a word. Where steps are computed again, that shows.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from samebits.errors import UsageError

STEPS, CALLS = 64, 4
"""How many of the last steps are kept, and how many calls of `optimizer.step` of each."""
SLOT = struct.Struct("<qdQ")
"""Step, the rate of the first group, a digest of all; written by the first time of a step."""
MASK = (1 << 64) - 1
SIZE = STEPS * CALLS * SLOT.size

_opened = itertools.count(1)


class Rates:
    """Those of one run on rank 0. Until `open` nothing is kept."""

    def __init__(self) -> None:
        self._slots: mmap.mmap | None = None
        self.taken: list[float] | None = None
        """Those of the updates since somebody has emptied it; None where nobody asks."""
        self._step = self._call = 0

    def open(self, folder: Path) -> None:
        """Keep them in a file of the run folder, which a restart of the ranks finds there. Without room, none are kept."""
        try:
            descriptor = os.open(folder / f"rates-{next(_opened)}", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            try:
                # As for journals: a page that finds no room later would end the rank by SIGBUS.
                os.posix_fallocate(descriptor, 0, SIZE)
                self._slots = mmap.mmap(descriptor, SIZE)
            finally:
                os.close(descriptor)
        except OSError:
            self._slots = None

    def check(self, step: int, groups: Sequence[dict[str, Any]]) -> None:
        """An optimizer makes its step inside `step`.

        Raises:
            UsageError: when a start before this one made it with other rates.
        """
        if self.taken is not None:
            self.taken += map(_rate_of, groups)
        if self._slots is None:
            return
        self._call = self._call + 1 if step == self._step else 0
        self._step = step
        if self._call >= CALLS:
            return
        rates = (*[one["lr"] if type(one.get("lr")) is float else _rate_of(one) for one in groups],)
        digest = hash(rates) & MASK
        first, at = rates[0] if rates else 0.0, (step % STEPS * CALLS + self._call) * SLOT.size
        before, rate, theirs = SLOT.unpack_from(self._slots, at)
        if before != step:
            SLOT.pack_into(self._slots, at, step, first, digest)
        elif theirs != digest:
            which = f"{first:g}, not {rate:g}" if first != rate else "another one in a later group"
            raise UsageError(
                f"Step {step} is computed again with another rate than the first time: {which}.",
                "Let a scheduler of the prepared optimizer set it, keep what it follows from in run.state, or begin anew after "
                "a loss: --recover exact.",
            )


def _rate_of(group: dict[str, Any]) -> float:
    """-1 for one on a GPU, which a step does not wait for."""
    rate = group.get("lr", 0.0)
    if isinstance(rate, Tensor):
        return rate.item() if rate.device.type == "cpu" else -1.0
    return float(rate)
