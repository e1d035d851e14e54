"""The one form in which whatever goes wrong is printed: who, where, why, and what to do.

    FAILED    rank 1, in step 20 (19 done), optimizer: killed by signal 9 (SIGKILL)
      where   last seen at /home/ada/train.py:32  optimizer.step()
      why     the kernel killed it for lack of memory
      others  rank 0 was stopped because of this
      help    Use a smaller batch, fewer ranks or fewer loader workers.
      log     samebits-runs/exp1/logs/rank-00001.log

A failure's block is printed once, last, and complete; a stall's, and that of a loss after which the run goes on, as soon
as it is found.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from samebits.errors import DIFFERENT_BITS
from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.diagnosis.findings import Finding
from samebits.launcher.diagnosis.words import PHASES, ranks_text, step_text
from samebits.launcher.recovery import RestartAll, loss_of
from samebits.launcher.terminal.report import LABEL_WIDTH, QUOTED, Whence, count_text
from samebits.machine.processes import signal_name
from samebits.machine.regular_file import is_regular
from samebits.machine.visible import visible_lines
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.ring import Phase, Record

MAX_STACK_BYTES = 1 << 16
_NOT_THE_SCRIPT = (str(Path(__file__).parents[1]), "<frozen runpy>", "Extension modules:")
_DETAILED = (Phase.COMPUTE, Phase.EXCHANGE)
"""Phases whose operation says more: which lane, which exchange."""
HELP = "  help"


@dataclass(frozen=True)
class Block:
    """What is known of one trouble. Empty texts are left out; a text may have several lines."""

    who: str
    """The answer: which rank, what it was doing, what happened."""
    title: str = "FAILED"
    where: str = ""
    """The user's line and its source."""
    why: str = ""
    traceback: str = ""
    """In the words of others, of which each may look like a line of ours; so each is marked."""
    others: str = ""
    """What became of the other ranks."""
    back: str = ""
    """How the run goes on all the same."""
    help: str = ""
    log: str = ""

    @property
    def text(self) -> str:
        """The block, without a trailing newline. Nothing in it acts on a terminal."""
        quoted = [f"{QUOTED}{line}".rstrip() for line in visible_lines(self.traceback.rstrip()).split("\n")]
        rows = [*_rows(self.title, self.who), *_rows("  where", self.where), *_rows("  why", self.why)]
        rows += ["", *quoted, ""] if self.traceback else []
        rows += [
            *_rows("  others", self.others),
            *_rows("  back", self.back),
            *_rows(HELP, self.help),
            *_rows("  log", self.log),
        ]
        return "\n".join(rows)


def _rows(label: str, text: str) -> list[str]:
    rows = visible_lines(text).split("\n") if text else []
    return [f"{'' if number else label:<{LABEL_WIDTH}}{row}".rstrip() for number, row in enumerate(rows)]


def stall_block(sentence: str, where: str = "", help: str = "") -> Block:
    """The block of ranks that are stalled: one clause of the sentence a line, the answer first."""
    who, _, why = sentence.partition("; ")
    return Block(who, "STALLED", where, "\n".join(why.split("; ")), help=help)


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
    """The text of a failure's block; empty where nobody is to blame."""
    end = verdict.culprit
    if end is None:
        return ""
    failure, doing = end.failure, last_work(evidence.tail)
    kind = failure.kind if failure is not None else None
    block = Block(
        _headline(end, doing),
        where=_where(end, doing),
        why=evidence.kill_reason if end.signal and failure is None else "",
        traceback=_traceback(end, evidence),
        others=_others(verdict),
        help=_help(failure, evidence.finding),
        log=str(evidence.log),
    )
    if failure is not None and kind is FailureKind.STALL:
        stalled = stall_block(failure.error)
        block = replace(block, who=stalled.who, why=stalled.why)
    elif failure is not None and kind is FailureKind.DAMAGE:
        block = replace(block, who=loss_of(end, doing, uses_samebits=doing is not None).sentence, why=DIFFERENT_BITS)
    elif kind is FailureKind.PEER and verdict.left_early:
        block = replace(block, who=verdict.leavers_text, traceback="")
    return block.text


def annotation(end: RankEnd, doing: Record | None, workspace: str) -> str:
    """A failure as GitHub Actions shows it beside the line: `::error file=train.py,line=19::rank 1, ...: KeyError: 'b'`.

    Args:
        end: of the rank that is to blame.
        doing: what it did last.
        workspace: GITHUB_WORKSPACE, to which files are relative there.
    """
    file, line = (end.failure.file, end.failure.line) if end.failure is not None else ("", 0)
    if not file and doing is not None:
        file, line = doing.file, doing.line
    if workspace and file.startswith(f"{workspace}{os.sep}"):
        file = os.path.relpath(file, workspace)
    place = f" file={_escaped(file, {':': '%3A', ',': '%2C'})},line={line}" if file else ""
    return f"::error{place}::{_escaped(_headline(end, doing), {})}"


def _escaped(text: str, more: Mapping[str, str]) -> str:
    """For a workflow command; in a property colons and commas too."""
    for letter, code in {"%": "%25", "\r": "%0D", "\n": "%0A", **more}.items():
        text = text.replace(letter, code)
    return text


def restart_block(decision: RestartAll, whence: Whence, why: str = "") -> str:
    """What was lost, and that all ranks start again: how many if they are fewer than before, and from where.

    Args:
        decision: to start again.
        whence: from where they resume.
        why: why the rank was killed, if that is known.
    """
    who = "all ranks start"
    if decision.ranks:
        less = "one" if decision.given_up == 1 else decision.given_up
        who = f"{count_text(decision.ranks, 'rank')}, {less} less, start{'s' * (decision.ranks == 1)}"
    again = whence.num_again(decision.loss)
    twice = f"{count_text(again, 'step')} {'is' if again == 1 else 'are'} computed again; " if again else ""
    back = f"{who} again ({decision.counted}), {whence.place}\n{twice}lines below may repeat"
    return Block(decision.loss.sentence, "LOST", why=why, back=back).text


def lost_block(lost: Sequence[str]) -> str:
    """The block of a run whose script ended well but lost something that could not be written; empty if nothing."""
    who = "the script ended well, but some of its output could not be written"
    return Block(who, why="\n".join(lost)).text if lost else ""


def last_work(tail: Sequence[Record]) -> Record | None:
    """What a rank did last, from its newest records; None when it kept no journal."""
    return tail[-1] if tail else None


def _headline(end: RankEnd, doing: Record | None) -> str:
    parts = [f"rank {end.rank}"]
    if doing is not None and doing.step:
        parts.append(step_text(doing.step, is_in_step=doing.is_in_step))
    if doing is not None and doing.phase is not Phase.START:
        parts += filter(None, [PHASES[doing.phase], doing.operation if doing.phase in _DETAILED else ""])
    if end.failure is not None:
        what = end.failure.mistake[0] if end.failure.kind is FailureKind.USAGE else end.failure.error
    else:
        what = f"killed by {signal_name(end.signal)}" if end.signal else f"the script ended with exit code {end.code}"
    return f"{', '.join(parts)}: {what}"


def _where(end: RankEnd, doing: Record | None) -> str:
    """The user's line: the exception's, or the last one in the journal of a rank that could not say more."""
    failure = end.failure
    if failure is None:
        return f"last seen at {place_text(doing.file, doing.line)}" if doing is not None and doing.file else ""
    at = place_text(failure.file, failure.line) if failure.file else ""
    if failure.sample is None:
        return at
    came = f" ({failure.sample_place})" if failure.sample_place else ""
    return f"{at}\nsample {failure.sample} of the data set{came}".lstrip("\n")


def place_text(file: str, line: int) -> str:
    """A line of the user's: `/home/ada/train.py:31  loss.backward()`."""
    # [Note: why only regular files are read]
    # The name comes from the rank. Reading a device or a pipe may never end.
    source = linecache.getline(file, line).strip() if is_regular(Path(file).resolve()) else ""
    return f"{file}:{line}  {source}".rstrip()


def _traceback(end: RankEnd, evidence: Evidence) -> str:
    """What Python printed. A misuse of samebits is explained by its sentence, different bits by no line of the script."""
    if end.failure is None:
        return evidence.stack if end.signal else ""
    if end.failure.kind in {FailureKind.USAGE, FailureKind.DAMAGE}:
        return ""
    return fold_libraries(end.failure.traceback) if evidence.folds else end.failure.traceback


def _others(verdict: Verdict) -> str:
    same = f"the same on {ranks_text(verdict.same)}" if verdict.same else ""
    were = "was" if len(verdict.stopped) == 1 else "were"
    stopped = f"{ranks_text(verdict.stopped)} {were} stopped because of this" if verdict.stopped else ""
    return "\n".join(filter(None, (same, stopped)))


def _help(failure: Failure | None, finding: Finding | None) -> str:
    """What to do first: the exception's own fix is about this very case, the finding about its kind."""
    fix = failure.fix if failure is not None and failure.kind is not FailureKind.DAMAGE else ""
    return fix or (finding.aid_afterwards if finding is not None else "")


def crash_stack(log: bytes) -> str:
    """What faulthandler last wrote into a rank's log; empty if nothing."""
    text = log[-MAX_STACK_BYTES:].decode(errors="replace")
    start = text.rfind("Fatal Python error:")
    if start < 0:
        return ""
    lines = text[start:].splitlines()
    return "\n".join(line for line in lines if not any(part in line for part in _NOT_THE_SCRIPT)).rstrip()


# A traceback as it is printed: the user's own frames, those of libraries in one line, the cause last. The log has every frame.

_FRAME = re.compile(r'  File "([^"]+)", line ')
# The whole path: a user's own folder may be called samebits too.
_OURS = re.escape(str(Path(__file__).parents[2].parent))
_FOREIGN = re.compile(rf"-packages/(torch)/|{_OURS}/(samebits)/|<frozen (importlib)|/python[^/]*/(importlib)/")


def fold_libraries(text: str) -> str:
    """Put one line in place of frames of torch, importlib and samebits that follow each other.

    Invariant: every other line stays, in order; so does everything where no frame would be left.
    """
    parts = _frames(text)
    if all(_library(part) for part in parts if _FRAME.match(part)):
        return text
    folded = []
    for is_foreign, group in groupby(parts, key=lambda part: bool(_library(part))):
        frames = list(group)
        folded += [_instead(frames)] if is_foreign else frames
    return "".join(folded)


def _frames(text: str) -> list[str]:
    """The text in its parts: a frame with the lines below it, or one other line."""
    parts: list[str] = []
    in_frame = False
    for line in text.splitlines(keepends=True):
        if _FRAME.match(line):
            in_frame = True
        elif in_frame and line.startswith("    "):
            parts[-1] += line
            continue
        else:
            in_frame = False
        parts.append(line)
    return parts


def _library(frame: str) -> str:
    """The library whose frame it is; empty for the user's and for what is no frame."""
    found = _FRAME.match(frame)
    inside = _FOREIGN.search(found[1]) if found is not None else None
    return next(filter(None, inside.groups())) if inside is not None else ""


def _instead(frames: list[str]) -> str:
    names = " and ".join(dict.fromkeys(map(_library, frames)))
    count = f"{len(frames)} frame{'s' if len(frames) > 1 else ''}"
    return f"  {count} inside {names}: the log has {'them' if len(frames) > 1 else 'it'}\n"
