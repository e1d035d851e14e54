"""The one block that says how a run failed: printed once, last, and complete."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import DIFFERENT_BITS, mistake_text
from lockstep.launcher.diagnosis.findings import Finding
from lockstep.launcher.diagnosis.words import PHASES, ranks_text
from lockstep.launcher.terminal.traceback_text import fold_libraries
from lockstep.launcher.verdict import RankEnd, Verdict
from lockstep.machine.processes import signal_name
from lockstep.machine.regular_file import is_regular
from lockstep.machine.visible import visible
from lockstep.protocol.journal.failure import Failure, FailureKind
from lockstep.protocol.journal.ring import Phase, Record

INDENT = "  "
QUOTED = "  | "
"""Before the words of others, of which each may look like a line of ours."""
MAX_STACK_BYTES = 1 << 16
_NOT_THE_SCRIPT = (str(Path(__file__).parents[1]), "<frozen runpy>", "Extension modules:")
_DETAILED = (Phase.COMPUTE, Phase.EXCHANGE)
"""Phases whose operation says more: which lane, which exchange."""


@dataclass(frozen=True)
class Evidence:
    """What is known about the culprit besides how it ended."""

    tail: Sequence[Record]
    """Its newest journal records, oldest first."""
    log: Path
    stack: str
    """What faulthandler wrote into the log; empty if nothing."""
    kill_reason: str
    """Why it got SIGKILL, as far as can be told."""
    finding: Finding | None = None
    """What kind of trouble it is, if it is a known one."""
    folds: bool = False
    """Whether frames of libraries are left out of the traceback."""


def failure_block(verdict: Verdict, evidence: Evidence) -> str:
    """The block, without a trailing newline; for a misuse of lockstep only the mistake and the fix."""
    end = verdict.culprit
    if end is None:
        return ""
    if end.failure is not None and end.failure.kind is FailureKind.USAGE:
        return mistake_text(*end.failure.mistake)
    doing = last_work(evidence.tail)
    if end.failure is not None and end.failure.kind is FailureKind.DAMAGE:
        return _damage(end.failure, doing, evidence)
    if end.failure is not None and end.failure.kind is FailureKind.STALL:
        lines = [f"FAILED    {end.failure.error}", *_help(evidence.finding), f"{INDENT}log: {evidence.log}"]
        return "\n".join(map(visible, lines))
    peer = end.failure is not None and end.failure.kind is FailureKind.PEER
    headline = verdict.leavers_text if peer and verdict.left_early else _headline(end, doing)
    lines = [f"FAILED    {headline}"]
    lines += _where(end, doing)
    if not (peer and verdict.left_early):  # where others wait says nothing about who left
        lines += _body(end, evidence)
    lines += _consequences(verdict)
    lines += _help(evidence.finding)
    if end.failure is not None and end.failure.fix:
        lines.append(f"{INDENT}help: {end.failure.fix}")
    lines.append(f"{INDENT}log: {evidence.log}")
    return "\n".join(map(visible, lines))


def _help(finding: Finding | None) -> list[str]:
    """What to do first."""
    return [f"{INDENT}help: {finding.aid_afterwards}"] if finding is not None else []


def _damage(failure: Failure, doing: Record | None, evidence: Evidence) -> str:
    """The block for ranks with different bits: the sentence, without a traceback of lockstep's own lines."""
    when = f" at step {doing.step}" if doing is not None and doing.step else ""
    said = f"FAILED    rank {failure.rank} {failure.error}{when} ({failure.fix})"
    return "\n".join(map(visible, [said, f"{INDENT}{DIFFERENT_BITS}", f"{INDENT}log: {evidence.log}"]))


def lost_block(lost: Sequence[str]) -> str:
    """The same for a run whose script ended well but lost something that could not be written; empty if nothing."""
    if not lost:
        return ""
    lines = ["FAILED    the script ended well, but some of its output could not be written:"]
    return "\n".join([*lines, *(f"{INDENT}{visible(one)}" for one in lost)])


def last_work(tail: Sequence[Record]) -> Record | None:
    """What a rank did last, from its newest records; None when it kept no journal."""
    work = [record for record in tail if record.phase not in (Phase.FAILED, Phase.FINISHED)]
    return work[-1] if work else None


def _headline(end: RankEnd, doing: Record | None) -> str:
    parts = [f"rank {end.rank}"]
    if doing is not None and doing.step:
        parts.append(f"step {doing.step}")
    if doing is not None and doing.phase is not Phase.START:
        detail = doing.operation if doing.phase in _DETAILED else ""
        parts.append(f"{PHASES[doing.phase]} {detail}".rstrip())
    return f"{', '.join(parts)}: {_what(end)}"


def _what(end: RankEnd) -> str:
    if end.failure is not None:
        return end.failure.error
    if end.signal:
        return f"killed by {signal_name(end.signal)}"
    return f"the script ended with exit code {end.code}"


def _where(end: RankEnd, doing: Record | None) -> list[str]:
    """The user's line: the exception's, or the last one in the journal of a rank that could not say more."""
    if end.failure is not None and end.failure.file:
        return [f"{INDENT}at {end.failure.file}:{end.failure.line}", *_source(end.failure.file, end.failure.line)]
    if end.failure is None and doing is not None and doing.file:
        return [f"{INDENT}last at {doing.file}:{doing.line}", *_source(doing.file, doing.line)]
    return []


def _source(file: str, line: int) -> list[str]:
    text = linecache.getline(file, line).strip() if is_regular(Path(file).resolve()) else ""  # a device may never end
    return [f"{INDENT}{INDENT}{text}"] if text else []


def _body(end: RankEnd, evidence: Evidence) -> list[str]:
    lines: list[str] = []
    if end.failure is not None:
        shown = fold_libraries(end.failure.traceback) if evidence.folds else end.failure.traceback
        lines += ["", *_quoted(shown), ""]
        if end.failure.sample is not None:
            place = f" ({end.failure.sample_place})" if end.failure.sample_place else ""
            lines.append(f"{INDENT}sample: number {end.failure.sample} of the data set{place}")
    elif end.signal:
        if evidence.kill_reason:
            lines.append(f"{INDENT}why: {evidence.kill_reason}")
        if evidence.stack:
            lines += ["", *_quoted(evidence.stack), ""]
    return lines


def _quoted(text: str) -> list[str]:
    return [f"{QUOTED}{line}".rstrip() for line in text.rstrip().split("\n")]


def _consequences(verdict: Verdict) -> list[str]:
    lines = []
    if verdict.same:
        lines.append(f"{INDENT}the same on {ranks_text(verdict.same)}")
    if verdict.stopped:
        count = len(verdict.stopped)
        lines.append(f"{INDENT}{count} other rank{'s' if count > 1 else ''} stopped because of this")
    return lines


def crash_stack(log: bytes) -> str:
    """What faulthandler last wrote into a rank's log; empty if nothing."""
    text = log[-MAX_STACK_BYTES:].decode(errors="replace")
    start = text.rfind("Fatal Python error:")
    if start < 0:
        return ""
    lines = text[start:].splitlines()
    return "\n".join(line for line in lines if not any(part in line for part in _NOT_THE_SCRIPT)).rstrip()
