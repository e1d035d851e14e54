"""Signals that the nursery is asked to send, and what happens when it does not answer."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Collection, Mapping

from lockstep.launcher import stopping
from lockstep.launcher.nursery.handle import NurseryHandle
from lockstep.launcher.terminal.report import held_line
from lockstep.launcher.terminal.saying import Saying
from lockstep.protocol.nursery.messages import Signal


class Orders:
    """The orders to one nursery. It may hang, or somebody may have stopped it."""

    def __init__(self, nursery: NurseryHandle, saying: Saying) -> None:
        self._nursery, self._saying = nursery, saying
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

    def give_up(self, now: float, running: Mapping[int, int], *, a_person_waits: bool) -> float:
        """Kill a nursery that is too late, or whose ranks the kernel holds, with everything below it; return when to look again.

        Args:
            now: the time.
            running: the process of each rank that has not ended. Another process in a rank's place comes after a look without one.
            a_person_waits: whether somebody waits for the end.
        """
        self._killed = {rank: since for rank, since in self._killed.items() if rank in running}
        moments = {rank: since + stopping.UNKILLABLE_S for rank, since in self._killed.items()}
        held = sorted(rank for rank, until in moments.items() if until <= now)
        late_at = [*moments.values()]
        if self._asked:
            late_at.append(self._asked[0] + (stopping.ANSWER_S if a_person_waits else stopping.PATIENT_ANSWER_S))
        if self.gave_up or not late_at:
            return float("inf")
        if now < min(late_at):
            return min(late_at)
        for rank in held:
            self._saying.line(held_line(rank, running[rank], stopping.UNKILLABLE_S))
        self.gave_up = True
        self._nursery.kill()
        return float("inf")
