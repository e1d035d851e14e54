"""Ranks that others wait for too long: judged by `samebits.launcher.diagnosis`, said, and ended if so asked.

every look:     scenes of the ranks, if one waits -> judge
suspected:      look at it more closely
slow, stalled:  say so, and once more after twice the time; and when it went on
stalled:        do what --on-stall says
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from samebits.launcher.choices import OnStall, Verbosity
from samebits.launcher.diagnosis.causes import Cause, call_help, kept_from_running
from samebits.launcher.diagnosis.findings import STALLED_IN_SCRIPT, STRAGGLER, Finding, finding_of_stall
from samebits.launcher.diagnosis.scene import RankScene
from samebits.launcher.diagnosis.scenes import Scenes
from samebits.launcher.diagnosis.spent import LEAST_STEPS, Spent, Straggler, straggler
from samebits.launcher.diagnosis.stalls import Judgement, Standing
from samebits.launcher.diagnosis.words import ranks_text
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.all_nodes import OtherNodes
from samebits.launcher.terminal.cases import Cases
from samebits.launcher.terminal.failure_block import HELP, place_text, stall_block
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import Console
from samebits.machine.effort import HeldBack, held_back
from samebits.machine.leftovers import descendants
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.gauges import Gauges

NEWS_S = 1.0
"""How long it may take at most until the other nodes have read that the ranks of a node wait no more."""


@dataclass
class Stalls:
    """Those of one attempt.

    Args:
        scenes: what is seen of the ranks.
        cases: where they are kept.
        console: where they go.
        request: the run.
        kill: ends a rank as anybody else might do; all start again then, as after any loss.
        stop: ends all ranks because of this failure of one.
        nodes: the other nodes, if there are any: what they publish is judged too, and what is reported here is reported there.
    """

    scenes: Scenes
    cases: Cases
    console: Console
    request: LaunchRequest
    kill: Callable[[int], None]
    stop: Callable[[Failure], None]
    nodes: OtherNodes | None = None
    _said: dict[tuple[Standing, frozenset[int]], float] = field(default_factory=dict)
    """How long the wait was when it was said last."""
    _stood: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The process and the newest record of each rank of this node that was named, when it was first named."""
    _waited: dict[int, int] = field(default_factory=dict)
    """The processes of this node's ranks that waited for them."""
    _slow: dict[frozenset[int], float] = field(default_factory=dict)
    """Since when ranks seem slow for which only ranks on other nodes wait."""
    _helped: set[str] = field(default_factory=set)
    """Findings for which it was said what to do."""

    def look(self, pids: Mapping[int, int]) -> None:
        """Look at the ranks; say and do what there is to say and do. `pids`: of those that have not ended."""
        nodes, limit_s = self.nodes, self.request.recovery.stall_after_s
        if nodes is None and self.console.terminal is None and self.request.recovery.on_stall is OnStall.REPORT:
            return
        elsewhere = nodes.scenes() if nodes is not None else {}
        scenes, judgements = self.scenes.judge(pids, limit_s, elsewhere=elsewhere)
        if nodes is not None:
            nodes.publish(scenes)
            # The nodes may not reach each other, which is not the script's fault.
            doubt_s = nodes.cluster.liveness.doubt_s
            kept = [one for one in judgements if one.holdup.waited_s >= doubt_s]
            if doubt_s and not kept:
                return
            judgements = kept
        if not judgements:
            self._say_went_on(pids)
        for judgement in self._current(judgements, time.monotonic()):
            if self._say(judgement, scenes, pids) and judgement.standing is Standing.STALLED:
                self._act(judgement, scenes)

    def _current(self, judgements: Sequence[Judgement], now: float) -> list[Judgement]:
        """Those that do not only look so because other nodes have not published yet that their ranks resumed.

        A rank that resumed is at something new, and so not stalled: it would be called slow.
        """
        here = frozenset(self.request.numbers)
        far = [
            one
            for one in judgements
            if one.standing is Standing.SLOW and one.holdup.waiting and not one.holdup.waiting & here
        ]
        self._slow = {one.suspects: self._slow.get(one.suspects, now) for one in far}
        return [one for one in judgements if now - self._slow.get(one.suspects, 0.0) >= NEWS_S or one not in far]

    def _act(self, judgement: Judgement, scenes: Mapping[int, RankScene]) -> None:
        """Do what was asked for. Of a circle one rank is enough, and all are to blame alike: the last one of this node."""
        here = sorted(judgement.suspects & frozenset(self.request.numbers))
        ranks = here[-1:] if judgement.holdup.is_circle else here
        match self.request.recovery.on_stall:
            case OnStall.REPLACE:
                for rank in ranks:
                    self.kill(rank)
            case OnStall.STOP:
                self.stop(self._failure(ranks[0], judgement, scenes))
            case OnStall.REPORT:
                pass

    def _failure(self, rank: int, judgement: Judgement, scenes: Mapping[int, RankScene]) -> Failure:
        line = self.scenes.line_of(rank)
        file, number = (line.file, line.line) if line is not None else ("", 0)
        said = self._sentence(judgement, scenes)
        finding = finding_of_stall(judgement, scenes).name
        now_ns = time.monotonic_ns()
        return Failure(rank, FailureKind.STALL, f"stalled {said}", "", file, number, None, now_ns, finding=finding)

    def _sentence(self, judgement: Judgement, scenes: Mapping[int, RankScene]) -> str:
        return self.scenes.sentence(judgement, scenes, self.nodes.homes if self.nodes is not None else None)

    def _say(self, judgement: Judgement, scenes: Mapping[int, RankScene], pids: Mapping[int, int]) -> bool:
        """Say it if it is new, or if it has lasted twice as long as when it was said; whether it is new."""
        if judgement.standing is Standing.SUSPECTED:
            return False
        key = judgement.standing, judgement.suspects
        before_s = self._said.get(key)
        if before_s is not None and judgement.holdup.waited_s < 2 * before_s:
            return False
        self._said[key] = judgement.holdup.waited_s
        for rank in judgement.suspects & self.scenes.journals.keys():
            self._stood.setdefault(rank, (pids.get(rank, 0), self._newest(rank)))
        self._waited.update({rank: pids[rank] for rank in judgement.holdup.waiting & pids.keys()})
        said = self._sentence(judgement, scenes)
        finding, is_stalled = finding_of_stall(judgement, scenes), judgement.standing is Standing.STALLED
        self.cases.add(finding, f"{judgement.standing} {said}", judgement.suspects)
        if is_stalled and self.request.recovery.on_stall is OnStall.STOP:
            return before_s is None  # the failure block says it
        if is_stalled:
            self._say_stalled(judgement, scenes, said, pids)
        else:
            self._line(Line(judgement.standing.value, said), finding, judgement.suspects)
        return before_s is None

    def _say_stalled(
        self, judgement: Judgement, scenes: Mapping[int, RankScene], said: str, pids: Mapping[int, int]
    ) -> None:
        """Say here and on the other nodes who is stalled; the first time also what to do."""
        first, finding, aid = min(judgement.suspects), finding_of_stall(judgement, scenes), ""
        line, doing = self.scenes.line_of(first), scenes[first].doing
        where = place_text(line.file, line.line) if line is not None else doing.place if doing is not None else ""
        if finding.name not in self._helped:
            self._helped.add(finding.name)
            aid = call_help(where.partition("  ")[2]) if finding is STALLED_IN_SCRIPT else ""
            aid = aid or finding.first_aid.replace("PID", str(pids.get(first, 0)))
            if self.nodes is not None and aid != finding.first_aid:  # a process's number means something there only
                aid = f"On {self.nodes.here}: {aid}"
        self.console.block(stall_block(said, where if len(judgement.suspects) == 1 else "", aid).text)
        if self.nodes is not None:
            self.nodes.say(Line("stalled", said), finding, judgement.suspects)
            if aid:
                self.nodes.say(Line(HELP, aid))

    def _line(self, line: Line, finding: Finding | None = None, ranks: frozenset[int] = frozenset()) -> None:
        """Say a line here, unless little is to be said, and on the other nodes."""
        if self.request.output.verbosity is not Verbosity.QUIET:
            self.console.line(line)
        if self.nodes is not None:
            self.nodes.say(line, finding, ranks)

    def _say_went_on(self, pids: Mapping[int, int]) -> None:
        """Say that those who were waited for went on, if somebody was; not of one that has ended or never moved, nor where
        nobody is left who waited.
        """
        if self._said:
            _, named = max(self._said, key=lambda key: self._said[key])
            is_over = self._waited and not any(pids.get(rank) == pid for rank, pid in self._waited.items())
            ranks = [rank for rank in named if self._went_on(rank, pids) and not is_over]
            seconds = max(self._said.values())
            if ranks:
                self._line(Line("went on", f"{ranks_text(ranks)}, after more than {seconds:.0f} s"))
        self._said.clear()
        self._stood.clear()
        self._waited.clear()

    def _went_on(self, rank: int, pids: Mapping[int, int]) -> bool:
        """Whether it is the same process and has noted something new since; one that notes nothing need only be there."""
        if rank not in self._stood:
            return True  # of another node, which knows
        pid, newest = self._stood[rank]
        return pids.get(rank) == pid and (not newest or self._newest(rank) > newest)

    def _newest(self, rank: int) -> int:
        last = self.scenes.journals[rank].last()
        return last.sequence if last is not None else 0

    def end(self) -> None:
        """Look at nobody any more."""
        self.scenes.end()


EQUAL_WORK = ("ddp", "zero1")
"""Strategies under which all ranks do the same; stages differ by design."""


@dataclass
class Stragglers:
    """Those of one attempt. A rank must be slow twice in a row, for at least `LEAST_STEPS` steps each time.

    Args:
        console: where lines go.
        cases: where they are kept.
        pid_of: the process of a rank; 0 before it began.
        nodes: the other nodes, if there are any.
    """

    console: Console
    cases: Cases
    pid_of: Callable[[int], int]
    nodes: OtherNodes | None = None
    _base: Sequence[Gauges] = ()
    _found: tuple[int, str] | None = None
    _since_s: float = 0.0
    _held: Mapping[int, HeldBack] = field(default_factory=dict)
    """What had kept the processes of the rank that was found from running until then; its own first."""
    _said: set[tuple[int, str]] = field(default_factory=set)

    def look(self, gauges: Sequence[Gauges], strategy: str) -> None:
        """Look at the gauges of all ranks, in their order.

        Args:
            gauges: as they are now.
            strategy: as rank 0 decided it; empty before.
        """
        if strategy not in EQUAL_WORK or len(gauges) < 2:
            return
        if len(self._base) != len(gauges) or any(
            new.step < old.step for old, new in zip(self._base, gauges, strict=True)
        ):
            self._base = gauges
            return
        spent = [Spent.between(old, new) for old, new in zip(self._base, gauges, strict=True)]
        if min(one.steps for one in spent) < LEAST_STEPS:
            return
        self._base, slow = gauges, straggler(spent, homes=self.nodes.homes if self.nodes is not None else {})
        before, self._found = self._found, (slow.rank, slow.part) if slow is not None else None
        if slow is None or self._found in self._said:
            return
        if self._found != before:
            self._since_s, self._held = time.monotonic(), self._look_at(slow)
            return
        self._said.add((slow.rank, slow.part))
        why = self._cause(slow)
        said = f"{slow.text}{f'; {why.sentence}' if why is not None else ''}"
        self.console.line(line := Line("slow", said))
        self.cases.add(STRAGGLER, said, [slow.rank])
        if self.nodes is not None:
            self.nodes.say(line, STRAGGLER, frozenset({slow.rank}))

    def _look_at(self, slow: Straggler) -> dict[int, HeldBack]:
        pid = self.pid_of(slow.rank)
        if not pid:
            return {}
        return {each: held_back(each) for each in (pid, *(descendants(pid) if slow.part == "data" else ()))}

    def _cause(self, slow: Straggler) -> Cause | None:
        """What kept the rank from running since it was found first, or else what kept one of its loader workers."""
        now, seconds = self._look_at(slow), time.monotonic() - self._since_s
        for number, (pid, before) in enumerate(self._held.items()):
            found = kept_from_running(before, now[pid], seconds) if pid in now else None
            if found is not None:
                return Cause(found.why, found.text, "its loader worker") if number else found
        return None
