"""Whose fault it was, the exit code, and when which signal goes to which rank: pure decisions over how ranks ended."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from samebits.launcher.diagnosis.words import ranks_text
from samebits.protocol.journal.failure import Failure, FailureKind

KILL_COMES_FIRST_NS = 100_000_000
"""A peer notices a killed rank before the nursery has reaped it; this much later still counts as a consequence."""


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    code: int
    """128 + n for signal n."""
    signal: int
    """0 when no signal ended it."""
    time_ns: int
    stopped: bool
    """Whether it ended because the launcher sent it a signal (see `was_stopped`)."""
    failure: Failure | None
    left: bool = False
    """Whether its script called `sys.exit` with another code than 0."""
    left_at: str = ""
    """The line of any `sys.exit`: `train.py:31`."""
    peak_bytes: int = 0
    """The most memory that it, or a loader worker of its, ever held; 0 if not known."""
    is_from_outside: bool = False
    """Whether it got SIGKILL from somebody else while no memory was short, which says nothing about its step."""


def was_stopped(by: int, sent: Collection[int]) -> bool:
    """Whether a rank ended because of the launcher: by a signal that it sent, or without one after any.

    Args:
        by: the signal that ended the rank, or 0.
        sent: the signals that the launcher sent it.
    """
    return by in sent if by else bool(sent)


@dataclass(frozen=True)
class Verdict:
    """The exit code and the rank to blame."""

    exit_code: int
    culprit: RankEnd | None
    same: tuple[int, ...] = ()
    """Other ranks with the same failure."""
    stopped: tuple[int, ...] = ()
    """Other ranks that ended because of it."""
    left_early: tuple[RankEnd, ...] = ()
    """Ranks that had ended well before, when the culprit only reports that a peer is gone."""

    @property
    def leavers_text(self) -> str:
        """What those did who left early, and what the culprit does without them; empty if none left early.

        Only who called `sys.exit` left too early for sure; of the others nobody knows which side has an exchange too many.
        """
        if not self.left_early or self.culprit is None:
            return ""
        who, other = ranks_text(end.rank for end in self.left_early), self.culprit.rank
        if places := sorted({end.left_at for end in self.left_early if end.left_at}):
            where = f" (sys.exit at {', '.join(places)})"
            return f"{who} ended with exit code 0{where}, while rank {other} went on to its next exchange"
        return f"rank {other} calls an exchange that {who}, which came to the end of the script, did not call"


def verdict_of(ends: Sequence[RankEnd], interrupted_by: int) -> Verdict:
    """Judge ranks that have all ended.

    The earliest event that is not a consequence of another is the cause: an exception of the script, a signal that the
    launcher did not send, a bad exit code. Only if there is none does a lost peer count.

    Args:
        ends: one for each rank.
        interrupted_by: the user signal that stopped the run, or 0.
    """
    if interrupted_by:
        return Verdict(128 + interrupted_by, None)
    causes = sorted((time, end.rank) for end in ends if (time := _cause_time(end)) is not None)
    # Nobody failed by itself: then a lost peer is all there is to report.
    if not causes:
        causes = sorted((end.time_ns, end.rank) for end in ends if end.failure or (end.code and not end.stopped))
    if not causes:
        return Verdict(0 if not any(end.code for end in ends) else 1, None)
    culprit = next(end for end in ends if end.rank == causes[0][1])
    same = tuple(end.rank for end in ends if end is not culprit and _same(end, culprit))
    return Verdict(
        exit_code=_code(culprit),
        culprit=culprit,
        same=same,
        stopped=tuple(end.rank for end in ends if end is not culprit and end.rank not in same and end.code),
        left_early=tuple(end for end in ends if _is_peer(culprit) and not end.code),
    )


def _is_peer(end: RankEnd) -> bool:
    return end.failure is not None and end.failure.kind is FailureKind.PEER


def _cause_time(end: RankEnd) -> int | None:
    """When this rank became a cause; None when it ended well or because of others."""
    if end.failure is not None:
        return None if _is_peer(end) else end.failure.time_ns
    if end.stopped or not end.code:
        return None
    return end.time_ns - KILL_COMES_FIRST_NS if end.signal else end.time_ns


def _same(end: RankEnd, culprit: RankEnd) -> bool:
    if culprit.failure is None or end.failure is None:
        return culprit.failure is end.failure and not end.stopped and end.code == culprit.code and end.code != 0
    return end.failure.error == culprit.failure.error


def _code(culprit: RankEnd) -> int:
    if culprit.failure is None:
        return culprit.code
    if culprit.failure.kind is FailureKind.USAGE:
        return 2
    return culprit.code if culprit.code and not culprit.signal else 1


SAME_FAILURE_S = 0.1
"""Time for other ranks to fail in the same way themselves."""
TERM_GRACE_S = 0.3
"""Between SIGTERM and SIGKILL after a failure."""
FAILED_RANK_GRACE_S = 5.0
"""Time for the exit handlers of the rank that failed."""
INTERRUPT_GRACE_S = 0.5
"""Between a user signal and SIGKILL."""
ANSWER_S, PATIENT_ANSWER_S = 1.0, 5.0
"""Time for the nursery to answer an order, when a user waits and when nobody does.

After that it hangs, or was stopped, and it is killed with everything below it.
"""
UNKILLABLE_S = 30.0
"""Time after SIGKILL. Who has not ended by then is held by the kernel, as by a driver whose GPU is gone; freeing much memory takes
seconds."""


@dataclass(frozen=True, order=True)
class Send:
    """Send `signal` to `ranks` at `at_s`."""

    at_s: float
    signal: int
    ranks: frozenset[int]


Plan = tuple[Send, ...]


def after_failure(now: float, failed: int, kind: FailureKind, running: frozenset[int]) -> Plan:
    """A running rank reported that its script raised: stop the others; it may finish its exit handlers.

    A rank that only lost a peer waits to be stopped with the others; one that is stalled cannot finish anything.
    """
    if kind in {FailureKind.PEER, FailureKind.STALL}:
        return after_bad_exit(now, running)
    others = running - {failed}
    return (
        Send(now + SAME_FAILURE_S, signal.SIGTERM, others),
        Send(now + SAME_FAILURE_S + TERM_GRACE_S, signal.SIGKILL, others),
        Send(now + FAILED_RANK_GRACE_S, signal.SIGKILL, frozenset({failed})),
    )


def after_bad_exit(now: float, running: frozenset[int], *, at_once: bool = False) -> Plan:
    """A rank ended with a code other than 0, or by a signal: stop the others.

    Args:
        now: the time.
        running: the others.
        at_once: whether none of them will have failed in the same way, as when a signal ended it, or on another node.
    """
    term_at = now if at_once else now + SAME_FAILURE_S
    return (Send(term_at, signal.SIGTERM, running), Send(term_at + TERM_GRACE_S, signal.SIGKILL, running))


def after_signal(now: float, number: int, running: frozenset[int], again: bool) -> Plan:
    """A user signal came: pass on Ctrl-C as it is, anything else as SIGTERM; a second one kills at once."""
    if again:
        return (Send(now, signal.SIGKILL, running),)
    handed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
    return (Send(now, handed_on, running), Send(now + INTERRUPT_GRACE_S, signal.SIGKILL, running))


def from_now(plan: Plan, now: float) -> Plan:
    """The same sends, the first of them now; for a plan that was held back."""
    late_s = now - min((send.at_s for send in plan), default=now)
    return tuple(replace(send, at_s=send.at_s + max(late_s, 0.0)) for send in plan)


def due(plan: Plan, now: float) -> tuple[Plan, Plan]:
    """What to send now, in order, and what is left."""
    return tuple(sorted(send for send in plan if send.at_s <= now)), tuple(send for send in plan if send.at_s > now)
