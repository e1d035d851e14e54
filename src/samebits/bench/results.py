"""What `bench` measured, as plain values: shown by `report`, drawn by `picture`, printed by `--json`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any

from samebits.bench.measures import PARTS, Round, Spread, spread
from samebits.bench.plan import Amount, Configuration

REFERENCE, SAME, DIFFERS, AS_TORCH, NOT_BY_DESIGN, OTHER_THREADS, NO_REFERENCE = (
    "reference",
    "same bits",
    "differs",
    "as torch does",
    "not by design",
    "other threads",
    "no reference",
)
CLEAR = 0.02
"""A lead of less than this does not count."""


@dataclass
class Measured:
    """One configuration and its rounds."""

    configuration: Configuration
    rounds: list[Round] = field(default_factory=list)
    failed: str = ""
    """Why it could not be measured: one sentence."""

    @property
    def title(self) -> str:
        return self.configuration.title

    @property
    def lanes(self) -> int:
        """As the ranks had them."""
        return self.rounds[0].lanes if self.rounds else self.configuration.lanes or 0

    @property
    def threads(self) -> int:
        """Per rank, as the ranks had them."""
        return self.rounds[0].threads if self.rounds else self.configuration.threads

    @property
    def speed(self) -> Spread:
        """Samples per second, over all steps of all rounds."""
        return spread([step.samples / step.seconds for one in self.rounds for step in one.steps])

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return median(step.seconds for one in self.rounds for step in one.steps)

    def shares(self) -> dict[str, float]:
        """Parts of the time of all steps; they add up to 1."""
        total = {part: sum(step.parts[part] for one in self.rounds for step in one.steps) for part in PARTS}
        whole = sum(total.values()) or 1.0
        return {part: seconds / whole for part, seconds in total.items()}

    @property
    def memory_per_rank(self) -> int:
        """Bytes: of the rank that takes most, the mean of the rounds' peaks of resident memory."""
        return round(mean(max(one.memory.peak_rss) for one in self.rounds))

    @property
    def memory_of_node(self) -> int:
        """Bytes: all ranks together at the end of a run, shared memory counted once; the mean over the rounds."""
        return round(mean(one.memory.node for one in self.rounds))

    @property
    def cuda_peak(self) -> int | None:
        """Bytes that torch allocated on the device of the rank with the most; None without devices."""
        peaks = [max(one.memory.cuda_peak) for one in self.rounds if one.memory.cuda_peak]
        return max(peaks) if peaks else None

    @property
    def bits(self) -> str:
        """The hash of the model; empty when unknown, or when the rounds differ among themselves."""
        found = {one.bits for one in self.rounds}
        return found.pop() if len(found) == 1 else ""


def ratio(one: Measured, other: Measured) -> Spread:
    """The speed of one divided by the other's, within each round that both have; both have at least one."""
    pairs = zip(one.rounds, other.rounds, strict=False)
    return spread([mine.samples_per_s / theirs.samples_per_s for mine, theirs in pairs])


def is_faster(one: Measured, other: Measured) -> bool:
    """Whether one is faster by more than the rounds vary.

    The quartiles of their ratio must be above 1, and its middle above 1 + `CLEAR`. A single round does not show how
    much rounds vary; there the lead must also exceed how much the steps vary. Invariant: never true both ways.
    """
    found = ratio(one, other)
    wander = max(one.speed.relative, other.speed.relative) if min(len(one.rounds), len(other.rounds)) == 1 else 0.0
    return found.low > 1.0 and found.median > 1.0 + max(CLEAR, wander)


@dataclass
class Results:
    """Everything that `bench` has to say. Filled in as the runs end."""

    title: str
    device: str
    cores: int
    amount: Amount
    measured: list[Measured] = field(default_factory=list)
    lanes_named: bool = True
    interrupted_by: int = 0
    """128 + the number of the signal that ended the measurement early."""
    folder: str = ""
    """Where the runs are kept; empty when they were removed."""
    kept: str = ""
    """The same as a sentence."""
    stopped: str = ""
    """Why nothing could be measured: the failure block of the first run."""
    stopped_code: int = 1

    @property
    def base(self) -> Measured | None:
        """One rank, with the lanes and threads that most configurations have: what speed-ups are relative to."""
        first = self.measured[0] if self.measured else None
        return first if first is not None and first.rounds else None

    @property
    def all_cores(self) -> Measured | None:
        """One process with a thread for each core, if it was measured."""
        return next((one for one in self.measured if one.configuration.all_cores and one.rounds), None)

    @property
    def exit_code(self) -> int:
        """0 when everything was measured."""
        if self.stopped:
            return self.stopped_code
        if self.interrupted_by:
            return self.interrupted_by
        return 1 if any(one.failed for one in self.measured) else 0

    def whole(self) -> Iterator[Measured]:
        """The configurations that have numbers."""
        return (one for one in self.measured if one.rounds)

    def speed_up(self, one: Measured) -> Spread | None:
        """Over one rank: the ratio within each round, because the sides of a round were measured at the same time."""
        return None if self.base is None or not one.rounds else ratio(one, self.base)

    def exactness(self, one: Measured) -> str:
        """Whether the bits after the last step are those of `single` with the same lanes and threads."""
        if one.configuration.strategy == "hogwild":
            return NOT_BY_DESIGN
        for other in self.whole():
            reference = other.configuration.strategy == "single" and not other.configuration.all_cores
            if reference and (other.lanes, other.threads) == (one.lanes, one.threads):
                if other is one:
                    return REFERENCE
                if one.bits and one.bits == other.bits:
                    return SAME
                return AS_TORCH if one.configuration.strategy == "dp" else DIFFERS
        return OTHER_THREADS if one.configuration.all_cores else NO_REFERENCE

    def as_json(self) -> dict[str, Any]:
        """One object of strings, finite numbers, lists and objects: everything, each round's numbers included."""
        return {
            "script": self.title,
            "device": self.device,
            "cores": self.cores,
            "steps": self.amount.steps,
            "warm_up": self.amount.warm_up,
            "rounds": self.amount.rounds,
            "lanes_named": self.lanes_named,
            "interrupted": bool(self.interrupted_by),
            "exit_code": self.exit_code,
            "stopped": self.stopped or None,
            "configurations": [self._facts(one) for one in self.measured],
            "folder": self.folder or None,
        }

    def _facts(self, one: Measured) -> dict[str, Any]:
        configuration = one.configuration
        facts: dict[str, Any] = {
            "name": one.title,
            "strategy": configuration.strategy,
            "ranks": configuration.ranks,
            "lanes": one.lanes,
            "threads": one.threads,
            "all_cores": configuration.all_cores,
            "failed": one.failed or None,
        }
        if not one.rounds:
            return facts
        speed_up = self.speed_up(one)
        return {
            **facts,
            "samples_per_s": asdict(one.speed),
            "speed_up": asdict(speed_up) if speed_up is not None else None,
            "step_ms": one.step_s * 1e3,
            "shares": one.shares(),
            "memory_bytes": {"rank_peak": one.memory_per_rank, "node": one.memory_of_node, "cuda_peak": one.cuda_peak},
            "bits": one.bits or None,
            "exact": self.exactness(one),
            "rounds": [_round(each) for each in one.rounds],
        }


def _round(one: Round) -> dict[str, Any]:
    return {
        "step_ms": [step.seconds * 1e3 for step in one.steps],
        "samples": [step.samples for step in one.steps],
        "parts_ms": {part: [step.parts[part] * 1e3 for step in one.steps] for part in PARTS},
        "memory_bytes": asdict(one.memory),
        "bits": one.bits or None,
        "stages": [asdict(stage) for stage in one.stages],
    }
