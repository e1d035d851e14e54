"""What the pretended devices of this process were asked to do, while a test looks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import torch


class Counts(Counter[str]):
    """Numbers by what was done: "wait: item", "kernel: mm", "seed"."""

    @property
    def waits(self) -> int:
        """How often the host waited for a device."""
        return sum(number for what, number in self.items() if what.startswith("wait: "))

    @property
    def kernels(self) -> int:
        """How many operations were started."""
        return sum(number for what, number in self.items() if what.startswith("kernel: "))

    def __str__(self) -> str:
        return ", ".join(
            f"{number} x {what}" for what, number in sorted(self.items()) if not what.startswith("kernel: ")
        )


def counts_so_far() -> Counts:
    """Since the process began."""
    return Counts(torch.ops.pretend.counts())


@contextlib.contextmanager
def counted() -> Iterator[Counts]:
    """What is done inside; complete at the end."""
    before, counts = counts_so_far(), Counts()
    yield counts
    counts.update(counts_so_far())
    counts.subtract(before)
