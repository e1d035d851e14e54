"""Signals that the nursery is asked to send, and what happens when it does not answer."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Collection

from lockstep.launch import stopping
from lockstep.launch.nursery.handle import NurseryHandle
from lockstep.launch.nursery.messages import Signal


class Orders:
    """The orders to one nursery. It may hang, or somebody may have stopped it."""

    def __init__(self, nursery: NurseryHandle) -> None:
        self._nursery = nursery
        self._asked: deque[float] = deque()
        """When each order that has no answer yet was sent."""
        self._killed: dict[int, float] = {}
        """When each rank was first to be killed."""
        self.gave_up = False
        """Whether the nursery was killed because it did not answer, or a rank did not end."""

    def kill(self, number: int) -> None:
        """End a rank in a way of which the supervisor takes no note: it is lost, as if somebody else had done it."""
        self.signal(signal.SIGKILL, frozenset({number}))

    def signal(self, number: int, ranks: Collection[int]) -> None:
        """Ask it to send a signal to ranks."""
        if ranks and self._nursery.send(Signal(number, tuple(sorted(ranks)))):
            self._asked.append(time.monotonic())
            if number == signal.SIGKILL:
                self._killed = dict.fromkeys(ranks, time.monotonic()) | self._killed

    def answered(self) -> None:
        """Note that the oldest order was carried out."""
        self._asked.popleft()

    def forget(self, number: int) -> None:
        """Another process takes this rank's place."""
        self._killed.pop(number, None)

    def held(self, now: float, running: Collection[int]) -> tuple[list[int], float]:
        """The ranks that run although they were killed long ago, which ends the nursery too; and the moment to look again."""
        ends = {rank: since + stopping.UNKILLABLE_S for rank, since in self._killed.items() if rank in running}
        found = sorted(rank for rank, end in ends.items() if end <= now)
        if self.gave_up or not found:
            return [], min(ends.values(), default=float("inf")) if not self.gave_up else float("inf")
        self.gave_up = True
        self._nursery.kill()
        return found, float("inf")

    def give_up(self, now: float, *, a_person_waits: bool) -> float:
        """Kill a nursery that is too late, with everything below it; return the moment to look again."""
        if not self._asked or self.gave_up:
            return float("inf")
        late_at = self._asked[0] + (stopping.ANSWER_S if a_person_waits else stopping.PATIENT_ANSWER_S)
        if now < late_at:
            return late_at
        self.gave_up = True
        self._nursery.kill()
        return float("inf")
