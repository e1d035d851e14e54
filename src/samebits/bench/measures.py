"""From the ranks' files to numbers: the time of each step, where it went, memory. Pure, apart from reading the files.

The time of a step is that of its slowest rank, its shares are means over the ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low, quantiles
from typing import Any

from samebits.protocol.run_folder import RunFolder


@dataclass(frozen=True)
class Stage:
    """One stage, in seconds over the same steps as the others."""

    rank: int
    layers: tuple[str, ...]
    forward_s: float
    backward_s: float
    wait_s: float
    """For another stage, or for the exchange of gradients."""
    other_s: float
    """Data, update, the script's own."""

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def total_s(self) -> float:
        return self.busy_s + self.wait_s + self.other_s


@dataclass(frozen=True)
class Losses:
    """Parts of the time of a pass; together with `useful` they add up to 1."""

    useful: float
    """The time that equal stages without a bubble would need."""
    unequal: float
    """The extra time, because the slowest stage decides."""
    bubble: float
    other: float
    """Messages, calls, data, update, and waiting beyond the bubble."""
    slowest: int
    """The rank of the slowest stage."""
    ratio: float
    """Its work relative to that of the fastest stage."""


def ideal_speed_up(num_stages: int, micro_batches: int) -> float:
    """Of a pipeline of equal stages over one device: p / (1 + (p - 1) / m)."""
    return num_stages / (1 + (num_stages - 1) / micro_batches)


def losses(stages: Sequence[Stage], micro_batches: int) -> Losses | None:
    """Where the pass's time went; None when no stage worked.

    Invariant: the parts are at least 0 and add up to 1.
    """
    busy = [stage.busy_s for stage in stages]
    if not min(busy, default=0.0):
        return None
    mean, most = sum(busy) / len(busy), max(busy)
    bubble = most * (len(stages) - 1) / micro_batches
    total = max(*(stage.total_s for stage in stages), most)
    # The model of equal stages may predict a longer bubble than there is time left.
    bubble = min(bubble, total - most)
    return Losses(
        useful=mean / total,
        unequal=(most - mean) / total,
        bubble=bubble / total,
        other=(total - most - bubble) / total,
        slowest=stages[busy.index(most)].rank,
        ratio=most / min(busy),
    )


def explain_losses(found: Losses, num_stages: int, micro_batches: int) -> str:
    """One sentence, the largest loss first, each with its fix."""
    causes = [
        (
            found.bubble,
            f"to the bubble ({num_stages - 1} of {micro_batches} micro-batches; more --lanes make it smaller)",
        ),
        (
            found.unequal,
            f"to unequal stages (rank {found.slowest} computes {found.ratio:.2f} times as long as the fastest)",
        ),
        (
            found.other,
            "to messages, calls, data, update, and waiting beyond the bubble",
        ),
    ]
    listed = [f"{part:.0%} {what}" for part, what in sorted(causes, reverse=True) if part >= 0.005]
    lost = f"; it loses {', '.join(listed)}" if listed else ""
    return f"Of its step, {found.useful:.0%} is work, evenly divided{lost}."


PARTS = ("data", "compute", "exchange", "update", "script")
"""Where a step's time goes, in the words of the meter in the ranks."""


Piece = Sequence[Any]
"""[part, operation, begin_ns, end_ns], as a rank writes it."""


@dataclass(frozen=True)
class StepTime:
    """One step of one run."""

    number: int
    samples: int
    """Of the global batch."""
    seconds: float
    """Of the slowest rank."""
    parts: Mapping[str, float]
    """Seconds in each of `PARTS`, mean over the ranks."""


@dataclass(frozen=True)
class Memory:
    """Bytes, each a list over the ranks."""

    peak_rss: tuple[int, ...]
    private: tuple[int, ...]
    """At the end of the last step, as the next two."""
    shared: tuple[int, ...]
    """What other processes use too: libraries, what the nursery has imported, buffers of the exchange."""
    pss: tuple[int, ...]
    """Private, and a part of the shared: it depends on how many processes of other programs use the libraries."""
    cuda_peak: tuple[int, ...]
    """Allocated by torch; empty without a device."""

    @property
    def node(self) -> int:
        """What all ranks take together: shared memory counts once."""
        return sum(self.private) + max(self.shared)


@dataclass(frozen=True)
class Interval:
    """What one rank did for a while, in seconds since the step began on the first rank."""

    part: str
    operation: str
    begin: float
    end: float


@dataclass(frozen=True)
class Round:
    """One run of one configuration."""

    steps: tuple[StepTime, ...]
    memory: Memory
    bits: str
    """Hash of the model after the last step; empty when the run wrote none."""
    lanes: int
    threads: int
    one_step: tuple[tuple[Interval, ...], ...]
    """For each rank, what it did in the step of median length."""
    stages: tuple[Stage, ...] = ()
    """What each rank did in all steps, where the model is cut into stages."""

    @property
    def step_s(self) -> float:
        """Median seconds of a step."""
        return median(step.seconds for step in self.steps)

    @property
    def samples_per_s(self) -> float:
        """Median over the steps."""
        return median(step.samples / step.seconds for step in self.steps)


@dataclass(frozen=True)
class Spread:
    """The middle of some numbers, and how much they vary."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""

    @property
    def relative(self) -> float:
        """Half the distance between the quartiles, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles of at least one number. Invariant: low <= median <= high."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def read_round(folder: RunFolder, num_ranks: int) -> Round | None:
    """What the ranks of a run measured; None if a rank wrote nothing, or no rank measured a step."""
    record = [_load(folder, rank) for rank in range(num_ranks)]
    whole = [one for one in record if one is not None]
    if len(whole) < num_ranks or not all(one["steps"] for one in whole):
        return None
    result = json.loads(folder.result.read_text()) if folder.result.exists() else {}
    decided = json.loads(folder.decided.read_text()) if folder.decided.exists() else {}
    steps = step_times(whole)
    return Round(
        steps=steps,
        memory=_memory(whole),
        bits=result.get("bits", ""),
        lanes=int(decided.get("lanes", 0)),
        threads=int(decided.get("threads", 0)),
        one_step=_one_step(whole, steps),
        stages=tuple(stage_of(one, steps) for one in whole if one["layers"]),
    )


def _load(folder: RunFolder, rank: int) -> dict[str, Any] | None:
    path = folder.measured(rank)
    if not path.exists():
        return None
    record: dict[str, Any] = json.loads(path.read_text())
    return {**record, "intervals": refined(record["intervals"], record["work"])}


def refined(intervals: Sequence[Piece], work: Sequence[Piece]) -> list[Piece]:
    """A rank's intervals, with the work of its stage in place of the lanes that it was done in, and waits cut out.

    Args:
        intervals: [part, operation, begin, end], one after the other.
        work: of a stage: ["forward" or "backward", lane, begin, end], and ["wait", -1, begin, end] inside these.

    Invariant: the result covers what the arguments cover, and no two of its intervals overlap.
    """
    done = sorted((["compute", f"{kind} {lane}", *when] for kind, lane, *when in work if kind != "wait"), key=_begin)
    waits = sorted((["exchange", "wait", *when] for kind, _, *when in work if kind == "wait"), key=_begin)
    return _overlay(_overlay(intervals, done), waits)


def _begin(piece: Piece) -> Any:
    return piece[2]


def _overlay(below: Sequence[Piece], above: Sequence[Piece]) -> list[Piece]:
    """`above`, and what it leaves free of `below`; each is in order and does not overlap itself."""
    free: list[Piece] = []
    first = 0
    for part, operation, begin, end in below:
        while first < len(above) and above[first][3] <= begin:
            first += 1
        start, at = begin, first
        while at < len(above) and above[at][2] < end:
            if above[at][2] > start:
                free.append([part, operation, start, above[at][2]])
            start = max(start, above[at][3])
            at += 1
        if start < end:
            free.append([part, operation, start, end])
    return sorted([*free, *above], key=_begin)


def stage_of(rank: Mapping[str, Any], steps: Sequence[StepTime]) -> Stage:
    """What a rank did in all of `steps`; a lane that is not divided into forward and backward counts as forward."""
    numbers = {step.number for step in steps}
    whole = [step for step in rank["steps"] if step["step"] in numbers]
    found = dict.fromkeys(("forward", "backward", "wait", "other"), 0.0)
    for step in whole:
        for part, operation, begin, end in rank["intervals"]:
            seconds = max(min(end, step["end_ns"]) - max(begin, step["begin_ns"]), 0) / 1e9
            if part == "compute":
                found["backward" if operation.startswith("backward") else "forward"] += seconds
            else:
                found["wait" if part == "exchange" else "other"] += seconds
    return Stage(rank["rank"], tuple(rank["layers"]), *found.values())


def step_times(ranks: Sequence[Mapping[str, Any]]) -> tuple[StepTime, ...]:
    """The steps that every rank measured, in order. Invariant: the parts of a step add up to the mean of its ranks."""
    by_number = [{step["step"]: step for step in rank["steps"]} for rank in ranks]
    numbers = [number for number in by_number[0] if all(number in steps for steps in by_number)]
    times = []
    for number in numbers:
        steps = [steps[number] for steps in by_number]
        shares = [parts_of(rank["intervals"], step) for rank, step in zip(ranks, steps, strict=True)]
        times.append(
            StepTime(
                number=number,
                samples=steps[0]["samples"],
                seconds=max(step["end_ns"] - step["begin_ns"] for step in steps) / 1e9,
                # Means: which rank is the slowest changes by chance, and in a pipeline each waits at another moment.
                parts={part: sum(share[part] for share in shares) / len(shares) for part in PARTS},
            )
        )
    return tuple(times)


def parts_of(intervals: Sequence[Sequence[Any]], step: Mapping[str, int]) -> dict[str, float]:
    """Seconds of a rank's step in each part; time that no interval covers is the script's."""
    found = dict.fromkeys(PARTS, 0.0)
    for part, _, begin, end in intervals:
        found[part] += max(min(end, step["end_ns"]) - max(begin, step["begin_ns"]), 0) / 1e9
    found["script"] += max((step["end_ns"] - step["begin_ns"]) / 1e9 - sum(found.values()), 0.0)
    return found


def _memory(ranks: Sequence[Mapping[str, Any]]) -> Memory:
    record = [rank["memory"] for rank in ranks]
    return Memory(
        peak_rss=tuple(one["peak_rss"] for one in record),
        private=tuple(one["private"] for one in record),
        shared=tuple(one["shared"] for one in record),
        pss=tuple(one["pss"] for one in record),
        cuda_peak=tuple(one["cuda_peak"] for one in record if one["cuda_peak"] is not None),
    )


def _one_step(ranks: Sequence[Mapping[str, Any]], steps: Sequence[StepTime]) -> tuple[tuple[Interval, ...], ...]:
    """The step of median length, on every rank."""
    # The low median: one of the steps, where the median of an even number lies between two.
    middle = median_low(step.seconds for step in steps)
    number = next(step.number for step in steps if step.seconds == middle)
    chosen = [next(step for step in rank["steps"] if step["step"] == number) for rank in ranks]
    zero = min(step["begin_ns"] for step in chosen)
    return tuple(
        tuple(
            Interval(
                part, operation, (max(begin, step["begin_ns"]) - zero) / 1e9, (min(end, step["end_ns"]) - zero) / 1e9
            )
            for part, operation, begin, end in rank["intervals"]
            if begin < step["end_ns"] and end > step["begin_ns"]
        )
        for rank, step in zip(ranks, chosen, strict=True)
    )
