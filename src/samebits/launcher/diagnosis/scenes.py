"""The scenes of all ranks of one attempt: from their journals, the kernel, and probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from samebits.launcher.diagnosis.probe import EVERY_S, Probe
from samebits.launcher.diagnosis.scene import LONG_S, Doing, Idleness, Life, Pace, RankScene, Wait, wait_of
from samebits.launcher.diagnosis.stack import Frame
from samebits.launcher.diagnosis.stalls import Judgement, judge, sentence
from samebits.machine.processes import process_state, sleeps_of
from samebits.protocol.journal.gauges import Waiting
from samebits.protocol.journal.ring import JournalReader, Record

RECORDS = 24
"""How many of each rank's newest records are looked at."""
LEARN_EVERY_NS = 1_000_000_000
FIRST_S = 1.0
"""The shortest wait that is looked into."""


@dataclass
class Scenes:
    """Look at the ranks several times a second: what they do as a rule is learned that way.

    Args:
        script: the user's script; empty if there is none.
        journals: of the ranks of this node.
    """

    script: str
    journals: Mapping[int, JournalReader]
    answers: Callable[[int], Path] | None = None
    """The file into which a rank writes its stack when it is asked; None: ranks are not asked."""
    _paces: dict[int, Pace] = field(default_factory=dict)
    _probes: dict[int, Probe] = field(default_factory=dict)
    _idleness: dict[int, Idleness] = field(default_factory=dict)
    """By process."""
    _learn_at_ns: int = 0

    def look(
        self,
        pids: Mapping[int, int],
        elsewhere: Mapping[int, RankScene] = MappingProxyType({}),
    ) -> dict[int, RankScene]:
        """Return the scene of each rank; none while no rank has waited for long.

        Args:
            pids: the processes of the ranks of this node that have not ended.
            elsewhere: the ranks of other nodes, as far as these tell.
        """
        now_ns = time.monotonic_ns()
        waits = {rank: self.journals[rank].waiting() for rank in pids}
        learns = now_ns >= self._learn_at_ns
        if learns:
            self._learn_at_ns = now_ns + LEARN_EVERY_NS
        lasts = {rank: self._learn(rank) if learns else self.journals[rank].last() for rank in pids}
        noted_s = max((_since_s(wait, now_ns) for wait in waits.values() if wait is not None), default=0.0)
        # [Note: why idleness counts only without journals]
        # A journal says for whom a rank waits. A plain script has none: there all that shows a wait is that nobody works.
        is_plain = len(pids) + len(elsewhere) > 1 and not any(lasts.values()) and not noted_s
        idle_s = self._idle_s(pids, now_ns) if is_plain else {}
        still_s = min(
            ((now_ns - last.time_ns) / 1e9 if last is not None else 0.0 for last in lasts.values()), default=0.0
        )
        is_awaited = any(scene.wait is not None for scene in elsewhere.values())
        if max(noted_s, still_s) < FIRST_S and max(idle_s.values(), default=0.0) < LONG_S and not is_awaited:
            self.aim((), pids)
            return {}
        if idle_s:
            self.aim(pids, pids)
        seen = (
            self._scene(rank, pids.get(rank, 0), lasts.get(rank), waits.get(rank), idle_s) for rank in self.journals
        )
        return {**elsewhere, **{scene.rank: scene for scene in seen}}

    def judge(
        self,
        pids: Mapping[int, int],
        stall_after_s: float | None = None,
        elsewhere: Mapping[int, RankScene] = MappingProxyType({}),
    ) -> tuple[dict[int, RankScene], list[Judgement]]:
        """Look, judge the ranks for which others wait, and look more closely at those from now on.

        Args:
            pids: the processes of the ranks of this node that have not ended.
            stall_after_s: how long a rank may be waited for, if a person said so.
            elsewhere: the ranks of other nodes, as far as these tell; they are judged there.
        """
        scenes = self.look(pids, elsewhere)
        judgements = judge(scenes, stall_after_s, self.journals)
        plain = {
            rank
            for rank in scenes.keys() & self.journals.keys()
            if scenes[rank].doing is None and self.journals[rank].waiting() is None
        }
        self.aim(plain.union(*(judgement.suspects for judgement in judgements)), pids)
        return scenes, judgements

    def sentence(
        self, judgement: Judgement, scenes: Mapping[int, RankScene], homes: Mapping[int, str] | None = None
    ) -> str:
        """What to say about ranks that are slow or stalled."""
        return sentence(judgement, scenes, {rank: self.line_of(rank) for rank in judgement.suspects}, homes)

    def _learn(self, rank: int) -> Record | None:
        """Learn from a rank's newest records; return the last one."""
        records = self.journals[rank].tail(RECORDS)
        self._paces.setdefault(rank, Pace()).learn(records)
        return records[-1] if records else None

    def _idle_s(self, pids: Mapping[int, int], now_ns: int) -> dict[int, float]:
        """How long each rank has used no processor time and slept on."""
        states = {rank: state for rank, pid in pids.items() if (state := process_state(pid)) is not None}
        idleness = {rank: self._idleness.setdefault(pids[rank], Idleness()) for rank in states}
        return {
            rank: idleness[rank].note(now_ns / 1e9, state.processor_s, sleeps_of(pids[rank]))
            for rank, state in states.items()
        }

    def _scene(
        self, rank: int, pid: int, last: Record | None, waiting: Waiting | None, idle_s: Mapping[int, float]
    ) -> RankScene:
        now_ns, state = time.monotonic_ns(), process_state(pid) if pid else None
        life = Life.ENDED if state is None else Life.STOPPED if state.is_stopped else Life.RUNS
        doing = wait = None
        if last is not None:
            place = f"{Path(last.file).name}:{last.line}" if last.file else ""
            lasts_s = (now_ns - last.time_ns) / 1e9
            usual_s = self._paces.setdefault(rank, Pace()).usual_s(last)
            doing = Doing(last.phase, last.operation, last.step, place, lasts_s, usual_s)
        probe = self._probes.get(rank)
        if waiting is not None:
            place = f" ({doing.place})" if doing is not None and doing.place and "(" not in waiting.what else ""
            wait = Wait(_since_s(waiting, now_ns), waiting.behind, waiting.what + place)
        elif rank in idle_s and probe is not None:
            wait = wait_of(probe.stack, idle_s[rank], self.script)
        return RankScene(rank, life, doing, wait, probe.samples if probe is not None and probe.pid == pid else ())

    def aim(self, ranks: Collection[int], pids: Mapping[int, int]) -> None:
        """Have a probe look at each of these ranks, and at nobody else.

        Args:
            ranks: for example those that are suspected.
            pids: the processes of the ranks that have not ended.
        """
        for rank, probe in list(self._probes.items()):
            if rank not in ranks or probe.pid != pids.get(rank):
                self._probes.pop(rank).stop()
        for rank in set(ranks) & pids.keys() - self._probes.keys():
            answers = self.answers(rank) if self.answers is not None else None
            self._probes[rank] = Probe(pids[rank], EVERY_S * max(1.0, len(ranks) / 2), answers)

    def line_of(self, rank: int) -> Frame | None:
        """Where a rank is in the script, as a probe saw it last; None if none could."""
        probe = self._probes.get(rank)
        return probe.line(self.script) if probe is not None else None

    def end(self) -> None:
        self.aim((), {})


def _since_s(waiting: Waiting, now_ns: int) -> float:
    return (now_ns - waiting.since_ns) / 1e9
