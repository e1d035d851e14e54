"""What the lines of a run, and the files that its ranks wrote, tell about one fault. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faults.samples import NUM_SAMPLES

_LABELS = "STALLED|slow|LOST|FAILED|went on|error:"
_SAYS = re.compile(
    rf"^(\d\d:\d\d:\d\d )?({_LABELS}) |^(\[rank \d+\] )?samebits: |Error\b|Exception|exitcode|Signal \d|terminate called"
)
_NAMES_RANK = re.compile(r"\b[Rr]ank 1\b|\[rank1\]|rank\s*: 1\b")
_NAMES_LINE = re.compile(
    r"\b[Rr]ank 1\b[^;]*\.py:\d+|\[rank1\].*\.py\", line \d+|^(\d\d:\d\d:\d\d )?  where +.*\.py:\d+"
)
"""In the sentence, in a traceback of rank 1, or below the line that names it."""


@dataclass(frozen=True)
class Said:
    """A line that a launcher wrote, and when."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Notes:
    """What ranks noted: at which time each ended a step, with which samples, and the bits at the end."""

    steps: Sequence[tuple[float, int]]
    """Of rank 0."""
    samples: Mapping[tuple[int, int], Sequence[int]]
    """By step and rank; of what was computed twice, by the last process."""
    bits: str

    @classmethod
    def read(cls, texts: Mapping[int, str]) -> Notes:
        """From the files of the ranks, by rank."""
        steps: list[tuple[float, int]] = []
        samples: dict[tuple[int, int], Sequence[int]] = {}
        bits = ""
        for rank, text in texts.items():
            used: dict[int, tuple[str, list[int]]] = {}
            for line in text.splitlines():
                at, pid, what, *words = line.split()
                if what == "step" and rank == 0:
                    steps.append((float(at), int(words[0])))
                if what == "bits":
                    bits = words[0]
                if what == "samples":
                    step, numbers = int(words[0]), list(map(int, words[1:]))
                    before = used.get(step, ("", []))
                    used[step] = pid, (before[1] if before[0] == pid else []) + numbers
            samples |= {(step, rank): numbers for step, (_, numbers) in used.items()}
        return cls(steps, samples, bits)

    @property
    def each_once(self) -> bool:
        """Whether every epoch's steps used every sample once."""
        used = Counter(number for numbers in self.samples.values() for number in numbers)
        return len(used) == NUM_SAMPLES and len(set(used.values())) == 1

    @property
    def computed_again(self) -> int:
        """Steps that rank 0 ended a second time."""
        return len(self.steps) - len({step for _, step in self.steps})

    def next_step_s(self, fired_s: float, step: int) -> float | None:
        """When rank 0 ended a step that it had not ended before; None if it did not."""
        return min((at_s for at_s, number in self.steps if at_s > fired_s and number >= step), default=None)


@dataclass(frozen=True)
class Outcome:
    """One fault on one side."""

    title: str
    goal: str
    side: str
    ranks: int
    said: str
    """The first sentence about it, or what the launcher's end looked like."""
    said_after_s: float | None
    names_rank: bool
    names_line: bool
    recovered_after_s: float | None
    lost_steps: int | None
    samples_once: bool | None
    same_bits: bool | None
    exit_code: int | None
    """None: it did not end and was ended from here."""
    left: tuple[str, ...]
    """Processes, shared memory and temporary files that were there afterwards."""
    trouble: str = ""
    """Why this shows nothing: the fault did not happen, for example."""


def first_said(lines: Sequence[Said], fired_s: float) -> Said | None:
    """The first line about a fault."""
    return next((line for line in lines if line.at_s >= fired_s and _SAYS.search(line.text)), None)


def names(lines: Sequence[Said], fired_s: float) -> tuple[bool, bool]:
    """Whether rank 1 is named, and a line of its script; in whatever was said afterwards."""
    after = [line.text for line in lines if line.at_s >= fired_s]
    return any(map(_NAMES_RANK.search, after)), any(map(_NAMES_LINE.search, after))
