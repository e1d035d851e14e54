"""What the launcher adds to a run's `events.jsonl` (`samebits.protocol.events`), and `summary.json` at its end.

It reads what the ranks show anyway (gauges, journals, findings), so that a step costs nothing more.
"""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import mean
from typing import Any

from samebits.launcher.blame import RankEnd
from samebits.launcher.diagnosis.spent import PARTS, TIME_NAMES, Spent
from samebits.launcher.request import LaunchRequest
from samebits.launcher.terminal.report import Seconds
from samebits.machine.processes import resident_bytes, signal_name
from samebits.protocol.case import cases_in, names_of
from samebits.protocol.events import SCHEMA, Kind, add_event, events_in, executed_steps, of_kind
from samebits.protocol.installation import VERSION
from samebits.protocol.journal.failure import FailureKind
from samebits.protocol.journal.gauges import Gauges
from samebits.protocol.journal.ring import JournalReader, Phase, Record
from samebits.protocol.run_folder import RunFolder, read_json, write_private

LEAST_PACE_S = 1.0
PACE_PART = 200
"""Between two lines about the pace lies this part of the time so far: 1,800 of them in a week."""
STALLS = frozenset({"missing-rank", "stalled-in-data", "stalled-in-script", "stopped-process", "busy-rank"})


@dataclass
class RankTotals:
    """What one rank did in all its starts."""

    samples: int = 0
    spent_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    peak_bytes: int = 0

    def add(self, gauges: Gauges) -> None:
        """Add those of a start that has ended."""
        self.samples += gauges.samples
        for part in PARTS:
            self.spent_ns[part] += getattr(gauges, f"{part}_ns")


@dataclass
class EventLog:
    """The events of one run, as the launcher sees them.

    Args:
        folder: the run's.
    """

    folder: RunFolder
    step: int = 0
    totals: dict[int, RankTotals] = field(default_factory=dict)
    last_steps: list[int] = field(default_factory=list)
    """The last step of each start."""
    _attempts: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _next_pace_s: float = 0.0
    _before: tuple[Gauges, ...] | None = None
    """The gauges of the line about the pace before, of this start."""
    _num_findings: int = 0
    _findings_bytes: int = 0
    _loss: float | None = None
    """That of the last step."""

    def add(self, kind: Kind, **fields: Any) -> None:
        """Add an event of now."""
        add_event(self.folder.events, kind, self.step, **fields)

    def start(self, request: LaunchRequest) -> None:
        """All ranks start."""
        first = {"schema": SCHEMA} if not self._attempts else {}
        fields = {
            "ranks": request.world_size,
            "device": request.placement.device,
            "threads": request.placement.threads,
            "host": platform.node(),
        }
        self.add(Kind.START, attempt=self._attempts, **fields, **first)
        self._attempts += 1
        self._before = None

    def look(self, now: float, gauges: Sequence[Gauges], journals: Mapping[int, JournalReader]) -> None:
        """Note what is new.

        Args:
            now: `time.monotonic()`.
            gauges: of all ranks whose steps are known.
            journals: of the ranks of this node.
        """
        steps = max((one.step for one in gauges), default=0)
        self.step = steps or self.step
        self._look_at_findings()
        if not steps:
            return
        if _evaluates(journals):
            self._before = None  # it is no part of a step
            return
        if self._before is None:
            self._before, self._next_pace_s = tuple(gauges), now + LEAST_PACE_S
        elif now >= self._next_pace_s:
            self._pace(now, gauges, journals)

    def _pace(self, now: float, gauges: Sequence[Gauges], journals: Mapping[int, JournalReader]) -> None:
        assert self._before is not None
        before = self._before
        self._before = tuple(gauges)
        self._next_pace_s = now + max(LEAST_PACE_S, (now - self._began_s) / PACE_PART)
        spent = [Spent.between(old, new) for old, new in zip(before, gauges, strict=False)]
        steps, samples = max(one.steps for one in spent), sum(one.samples for one in spent)
        if steps <= 0:
            return
        parts = {part: mean(one.parts[part] for one in spent) for part in PARTS}
        whole_s = sum(parts.values()) or math.inf
        first = gauges[0]
        self.add(
            Kind.PACE,
            epoch=first.epoch,
            num_epochs=first.num_epochs,
            step_in_epoch=first.step_in_epoch,
            steps_per_epoch=first.steps_per_epoch,
            loss=first.loss if first.num_losses and math.isfinite(first.loss) else None,
            samples_per_s=round(samples / (steps * whole_s), 1),
            step_ms=round(1e3 * whole_s, 3) if math.isfinite(whole_s) else None,
            shares={TIME_NAMES[part]: round(took / whole_s, 4) for part, took in parts.items()},
            memory=[resident_bytes(journal.pid) if journal.pid else 0 for journal in journals.values()],
        )

    def _look_at_findings(self) -> None:
        try:
            size = self.folder.findings.stat().st_size
        except OSError:
            return
        if size == self._findings_bytes:
            return
        self._findings_bytes = size
        cases = cases_in(self.folder.findings)
        for case in cases[self._num_findings :]:
            kind = Kind.STALL if case.finding in STALLS else Kind.FINDING
            self.add(kind, finding=case.finding, ranks=list(case.ranks), said=case.said)
        self._num_findings = len(cases)

    def ended(
        self, ends: Sequence[RankEnd], gauges: Mapping[int, Gauges], last: Mapping[int, Record], *, on_request: bool
    ) -> None:
        """All ranks of a start have ended.

        Args:
            ends: how those of this node did.
            gauges: the last ones of each rank that is known.
            last: what ranks did last.
            on_request: whether a user signal stopped the run: then an exit code is no failure.
        """
        self._look_at_findings()
        self.last_steps.append(max((one.step for one in gauges.values()), default=0))
        losses = [one.loss for one in gauges.values() if one.num_losses and math.isfinite(one.loss)]
        self._loss = losses[0] if losses else self._loss
        for rank, one in gauges.items():
            self.totals.setdefault(rank, RankTotals()).add(one)
        for end in sorted(ends, key=lambda each: each.time_ns):
            totals = self.totals.setdefault(end.rank, RankTotals())
            totals.peak_bytes = max(totals.peak_bytes, end.peak_bytes)
            if end.failure is not None or end.signal or not on_request:
                self._note_end(end, last.get(end.rank))

    def _note_end(self, end: RankEnd, last: Record | None) -> None:
        # Ends have a monotonic time, events that of the wall clock.
        at_s = time.time() - max(time.monotonic_ns() - end.time_ns, 0) / 1e9
        # A consequence of another end is no event.
        if end.stopped or (end.failure is not None and end.failure.kind is FailureKind.PEER):
            return
        if end.failure is not None:
            kind = Kind.DAMAGE if end.failure.kind is FailureKind.DAMAGE else Kind.FAILURE
            fields: dict[str, Any] = {"said": end.failure.error}
        elif end.signal:
            place = f"{Path(last.file).name}:{last.line}" if last is not None and last.file else ""
            kind, fields = Kind.KILL, {"signal": signal_name(end.signal), "place": place}
        elif end.code:
            kind, fields = Kind.FAILURE, {"said": f"ended with exit code {end.code}"}
        else:
            return
        self.step = last.step if last is not None else self.step
        add_event(self.folder.events, kind, self.step, time_s=at_s, rank=end.rank, **fields)

    def restart(self, lost_in: int | None, resumes_after: int | None, **fields: Any) -> None:
        """All ranks start again.

        Args:
            lost_in: the step in which one was lost, if that is known.
            resumes_after: the step of the state from which they go on; None: from the beginning.
            fields: the other ones of the event.
        """
        self.step = self.step if lost_in is None else lost_in
        self.add(Kind.RESTART, **fields)
        self.step = resumes_after or 0

    def seconds(self, total_s: float, result: Mapping[str, Any]) -> Seconds:
        """Where the time went, of a run that ended just now. `result`: what rank 0 left."""
        steps_s = max((sum(one.spent_ns.values()) / 1e9 for one in self.totals.values()), default=0.0)
        end_s = (time.monotonic_ns() - (result.get("over_since_ns") or math.inf)) / 1e9
        samples = sum(one.samples for one in self.totals.values())
        return Seconds(total_s, steps_s, samples, result.get("evaluation_s", 0.0), max(end_s, 0.0))

    def summarize(self, request: LaunchRequest, outcome: Mapping[str, Any]) -> None:
        """Write the last event and `summary.json`; a full disk loses them, not the run.

        Args:
            request: the run.
            outcome: exit_code, signal and seconds.
        """
        self.add(Kind.END, **outcome)
        with suppress(OSError):
            write_private(self.folder.summary, json.dumps(self._summary(request, outcome), indent=1) + "\n")

    def _summary(self, request: LaunchRequest, outcome: Mapping[str, Any]) -> dict[str, Any]:
        events = events_in(self.folder.events)
        result, decided = read_json(self.folder.result), read_json(self.folder.decided)
        executed = executed_steps(events, self.last_steps)
        return {
            "schema": SCHEMA,
            "script": request.title,
            "args": list(request.entry.args),
            "began": events[0].time_s if events else None,
            **outcome,
            "versions": _versions(),
            "machine": f"{platform.system()} {platform.machine()}",
            "ranks": request.world_size,
            "threads": decided.get("threads", request.placement.threads),
            "device": request.placement.device,
            **{name: decided.get(name) for name in ("lanes", "batch_size", "strategy", "arithmetic")},
            "steps": self.step,
            "executed_steps": executed,
            "epochs": result.get("epochs"),
            "samples": result.get("samples", ""),
            "loss": self._loss,
            "bits": result.get("bits", ""),
            "resumed_without": result.get("without", []),
            "lanes_hand_on": result.get("handed_on", []),
            "samples_depend_on": result.get("own_samples", []),
            "not_looked_at": result.get("unread", []),
            "starts": self._attempts,
            "kills": len(of_kind(events, Kind.KILL)),
            "steps_again": sum(event.fields.get("steps_again") or 0 for event in of_kind(events, Kind.RESTART)),
            "findings": names_of(cases_in(self.folder.findings)),
            "time": {str(rank): self._time_of(totals, executed) for rank, totals in sorted(self.totals.items())},
        }

    def _time_of(self, totals: RankTotals, executed: int) -> dict[str, Any]:
        seconds = {f"{TIME_NAMES[part]}_s": round(spent / 1e9, 4) for part, spent in totals.spent_ns.items()}
        in_steps = sum(totals.spent_ns.values()) / 1e9
        return {
            **seconds,
            "samples": totals.samples,
            "step_ms": round(1e3 * in_steps / executed, 4) if executed else None,
            "peak_bytes": totals.peak_bytes,
        }


def _evaluates(journals: Mapping[int, JournalReader]) -> bool:
    last = next(iter(journals.values())).last() if journals else None
    return last is not None and last.phase is Phase.EVALUATE


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "samebits": VERSION}
    with suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    return found
