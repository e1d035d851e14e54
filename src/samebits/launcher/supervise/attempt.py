"""One start of all ranks, when all have ended (`Attempt`): what is known of it, and what the next one begins with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.launcher.blame import Verdict
from samebits.launcher.choices import Recover
from samebits.launcher.diagnosis.findings import EARLY_LEAVER, KILLED_FOR_MEMORY
from samebits.launcher.folder import renew_run_folder
from samebits.launcher.recovery import Regroup, RestartAll, Scene
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.ending_ranks import Ending
from samebits.launcher.supervise.observer import Observer
from samebits.launcher.supervise.surroundings import Known
from samebits.launcher.terminal.failure_block import Evidence, crash_stack, last_work
from samebits.launcher.terminal.report import Whence
from samebits.machine.regular_file import open_regular
from samebits.protocol.layout.mesh import shrinks
from samebits.protocol.run_folder import RunFolder, add_line, unsaved
from samebits.protocol.saving import newest_kept

MOST_NAMED = 3
MOST_LOG_BYTES = 1 << 22


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks, when all have ended."""

    ending: Ending
    verdict: Verdict
    observer: Observer
    log_bytes: Mapping[int, int]
    """How long each rank's log was when it started."""
    saves: bool
    """Whether the run saves by itself."""
    newest_step: int | None
    """The step of the newest state that samebits saved on the disk; None when there is none."""
    whence: Whence
    """From where the next ranks would resume."""
    block: str | None = None
    """The failure block of the run on several nodes; None on one."""
    first_node: str = ""
    """The node with rank 0, which reports how the whole run went; empty on that one, and on one node."""

    def why_short_of_memory(self, rank: int) -> str:
        """Why the kernel killed a rank, if it did so for lack of memory."""
        known = self.ending.known.get(rank, Known())
        return known.why_killed if known.finding is KILLED_FOR_MEMORY else ""


def scene_of(request: LaunchRequest, attempt: Attempt) -> Scene:
    """What `recovery.decide` looks at."""
    culprit, observer = attempt.verdict.culprit, attempt.observer
    last = last_work(observer.tail(culprit.rank)) if culprit is not None else None
    return Scene(
        attempt.verdict,
        observer.uses_samebits,
        last,
        can_start=not attempt.ending.nursery_is_gone,
        ranks=request.placement.ranks,
        can_shrink=request.seat is None and _can_shrink(request, observer),
        even_lanes=int(observer.decided().get("lanes") or 0) if observer.decided().get("even_lanes") else 0,
    )


def newest_state(request: LaunchRequest, saved: int | None, why: str) -> Whence:
    """The newest of what is on the disk and in memory, as ranks choose it; the beginning, where states lack something."""
    names = unsaved(RunFolder(request.output.run_folder), "names") if request.recovery.recover is Recover.EXACT else []
    if names:
        return Whence(why=f"no state holds {', '.join(names[:MOST_NAMED])}{' and more' * (len(names) > MOST_NAMED)}")
    kept = newest_kept(Path(request.snapshots.folder)) if request.snapshots is not None else None
    if kept is not None and (saved is None or kept > saved):
        return Whence(kept, in_memory=True)
    if not why and request.snapshots is not None and request.snapshots.steps:
        why = "the first one was not written yet"  # it was requested, and the writer has to start first
    return Whence(saved, why=why and f"no snapshot: {why}")


def _can_shrink(request: LaunchRequest, observer: Observer) -> bool:
    """Whether fewer ranks would compute the same. A script without samebits must know itself what it does then."""
    if not observer.uses_samebits:
        return request.recovery.shrinks
    decided = observer.decided()
    return shrinks(request.computation.form) and bool(decided.get("lanes")) and not decided.get("ranks_are_fixed")


def regrouped_request(request: LaunchRequest, decision: Regroup, attempt: Attempt) -> LaunchRequest:
    """The next attempt, on other nodes; lanes stay."""
    restart = {"regroup": decision.changes, "step": attempt.whence.step, "in_memory": attempt.whence.in_memory}
    add_line(RunFolder(request.output.run_folder).restarts, restart)
    lanes = attempt.observer.decided().get("lanes") or request.computation.lanes
    return replace(request, computation=replace(request.computation, lanes=lanes), restart=renew_run_folder(request))


def next_request(request: LaunchRequest, decision: RestartAll, attempt: Attempt) -> LaunchRequest:
    """The next attempt, in a run folder that is ready for it."""
    restart = {
        "restart": decision.number,
        "lost": decision.loss.sentence,
        "ranks": decision.ranks or request.placement.ranks,
        "step": attempt.whence.step,
        "in_memory": attempt.whence.in_memory,
        "steps_again": attempt.whence.num_again(decision.loss),
        "no_snapshot": attempt.whence.why,
    }
    add_line(RunFolder(request.output.run_folder).restarts, restart)
    lanes = attempt.observer.decided().get("lanes") if decision.ranks else request.computation.lanes
    fewer = replace(
        request,
        placement=replace(request.placement, ranks=decision.ranks or request.placement.ranks),
        computation=replace(request.computation, lanes=lanes or request.computation.lanes),
    )
    return replace(fewer, restart=replace(renew_run_folder(fewer), most=decision.most))


def restart_fields(request: LaunchRequest, decision: RestartAll, attempt: Attempt) -> dict[str, Any]:
    """For the event of a restart."""
    return {
        "restart": decision.number,
        "ranks": decision.ranks or request.placement.ranks,
        "said": decision.loss.sentence,
        "from": attempt.whence.step,
        "in_memory": attempt.whence.in_memory,
        "steps_again": attempt.whence.num_again(decision.loss),
    }


def evidence_of(attempt: Attempt, folder: RunFolder) -> Evidence:
    """What is known about the culprit, who is on this node."""
    culprit = attempt.verdict.culprit
    rank = culprit.rank if culprit is not None else min(attempt.log_bytes)
    log = folder.log(rank)
    known = attempt.ending.known.get(rank, Known()) if culprit is not None else Known()
    return Evidence(
        tail=attempt.observer.tail(rank),
        log=log,
        stack=crash_stack(_written_since(log, attempt.log_bytes[rank])),
        kill_reason=known.why_killed,
        finding=EARLY_LEAVER if attempt.verdict.left_early else known.finding,
        folds=attempt.observer.folds_tracebacks,
    )


def _written_since(log: Path, before: int) -> bytes:
    """The end of what was written to a rank's log since it had `before` bytes; nothing where the script put something else there."""
    with suppress(OSError), open_regular(log) as file:
        file.seek(max(before, os.fstat(file.fileno()).st_size - MOST_LOG_BYTES))
        return file.read(MOST_LOG_BYTES)
    return b""
