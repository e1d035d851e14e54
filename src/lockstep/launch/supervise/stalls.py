"""Ranks that wait for others too long: seen from outside, judged by `lockstep.diagnosis`, said, and ended if so asked.

every look:       newest records -> what each phase takes as a rule
if a rank waits:  journals, processes -> scenes -> judge
suspected:        a probe looks at it                             probe
slow, stalled:    say so, and once more after twice the time; and when it went on
stalled:          do what --on-stall says
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.diagnosis.idle import LONG_S, Idleness, wait_of
from lockstep.diagnosis.pace import Pace
from lockstep.diagnosis.scene import Doing, Life, RankScene, Wait
from lockstep.diagnosis.stack import Frame
from lockstep.diagnosis.stalls import Judgement, Standing, judge, sentence
from lockstep.diagnosis.words import ranks_text
from lockstep.journal.failure import Failure, FailureKind
from lockstep.journal.record import Record
from lockstep.journal.ring import JournalReader
from lockstep.journal.waiting import Waiting
from lockstep.launch.request import OnStall, Recovery
from lockstep.launch.screen.report import Line
from lockstep.launch.screen.saying import Saying
from lockstep.launch.supervise.probe import Probe
from lockstep.machine.process_state import process_state

RECORDS = 24
"""How many of each rank's newest records are looked at."""
FIRST_S = 1.0
"""The shortest wait that is looked into."""


@dataclass
class Stalls:
    """Those of one world of ranks.

    Args:
        script: the user's script; empty if there is none.
        saying: where lines go.
        recovery: what was asked for.
        kill: ends a rank as anybody else might do, so that it is replaced like any rank that is lost.
        stop: ends all ranks because of this failure of one.
    """

    script: str
    saying: Saying
    recovery: Recovery
    kill: Callable[[int], None]
    stop: Callable[[Failure], None]
    _paces: dict[int, Pace] = field(default_factory=dict)
    _probes: dict[int, Probe] = field(default_factory=dict)
    _idleness: dict[int, Idleness] = field(default_factory=dict)
    """By process."""
    _said: dict[tuple[Standing, frozenset[int]], float] = field(default_factory=dict)
    """How long the wait was when it was said last."""

    def look(self, journals: Mapping[int, JournalReader], pids: Mapping[int, int]) -> None:
        """Look at ranks that have not ended; say and do what there is to say and do.

        Args:
            journals: of all ranks.
            pids: the processes of those that have not ended.
        """
        if len(journals) == 1 or (self.saying.terminal is None and self.recovery.on_stall is OnStall.REPORT):
            return
        now_ns = time.monotonic_ns()
        waits = {rank: journals[rank].waiting() for rank in pids}
        lasts: dict[int, Record | None] = {}
        for rank in pids:
            records = journals[rank].tail(RECORDS)
            lasts[rank] = records[-1] if records else None
            self._paces.setdefault(rank, Pace()).learn(records)
        noted_s = max(((now_ns - wait.since_ns) / 1e9 for wait in waits.values() if wait is not None), default=0.0)
        idle_s = self._idle_s(pids, now_ns) if not any(lasts.values()) and not noted_s else {}
        if noted_s < FIRST_S and max(idle_s.values(), default=0.0) < LONG_S:
            self._settle()
            return
        seen = {rank: self._wait_of(rank, since_s) for rank, since_s in idle_s.items()}
        scenes = [
            self._scene(rank, pids.get(rank, 0), lasts.get(rank), waits.get(rank), seen.get(rank)) for rank in journals
        ]
        judgements = judge(scenes, self.recovery.stall_after_s)
        suspects = {rank for judgement in judgements for rank in judgement.suspects}
        self._aim(suspects | idle_s.keys(), pids)
        for judgement in judgements:
            if self._say(judgement, scenes) and judgement.standing is Standing.STALLED:
                self._act(judgement, scenes)
        if not judgements:
            self._say_settled()

    def _idle_s(self, pids: Mapping[int, int], now_ns: int) -> dict[int, float]:
        """How long each rank has used no processor time."""
        states = {rank: state for rank, pid in pids.items() if (state := process_state(pid)) is not None}
        idleness = {rank: self._idleness.setdefault(pids[rank], Idleness()) for rank in states}
        return {rank: idleness[rank].note(now_ns / 1e9, state.processor_s) for rank, state in states.items()}

    def _wait_of(self, rank: int, idle_s: float) -> Wait | None:
        """What a rank that keeps no journal waits for, as far as its stack says."""
        probe = self._probes.get(rank)
        return wait_of(probe.stack if probe is not None else None, idle_s, self.script)

    def _act(self, judgement: Judgement, scenes: list[RankScene]) -> None:
        """Do what was asked for. Of a circle one rank is enough, and all are to blame alike: the last one."""
        ranks = sorted(judgement.suspects)[-1:] if judgement.holdup.is_circle else sorted(judgement.suspects)
        match self.recovery.on_stall:
            case OnStall.REPLACE:
                for rank in ranks:
                    self.kill(rank)
            case OnStall.STOP:
                self.stop(self._failure(ranks[0], judgement, scenes))
            case OnStall.REPORT:
                pass

    def _failure(self, rank: int, judgement: Judgement, scenes: list[RankScene]) -> Failure:
        line = self._line_of(rank)
        file, number = (line.file, line.line) if line is not None else ("", 0)
        said = sentence(judgement, scenes, {rank: line})
        return Failure(rank, FailureKind.STALL, f"stalled {said}", "", file, number, None, time.monotonic_ns())

    def _scene(self, rank: int, pid: int, last: Record | None, waiting: Waiting | None, wait: Wait | None) -> RankScene:
        now_ns = time.monotonic_ns()
        state = process_state(pid) if pid else None
        life = Life.ENDED if state is None else Life.STOPPED if state.is_stopped else Life.RUNS
        doing = None
        if last is not None:
            place = f"{Path(last.file).name}:{last.line}" if last.file else ""
            lasts_s, usual_s = (now_ns - last.time_ns) / 1e9, self._paces[rank].usual_s(last)
            doing = Doing(last.phase, last.operation, last.step, place, lasts_s, usual_s)
        if waiting is not None:
            place = f" ({doing.place})" if doing is not None and doing.place and "(" not in waiting.what else ""
            wait = Wait((now_ns - waiting.since_ns) / 1e9, waiting.behind, waiting.what + place)
        probe = self._probes.get(rank)
        return RankScene(rank, life, doing, wait, probe.samples if probe is not None and probe.pid == pid else ())

    def _aim(self, suspects: set[int], pids: Mapping[int, int]) -> None:
        """Have a probe look at each suspect, and at nobody else."""
        for rank in [
            rank for rank, probe in self._probes.items() if rank not in suspects or probe.pid != pids.get(rank)
        ]:
            self._probes.pop(rank).stop()
        for rank in suspects - self._probes.keys():
            if rank in pids:
                self._probes[rank] = Probe(pids[rank])

    def _say(self, judgement: Judgement, scenes: list[RankScene]) -> bool:
        """Say it if it is new, or if it has lasted twice as long as when it was said; whether it is new."""
        if judgement.standing is Standing.SUSPECTED:
            return False
        key = judgement.standing, judgement.suspects
        before_s = self._said.get(key)
        if before_s is not None and judgement.holdup.waited_s < 2 * before_s:
            return False
        self._said[key] = judgement.holdup.waited_s
        lines = {rank: self._line_of(rank) for rank in judgement.suspects}
        self.saying.line(Line(judgement.standing.value, sentence(judgement, scenes, lines)))
        return before_s is None

    def _line_of(self, rank: int) -> Frame | None:
        probe = self._probes.get(rank)
        stack = probe.stack if probe is not None else None
        return stack.in_script(self.script) if stack is not None else None

    def _settle(self) -> None:
        """Nobody waits any more."""
        self._say_settled()
        self.end()

    def _say_settled(self) -> None:
        """Say that those who were waited for went on, if somebody was."""
        if self._said:
            _, ranks = max(self._said, key=lambda key: self._said[key])
            self.saying.line(Line("went on", f"{ranks_text(ranks)}, after more than {max(self._said.values()):.0f} s"))
            self._said.clear()

    def end(self) -> None:
        """Look at nobody any more."""
        for probe in self._probes.values():
            probe.stop()
        self._probes.clear()
