"""What happens to whom, and when, as one line of text. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError

KINDS = {
    "kill": "it kills itself, as `kill -9` does",
    "segfault": "it reads from address 0",
    "raise": "it raises RuntimeError",
    "leave": "it calls sys.exit(0)",
    "out-of-memory": "it asks for more memory than there is",
    "killed-for-memory": "the kernel kills it: it allocates above the limit of a control group",
    "stop": "it is stopped, as by SIGSTOP",
    "spin": "a loop in Python that never ends",
    "hold-gil": "a loop in C that never ends and keeps the GIL",
    "sleep": "time.sleep, for seconds=3600",
    "deadlock": "it takes a lock twice",
    "dead-thread": "a thread raises, and it waits for what the thread would have put into a queue",
    "file-lock": "it waits for a file lock that nobody releases",
    "full-pipe": "it writes into a pipe that nobody reads",
    "input": "it calls input()",
    "blocked": "it sleeps in the kernel, where no signal but SIGKILL wakes it (state D)",
    "throttle": "a control group gives it 5 % of a core, from then on",
    "slow": "it sleeps for seconds=0.05 in each step, from then on",
    "mismatch": "it calls all_reduce of three float64 numbers in torch.distributed's default group",
    "skip": "the script leaves the step out: `at` returns 'skip'",
    "break": "the script leaves its loop: `at` returns 'break'",
    "evaluate": "the script does something on this rank only that takes all: `at` returns 'evaluate'",
    "kill-worker": "a loader worker of the rank is killed",
    "stop-worker": "a loader worker of the rank is stopped",
    "disk-full": "the file system of path=FOLDER is filled; it must have less than 1 GiB of room",
    "lo-down": "the loopback interface of its network namespace is taken down",
}
"""What each kind does to the rank or loader worker that comes to it."""
LASTS_S = {"sleep": 3600.0, "slow": 0.05}
"""Kinds that take seconds=, and what they take without it."""
_EXAMPLE = '"stop rank=1 step=5"'


@dataclass(frozen=True)
class Fault:
    """One thing that happens once.

    With `sample`, it happens to the process that fetches this sample of the data set, of whichever rank.
    """

    kind: str
    rank: int | None = None
    step: int | None = None
    sample: int | None = None
    seconds: float | None = None
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """`KIND rank=R step=N`, or `KIND sample=I`; and seconds=S or path=FOLDER for kinds that take them.

        Raises:
            UsageError: for anything else.
        """
        kind, *words = text.split() or [""]
        if kind not in KINDS:
            raise UsageError(f"There is no fault {kind!r}.", f"Choose one of {', '.join(KINDS)}.")
        values: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name not in _TYPES or name in values:
                once = "rank=, step=, sample=, seconds= and path=, each once"
                raise UsageError(f"{word!r} in the fault {text!r} says nothing.", f"Use {once}, as in {_EXAMPLE}.")
            values[name] = value
        found: dict[str, Any] = {name: _value(name, value, text) for name, value in values.items()}
        fault = cls(kind, **found)
        fault._check(text)
        return fault

    def _check(self, text: str) -> None:
        has_place = self.rank is not None and self.step is not None and self.sample is None
        if not has_place and (self.sample is None or self.rank is not None or self.step is not None):
            raise UsageError(
                f"The fault {text!r} does not say where.", f"Name rank= and step=, or sample= alone, as in {_EXAMPLE}."
            )
        if self.seconds is not None and self.kind not in LASTS_S:
            raise UsageError(f"The fault {self.kind!r} has no length.", f"Use seconds= with {' or '.join(LASTS_S)}.")
        if bool(self.path) != (self.kind == "disk-full"):
            raise UsageError(
                f"The fault {text!r}: path= goes with disk-full.", "Use it with disk-full, and only there."
            )

    def __str__(self) -> str:
        record = {name: getattr(self, name) for name in _TYPES}
        return " ".join([self.kind, *(f"{name}={value}" for name, value in record.items() if value not in (None, ""))])


_TYPES = {"rank": int, "step": int, "sample": int, "seconds": float, "path": str}
assert set(_TYPES) == {field.name for field in dataclasses.fields(Fault)} - {"kind"}


def _value(name: str, value: str, text: str) -> int | float | str:
    try:
        found: int | float | str = _TYPES[name](value)
    except ValueError:
        found = -1
    if not isinstance(found, str) and not 0 <= found < float("inf"):
        raise UsageError(
            f"{name}={value} in the fault {text!r} is not a number from 0 on.", f"Write a number, as in {_EXAMPLE}."
        )
    return found


@dataclass(frozen=True)
class Plan:
    """Faults, each of which happens once."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Faults with `;` between them.

        Raises:
            UsageError: for anything that `Fault.parse` refuses.
        """
        return cls(tuple(Fault.parse(part) for part in map(str.strip, text.split(";")) if part))

    def at(self, rank: int, step: int) -> list[tuple[int, Fault]]:
        """What happens to a rank at a step, each with its number in the plan."""
        return [(number, fault) for number, fault in enumerate(self.faults) if (fault.rank, fault.step) == (rank, step)]

    def of_sample(self, index: int) -> list[tuple[int, Fault]]:
        """What happens to the process that fetches a sample."""
        return [(number, fault) for number, fault in enumerate(self.faults) if fault.sample == index]

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))
