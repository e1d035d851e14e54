"""What the launcher sees of a run through its folder: decisions, gauges, pauses; and what it shows of that."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.launcher.choices import Verbosity
from samebits.launcher.diagnosis.probe import read_stack
from samebits.launcher.diagnosis.spent import Spent, Summary, summary
from samebits.launcher.event_log import EventLog
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.all_nodes import AllGauges, OtherNodes
from samebits.launcher.supervise.stalls import Stragglers
from samebits.launcher.terminal.cases import Losses
from samebits.launcher.terminal.progress import Progress, Snapshot
from samebits.launcher.terminal.report import lanes_line, numerics_line, opening_line, still_alone_line
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import RESULT, JournalReader, Phase, Record
from samebits.protocol.run_folder import RunFolder, read_json
from samebits.protocol.saving import newest_step

UPDATE_S = 0.25
"""Time between two looks, and two versions of the progress line on a terminal."""
PLAIN_LINE_S = 30.0
"""Time between two progress lines where a line cannot be overwritten."""
WAIT_FOR_BATCH_S = 5.0
"""How long the line about lanes waits for `prepare` to name the batch."""

STILL_ALONE_S = 60.0
"""How long the ranks may go without meeting before we say so."""


@dataclass
class FirstLines:
    """What is displayed once, however often the ranks start."""

    opening: bool = False
    """The first line."""
    decided: bool = False
    """Lanes and numerics."""


class Observer:
    """Looks into the run folder now and then."""

    def __init__(
        self,
        request: LaunchRequest,
        folder: RunFolder,
        losses: Losses,
        nodes: OtherNodes | None = None,
        *,
        events: EventLog,
        first_lines: FirstLines,
    ) -> None:
        self._request, self._events = request, events
        self._folder = folder
        self._losses, self._saying = losses, losses.console
        self._journals = {rank: JournalReader(folder.journal(rank)) for rank in request.numbers}
        self._first = self._journals[request.numbers.start]
        self._progress = Progress()
        self._is_first = request.numbers.start == 0
        """Whether rank 0 is here: then what concerns the whole run is displayed here."""
        self._nodes, self._all_gauges = nodes, AllGauges(nodes.cluster if nodes is not None else None)
        self._stragglers = Stragglers(losses.console, losses.cases, self._pid_of, nodes)
        self.last_gauges: tuple[Gauges, ...] = ()
        """The last ones of ranks on other nodes, once those have published them."""
        self._strategy = ""
        self._lines, self._began_s = first_lines, time.monotonic()
        self.has_begun = False
        """Whether all ranks have a process."""
        self._decided: Mapping[str, Any] = {}
        self._decided_at: float | None = None
        self._next_plain: float | None = None
        self._warn_alone_at = math.inf if request.placement.ranks == 1 else 0.0
        """When we say that ranks have not met; 0: `STILL_ALONE_S` after the first look."""

    def look(self, now: float) -> None:
        """Say what is new and redraw the progress line."""
        self._look_for_losses()
        own = self.own_gauges()
        self._events.look(now, self._all_gauges.of(own), self._journals)
        if self._all_gauges.publish(own, now) and self._nodes is not None:
            self._nodes.cluster.publish_saved(*self.newest())
        if not self._is_first or self._saying.terminal is None or self._request.output.verbosity is Verbosity.QUIET:
            return
        if not self._lines.decided:
            self._say_decided(now)
        if self.paused or not self._lines.opening:
            self._say_under_way(now)
            return
        self._strategy = self._strategy or str(self.decided().get("strategy") or "")
        gauges = self._all_gauges.of(own)
        if len(gauges) == self._request.world_size:
            self._stragglers.look(gauges, self._strategy)
        self._progress.add(Snapshot(now, gauges))
        if self._saying.terminal.updates:
            width = self._saying.terminal.width
            self._saying.terminal.progress(self._progress.line(self._first.note(), width, self._first.last()))
        else:
            self._say_plainly(self._progress.line(self._first.note(), last=self._first.last()), now)

    def own_gauges(self) -> tuple[Gauges, ...]:
        """Those of the ranks of this node."""
        return tuple(journal.gauges() for journal in self._journals.values())

    def _look_for_losses(self) -> None:
        for journal in self._journals.values():
            for sentence in journal.lost():
                self._losses.add(sentence)

    def _say_plainly(self, line: str, now: float) -> None:
        if line and now >= (self._next_plain or 0.0):
            if self._next_plain is not None:
                self._saying.plain(line)
            self._next_plain = now + PLAIN_LINE_S

    def _say_under_way(self, now: float) -> None:
        """Say what the first line waits for, in its place; where no line can be overwritten, now and then."""
        terminal, after_s = self._saying.terminal, int(now - self._began_s)
        what = f"{'starting the script' if self.has_begun else 'importing torch'} ({after_s} s)"
        if terminal is not None and terminal.updates:
            terminal.progress(what if after_s and not self.paused else None)
        elif not self.paused:
            self._say_plainly(f"{what}, {self._request.output.run_folder}", now)

    def _say_decided(self, now: float) -> None:
        decided = self.decided()
        if decided:
            self._decided_at = self._decided_at or now
            if decided.get("batch_size") or now > self._decided_at + WAIT_FOR_BATCH_S:
                self._say_lanes(decided)

    def warn_alone(self, now: float, *, joined: bool) -> None:
        """Say once that the ranks have not met, a while after they began, or were seen in an import for the last time."""
        if self._warn_alone_at == 0.0:
            self._warn_alone_at = now + STILL_ALONE_S
        elif now >= self._warn_alone_at:
            self._warn_alone_at = math.inf
            is_waited_for = any(journal.waiting() is not None for journal in self._journals.values())
            if joined or self.met or self.paused or is_waited_for:
                return
            # Reading a stack takes up to seconds, in which nothing else is looked at.
            imports = (stack.is_importing for pid in self._pids if (stack := read_stack(pid)) is not None)
            if not self.has_begun or any(imports):
                self._warn_alone_at = now + STILL_ALONE_S
            else:
                self._saying.line(still_alone_line(self._request.placement.ranks, STILL_ALONE_S))

    def last_words(self) -> None:
        """Say what a short run decided or lost since the last look."""
        self._look_for_losses()
        decided = self.decided()
        if not self._is_first or self._lines.decided or self._request.output.verbosity is Verbosity.QUIET:
            return
        if decided:
            self._say_lanes(decided)
        elif not self._lines.opening:
            self._say_opening({})

    def _say_opening(self, decided: Mapping[str, Any]) -> None:
        self._lines.opening = True
        self._saying.line(opening_line(self._request, decided))

    def _say_lanes(self, decided: Mapping[str, Any]) -> None:
        """In the first line, or in one of their own where that was displayed already."""
        if self._lines.opening:
            self._saying.line(lanes_line(decided))
        else:
            self._say_opening(decided)
        self._lines.decided = True
        if (numerics := numerics_line(self._request, decided)) is not None:
            self._saying.line(numerics)

    @property
    def folds_tracebacks(self) -> bool:
        """Whether frames of libraries are left out of what is displayed."""
        return not self._request.output.full_traceback

    @property
    def _pids(self) -> list[int]:
        return [journal.pid for journal in self._journals.values() if journal.pid]

    def _pid_of(self, rank: int) -> int:
        return self._journals[rank].pid if rank in self._journals else 0

    @property
    def journals(self) -> Mapping[int, JournalReader]:
        """Of all ranks."""
        return self._journals

    @property
    def paused(self) -> bool:
        """Whether rank 0 is at a debugger's prompt."""
        last = self._first.last()
        return last is not None and last.phase is Phase.PAUSED

    def summary(self) -> Summary:
        """What the time of this attempt went into."""
        gauges = (*self.own_gauges(), *self.last_gauges)
        return summary(
            [Spent.between(Gauges(), each) for each in gauges],
            self._request.numbers.start,
            self._nodes.homes if self._nodes is not None else {},
            str(self.decided().get("strategy") or ""),
        )

    def tail(self, rank: int) -> list[Record]:
        """The newest journal records of a rank, which may be dead."""
        return self._journals[rank].tail(8)

    def decided(self) -> Mapping[str, Any]:
        """What rank 0 decided; empty before that. It stays, if somebody removes the run's folder."""
        self._decided = read_json(self._folder.decided) or self._decided
        return self._decided

    def newest(self) -> tuple[str, int | None]:
        """Where the run saves by itself, empty when it does not; and the step of the newest state there."""
        saving = self._request.saving
        place = str(saving.folder if saving is not None else self.decided().get("states") or "")
        return place, newest_step(Path(place)) if place else None

    def no_snapshots(self) -> str:
        """Why the ranks keep no state in memory; empty while they do, or may yet."""
        return str(read_json(self._folder.snapshots).get("why", ""))

    def result(self) -> Mapping[str, Any]:
        """What rank 0 left at the end; empty when it left nothing."""
        # `run.log(result=0.5)` has this name too.
        noted = self._first.note().get(RESULT)
        return read_json(self._folder.result) or (noted if isinstance(noted, dict) else {})

    @property
    def uses_samebits(self) -> bool:
        """Whether the script called `samebits.init` on some rank."""
        # A debugger writes its pauses into the journal of a plain script too.
        lasts = [last for journal in self._journals.values() if (last := journal.last()) is not None]
        return bool(self.decided()) or any(last.phase is not Phase.PAUSED for last in lasts)

    @property
    def met(self) -> bool:
        """Whether the ranks met through the run folder."""
        return bool(self.decided()) or any(self._folder.path.glob("store-*"))
