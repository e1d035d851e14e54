"""What a training writes down about its steps, there also when its process is killed next."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

NOTES = "KILLS_NOTES"
"""The folder; without it nothing is written."""
PAUSE_S = 0.012
"""At the end of each step: a moment to be killed in, at little load."""


def samples(step: int, numbers: Iterable[int]) -> None:
    """This process computes with these samples in this step."""
    _write("samples", step, *numbers)


def ended(step: int) -> None:
    """This process has ended this step."""
    _write("step", step)
    time.sleep(PAUSE_S)


def _write(*words: object) -> None:
    if folder := os.environ.get(NOTES):
        line = " ".join(map(str, (time.monotonic(), os.getpid(), *words))) + "\n"
        place = f"{folder}/rank-{os.environ.get('RANK', '0')}.txt"
        descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)


@dataclass
class Notes:
    """All that the ranks of a run wrote, over all its starts."""

    ends: list[tuple[float, int, int]] = field(default_factory=list)
    """When, which process, which step."""
    samples: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By step: what any rank computed with in any start."""

    @classmethod
    def read(cls, folder: Path) -> Notes:
        found = cls()
        for file in folder.glob("rank-*.txt"):
            text = file.read_text()
            for line in text[: text.rfind("\n") + 1].splitlines():
                at, pid, kind, step, *numbers = line.split()
                if kind == "step":
                    found.ends.append((float(at), int(pid), int(step)))
                else:
                    found.samples[int(step)].update(map(int, numbers))
        return found

    def last_step(self, until: float) -> int:
        """The newest step that any rank had ended then."""
        return max((step for at, _, step in self.ends if at <= until), default=0)

    def back_s(self, lost_at: float) -> float | None:
        """From a loss to the end of a step that was not ended before, in a process that began afterwards."""
        before = {pid for at, pid, _ in self.ends if at <= lost_at}
        reached = self.last_step(lost_at)
        again = [at for at, pid, step in self.ends if at > lost_at and pid not in before and step > reached]
        return min(again) - lost_at if again else None
