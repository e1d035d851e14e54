"""The order of a pipeline's work, as data: it can be printed, checked, and simulated without a device.

Each stage has a list of actions: the forward (F) or backward (B) of one micro-batch. GPipe (Huang et al., 2019) does
all forwards first and keeps every micro-batch's activations; 1F1B (Narayanan et al., PipeDream-Flush, 2021) begins a
backward as soon as it can. There a stage is one forward ahead of what its backwards need: otherwise neighbours hand
over to each other at the same moment, and each micro-batch waits for a message. So it keeps at most two micro-batches more
than there are stages after it, the last stage one. With p equal stages and m micro-batches both idle for (p - 1) / m of
the ideal time, and do the backwards in the order of the micro-batches, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import accumulate

from samebits.errors import UsageError


class Kind(StrEnum):
    """What is done with a micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclass(frozen=True)
class Action:
    """One piece of a stage's work."""

    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class Busy:
    """An action in time, in seconds from the start of the step."""

    stage: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    busy: tuple[Busy, ...]
    num_stages: int

    @property
    def total_s(self) -> float:
        return max((busy.end_s for busy in self.busy), default=0.0)

    @property
    def idle(self) -> float:
        """The share of all stages' time in which nothing is done."""
        worked = sum(busy.end_s - busy.start_s for busy in self.busy)
        return 1.0 - worked / (self.total_s * self.num_stages) if self.total_s else 0.0


@dataclass(frozen=True)
class Schedule:
    """Every stage's actions, in the order in which the stage does them."""

    name: str
    num_micro_batches: int
    stages: tuple[tuple[Action, ...], ...]

    def check(self) -> None:
        """Raise `ValueError` unless the schedule can be carried out, with each forward and backward once.

        Also, backwards must come in the order of the micro-batches, as the lane tree needs them.
        """
        for stage, actions in enumerate(self.stages):
            for kind in Kind:
                order = [action.micro_batch for action in actions if action.kind is kind]
                if order != list(range(self.num_micro_batches)):
                    raise ValueError(f"stage {stage} of {self.name}: {kind} in the order {order}")
        done = {(busy.stage, busy.action) for busy in self.simulate([1.0] * len(self.stages)).busy}
        if len(done) != 2 * self.num_micro_batches * len(self.stages):
            raise ValueError(f"{self.name} waits forever")

    def simulate(
        self, forward_s: Sequence[float], backward_s: Sequence[float] | None = None, message_s: float = 0.0
    ) -> Timeline:
        """Simulate a step in time.

        Args:
            forward_s: seconds of one micro-batch's forward on each stage.
            backward_s: seconds of its backward; by default twice the forward.
            message_s: seconds of a message from one stage to the next.
        """
        seconds = {Kind.FORWARD: forward_s, Kind.BACKWARD: backward_s or [2.0 * each for each in forward_s]}
        ends: dict[tuple[int, Action], float] = {}
        position, clock = [0] * len(self.stages), [0.0] * len(self.stages)
        busy = []
        progress = True
        while progress:
            progress = False
            for stage, actions in enumerate(self.stages):
                while position[stage] < len(actions):
                    action = actions[position[stage]]
                    before = self._needed(stage, action)
                    if before is not None and before not in ends:
                        break
                    ready = ends[before] + (message_s if before[0] != stage else 0.0) if before is not None else 0.0
                    start = max(clock[stage], ready)
                    clock[stage] = ends[stage, action] = start + seconds[action.kind][stage]
                    busy.append(Busy(stage, action, start, clock[stage]))
                    position[stage] += 1
                    progress = True
        return Timeline(tuple(busy), len(self.stages))

    def _needed(self, stage: int, action: Action) -> tuple[int, Action] | None:
        """The action that must be done, usually elsewhere, before `action` can begin on `stage`."""
        if action.kind is Kind.FORWARD:
            return (stage - 1, action) if stage else None
        if stage == len(self.stages) - 1:
            return (stage, Action(Kind.FORWARD, action.micro_batch))
        return (stage + 1, action)

    def __str__(self) -> str:
        """A table: a row for each stage, a column for each unit of time (a backward takes two)."""
        timeline = self.simulate([1.0] * len(self.stages))
        width = max(len(str(self.num_micro_batches - 1)) + 2, 3)
        rows = [
            f"{self.name}: {len(self.stages)} stages, {self.num_micro_batches} micro-batches, {timeline.idle:.0%} idle"
        ]
        for stage in range(len(self.stages)):
            cells = [" " * width] * round(timeline.total_s)
            for busy in timeline.busy:
                if busy.stage == stage:
                    for column in range(round(busy.start_s), round(busy.end_s)):
                        cells[column] = str(busy.action).ljust(width)
            rows.append(f"stage {stage}  {''.join(cells)}".rstrip())
        return "\n".join(rows)


def schedule(name: str, num_stages: int, num_micro_batches: int) -> Schedule:
    """Make the schedule called `name`: "gpipe" or "1f1b".

    Raises:
        UsageError: for another name.
    """
    makers = {"gpipe": _gpipe, "1f1b": _one_forward_one_backward}
    if name not in makers:
        raise UsageError(f"There is no schedule {name!r}.", f"Use one of {', '.join(makers)}.")
    stages = tuple(tuple(makers[name](stage, num_stages, num_micro_batches)) for stage in range(num_stages))
    return Schedule(name, num_micro_batches, stages)


def _gpipe(_stage: int, _num_stages: int, num_micro_batches: int) -> Iterator[Action]:
    for kind in Kind:
        for micro_batch in range(num_micro_batches):
            yield Action(kind, micro_batch)


def _one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> Iterator[Action]:
    behind = num_stages - stage - 1
    ahead = min(behind + 1 if behind else 0, num_micro_batches)
    for micro_batch in range(ahead):
        yield Action(Kind.FORWARD, micro_batch)
    for micro_batch in range(num_micro_batches):
        if micro_batch + ahead < num_micro_batches:
            yield Action(Kind.FORWARD, micro_batch + ahead)
        yield Action(Kind.BACKWARD, micro_batch)


TOLERANCE = 0.03


def balance(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """The first segment of every stage except stage 0.

    Args:
        costs: seconds of each segment, in order; at least as many as stages.
        num_stages: how many stages; each gets at least one segment.

    Invariant: the bounds rise; in no cut is the slowest stage cheaper than 1 / (1 + `TOLERANCE`) of this one's.
    """
    if not 1 <= num_stages <= len(costs):
        raise ValueError(f"{len(costs)} segments cannot make {num_stages} stages")
    sums = (0.0, *accumulate(costs))

    @cache
    def slowest(start: int, stages: int) -> float:
        """The lowest possible cost of the slowest of `stages` stages over the segments from `start` on."""
        if stages == 1:
            return sums[-1] - sums[start]
        ends = range(start + 1, len(costs) - stages + 2)
        return min(max(sums[end] - sums[start], slowest(end, stages - 1)) for end in ends)

    limit = slowest(0, num_stages) * (1.0 + TOLERANCE)

    @cache
    def most_even(start: int, stages: int) -> tuple[float, float, tuple[int, ...]]:
        """(sum of squared numbers of segments, cost of the slowest stage, bounds) among cuts below the limit."""
        if stages == 1:
            cost = sums[-1] - sums[start]
            return (float((len(costs) - start) ** 2) if cost <= limit else float("inf"), cost, ())
        options = []
        for end in range(start + 1, len(costs) - stages + 2):
            cost = sums[end] - sums[start]
            if cost <= limit:
                squares, other, bounds = most_even(end, stages - 1)
                options.append((squares + (end - start) ** 2, max(cost, other), (end, *bounds)))
        return min(options, default=(float("inf"), float("inf"), ()))

    return most_even(0, num_stages)[2]
