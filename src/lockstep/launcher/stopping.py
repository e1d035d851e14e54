"""When a run is stopped: which signal goes to which rank, and when. Pure; the supervisor carries it out.

Times are seconds of one clock (time.monotonic). A failure leaves the other ranks a tenth of a second in which they may
report the same failure, so that the block can say that it was the same; all are gone well within a second.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from lockstep.protocol.journal.failure import FailureKind

SAME_FAILURE_S = 0.1
"""Time for other ranks to fail in the same way themselves."""
TERM_GRACE_S = 0.3
"""Between SIGTERM and SIGKILL after a failure."""
FAILED_RANK_GRACE_S = 5.0
"""Time for the exit handlers of the rank that failed."""
INTERRUPT_GRACE_S = 0.5
"""Between a person's signal and SIGKILL."""
ANSWER_S, PATIENT_ANSWER_S = 1.0, 5.0
"""Time for the nursery to answer an order, when a person waits and when nobody does.

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
    """A person sent a signal: pass on Ctrl-C as it is, anything else as SIGTERM; a second one kills at once."""
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
