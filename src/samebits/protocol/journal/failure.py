"""The last word of a rank that failed: what was raised, where, in which step, on which sample.

Written by the rank as JSON into the run folder before it exits; read by the launcher for the one failure block.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import traceback
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from samebits.errors import SAMPLE_NOTE, PeerLost, RanksDiffer, SamebitsError, UsageError, mistake_text
from samebits.machine.visible import visible_lines
from samebits.protocol.journal import device_words
from samebits.protocol.journal.torch_words import is_of_a_peer, mistake_in, way_out
from samebits.protocol.records import plain, restored
from samebits.protocol.run_folder import read_json, write_private
from samebits.protocol.script_files import ScriptFiles

_SAMPLE = re.compile(re.escape(SAMPLE_NOTE).replace(r"\{index\}", r"(.+?)") + r"(?: \((.+)\))?")
_WORKER = re.compile(r"Caught \w+ in DataLoader worker process")
_LOST_WORKER = re.compile(r"DataLoader worker \(pid \d+\) (is killed by signal|ended with exit code)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

CAUSE_S = 0.3
"""How long a rank that lost a peer keeps that to itself: time for the cause to show."""
STOPPED_WITHIN_S = 5.0
"""How long a rank that lost a peer waits for the launcher to stop it before it ends itself."""


class FailureKind(StrEnum):
    """Who has to act."""

    USAGE = "usage"
    """The script, an option or the data: exit code 2."""
    SCRIPT = "script"
    """An exception of the script."""
    WORKER = "worker"
    """A process that loads samples was killed: the machine's doing."""
    DAMAGE = "damage"
    """Other bits than on the other ranks: the machine's doing, or the script's."""
    STALL = "stall"
    """Others waited for the rank too long, so the launcher ended it."""
    PEER = "peer"
    """A consequence of another rank's end."""


@dataclass(frozen=True)
class Failure:
    rank: int
    kind: FailureKind
    error: str
    """The exception's type and message on one line, as Python prints them; for a UsageError the whole problem; for
    `DAMAGE` what it is, without the rank."""
    traceback: str
    """The traceback without the frames of the launcher and of runpy."""
    file: str
    line: int
    """The innermost line of the user's script; empty and 0 when no frame of the script is in the traceback."""
    sample: str | None
    """The data-set index whose fetching raised."""
    time_ns: int
    """time.monotonic_ns() when it was caught."""
    fix: str = ""
    """The fix of a UsageError, whose problem is `error`; for `DAMAGE` until when all was well; for others the way out, where
    one is known."""
    sample_place: str = ""
    """Where the sample came: `epoch 2, step 13`."""
    finding: str = ""
    """The finding that it is, if the exception says so."""

    @property
    def mistake(self) -> tuple[str, str]:
        return self.error.removeprefix("UsageError: "), self.fix


def describe(rank: int, error: BaseException, script: Path, hidden: tuple[Path, ...]) -> Failure:
    """Make the failure record of `error`.

    Args:
        rank: the rank that failed.
        error: what the script raised.
        script: the user's script; frames in its folder and below are the user's lines.
        hidden: folders and files whose leading frames are left out of the traceback.
    """
    error = mistake_in(error)
    shown = _without_leading(error.__traceback__, hidden)
    text = "".join(traceback.format_exception(type(error), error, shown))
    users = ScriptFiles.beside(script)
    user = [frame for frame in traceback.extract_tb(shown) if users.has(frame.filename)]
    sample = _SAMPLE.search(text)
    only = traceback.format_exception_only(error)
    summary = next(words for words in only if not words.startswith(" ")).strip().split("\n")
    file, line = (user[-1].filename, user[-1].lineno or 0) if user else ("", 0)
    if _WORKER.search(summary[0]):
        inner = [(name, int(number)) for name, number in _FRAME.findall(text) if users.has(name)]
        file, line = inner[-1] if inner else (file, line)
        summary = [words for words in summary if not words.startswith((" ", SAMPLE_NOTE[:10]))][-1:]
    said, fix = device_words.shortened(summary[0]), way_out(error)
    if isinstance(error, UsageError):
        said, fix = f"UsageError: {visible_lines(error.problem)}", visible_lines(error.fix)
    elif isinstance(error, RanksDiffer):
        said, fix = error.what, error.since
    return Failure(
        rank=rank,
        kind=kind_of(error),
        error=said,
        fix=fix,
        traceback=text,
        file=file,
        line=line,
        sample=sample.group(1) if sample else None,
        sample_place=(sample.group(2) or "") if sample else "",
        time_ns=time.monotonic_ns(),
        finding=error.finding if isinstance(error, SamebitsError) else "",
    )


def user_line(error: BaseException, script: Path) -> str:
    """The innermost line of the user's script in the traceback, `train.py:31`; empty if there is none."""
    users = ScriptFiles.beside(script)
    user = [frame for frame in traceback.extract_tb(error.__traceback__) if users.has(frame.filename)]
    return f"{Path(user[-1].filename).name}:{user[-1].lineno}" if user else ""


def misuse_text(error: BaseException, script: str | None) -> str:
    """A misuse as a plain script prints it, in two lines; empty for other errors, and where no script is running."""
    if not isinstance(error, UsageError) or not script:
        return ""
    place = user_line(error, Path(script))
    return mistake_text(f"{place}: {error.problem}", error.fix) if place else ""


def kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, UsageError):
        return FailureKind.USAGE
    if isinstance(error, PeerLost) or is_of_a_peer(error):
        return FailureKind.PEER
    if isinstance(error, RanksDiffer):
        return FailureKind.DAMAGE
    return FailureKind.WORKER if _lost_worker(error) else FailureKind.SCRIPT


def _lost_worker(error: BaseException | None) -> bool:
    """Whether torch reports one: first that the worker "exited unexpectedly", and in its cause what killed it."""
    while isinstance(error, RuntimeError):
        if _LOST_WORKER.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _without_leading(trace: TracebackType | None, hidden: tuple[Path, ...]) -> TracebackType | None:
    while trace is not None and _is_hidden(Path(trace.tb_frame.f_code.co_filename), hidden):
        trace = trace.tb_next
    return trace


def _is_hidden(file: Path, hidden: tuple[Path, ...]) -> bool:
    return "<frozen" in str(file) or any(file.is_relative_to(folder) for folder in hidden)


def write_failure(path: Path, failure: Failure) -> bool:
    """Write atomically: a reader sees the whole record or none. Return whether it could be written."""
    with contextlib.suppress(OSError):
        write_private(path, json.dumps(plain(failure)))
        return True
    return False


def read_failure(path: Path) -> Failure | None:
    """The record, or None when the rank wrote none (a signal killed it, the disk was full)."""
    return decode_failure(read_json(path))


def decode_failure(entry: Any) -> Failure | None:
    """A record from its JSON; None for anything else."""
    try:
        return restored(Failure, entry)
    except ValueError:
        return None


def shortened(failure: Failure, most_bytes: int) -> Failure:
    """The record with only the ends of traceback and error, so that its JSON has at most about `most_bytes` bytes."""
    size = most_bytes // 2
    while len(json.dumps(plain(failure))) > most_bytes and size > 1:
        failure = replace(
            failure, traceback=failure.traceback[-size:], error=failure.error[:size], fix=failure.fix[:size]
        )
        size = size * 3 // 4
    return failure
