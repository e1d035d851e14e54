"""Why a rank that others wait for does not come: what it sleeps in, who could end that, or what keeps it from running.

From the samples of a probe; the sentence names the cause where there is one that most samples show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lockstep.diagnosis.movement import ENOUGH, PAGES_PER_S, Sample
from lockstep.diagnosis.stack import Stack, waits_for_samples
from lockstep.machine.blocked import Blocked
from lockstep.machine.held_back import HeldBack
from lockstep.machine.kernel_calls import CHILDREN, LOCKS, READS, SLEEPS, WAITS_FOR_ANY, WRITES

MOST = 0.75
"""The share of samples that must show the same."""
MOST_LINES_OF_A_LOOP = 2
MUCH = 0.2
"""The share of the time from which something keeps a rank from running."""


class Why(StrEnum):
    """The kinds of causes."""

    KERNEL = "kernel"
    """In a call that cannot be interrupted (state D): a disk, a network mount."""
    FILE_LOCK = "lock of a file"
    READS = "reads"
    """From a pipe, a terminal, a socket, where nothing comes."""
    WRITES = "writes"
    """Into a pipe or a socket that nobody empties."""
    CHILD = "child process"
    SLEEPS = "sleeps"
    THREAD = "thread"
    """It waits for another of its threads, or for a lock between them."""
    WORKER = "loader worker"
    NATIVE = "native code"
    """One call holds the interpreter's lock and does not come back."""
    LOOP = "loop"
    """It is always in the same one or two lines."""
    THROTTLED = "throttled"
    MEMORY = "memory"
    CROWDED = "crowded"
    """Other processes have its cores."""
    STOLEN = "stolen"
    """The host has this machine's cores."""


@dataclass(frozen=True)
class Cause:
    """Why a rank does not come."""

    why: Why
    text: str
    """Behind `rank 3 is at train.py:41: it `: `waits for the lock of /data/x.lock, which process 4711 (python) holds`."""
    who: str = "it"
    """Whom the text is about; `its loader worker`."""

    @property
    def sentence(self) -> str:
        """`it waits for ...`."""
        return f"{self.who} {self.text}"


def cause(samples: Sequence[Sample]) -> Cause | None:
    """The cause that the samples of a rank show; None if they show none."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    found = _asleep([sample.blocked for sample in samples], last.stack)
    if found is not None and found.why in {Why.SLEEPS, Why.THREAD} and stays_in_one_line(samples):
        return _loop(samples)
    if found is not None and last.stack is not None and waits_for_samples(last.stack.main):
        within = _asleep([sample.worker for sample in samples], None)
        who = "its loader worker"
        return (
            Cause(within.why, within.text, who)
            if within is not None
            else Cause(Why.WORKER, "waits for a loader worker")
        )
    if found is not None:
        return found
    kept = None
    if first.held_back is not None and last.held_back is not None:
        kept = kept_from_running(first.held_back, last.held_back, last.at_s - first.at_s)
    if kept is None or kept.why is Why.CROWDED:
        return _loop(samples) or kept
    return kept


def _asleep(found: Sequence[Blocked | None], stack: Stack | None) -> Cause | None:
    """What a process sleeps in, now and in most samples."""
    last = found[-1]
    if last is None or not last.is_asleep:
        return None
    same = sum(one is not None and one.is_asleep and one.call == last.call for one in found)
    return _in_call(last, stack) if same >= MOST * len(found) else None


def _in_call(blocked: Blocked, stack: Stack | None) -> Cause | None:
    call, others = blocked.call, " and ".join(other.text for other in blocked.others)
    if blocked.letter == "D":
        return Cause(
            Why.KERNEL, f"is in a call of the kernel that cannot be interrupted (state D), {call}{_of(blocked)}"
        )
    if call in READS | WRITES:
        return _moves_data(blocked, others)
    if call == "futex":
        return _on_thread(stack)
    why, text = _waits_in(blocked, others)
    return Cause(why, text) if text else None


def _waits_in(blocked: Blocked, others: str) -> tuple[Why, str]:
    """For what a call waits that moves no data; no text for one that is not known."""
    call, file = blocked.call, blocked.file or "a file"
    if call in CHILDREN:
        return Why.CHILD, f"waits for its child {others}" if others else "waits for a child process"
    if call == "connect":
        return Why.READS, f"waits for an answer to connect{_of(blocked)}"
    if call in WAITS_FOR_ANY:
        return Why.READS, f"waits for a file or socket to become ready{_of(blocked)}{_with(others)}"
    if call in LOCKS and (blocked.file or others):
        return Why.FILE_LOCK, f"waits for the lock of {file}, which {others or 'somebody else'} holds"
    return Why.SLEEPS, "sleeps" if call in SLEEPS else ""


def _of(blocked: Blocked) -> str:
    place = f" of {blocked.file}" if blocked.file.startswith("/") else ""
    return place + (f" on {blocked.mount}" if blocked.mount else f" to {blocked.peer}" if blocked.peer else "")


def _with(others: str) -> str:
    return f": a pipe that {others} has open too" if others else ""


def _moves_data(blocked: Blocked, others: str) -> Cause | None:
    why = Why.READS if blocked.call in READS else Why.WRITES
    file = blocked.file
    if file.startswith("pipe:"):
        there = f"; {others} has its other end" if others else ""
        said = "reads from a pipe into which nobody writes" if why is Why.READS else "writes into a pipe that is full"
        return Cause(why, f"{said}{there}")
    if file.startswith("socket:"):
        there = f" ({blocked.peer})" if blocked.peer else ""
        said = "waits for data from" if why is Why.READS else "cannot send more into"
        return Cause(why, f"{said} a socket{there}")
    if file.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Cause(why, f"{'waits for input from' if why is Why.READS else 'cannot write to'} the terminal {file}")
    if file:
        said = "reads" if why is Why.READS else "writes"
        return Cause(why, f"{said} {file}{f' on {blocked.mount}' if blocked.mount else ''}")
    return None


def _on_thread(stack: Stack | None) -> Cause:
    """In a futex: for the interpreter's lock, if another thread has it, or for anything else between threads."""
    for thread in stack.threads[1:] if stack is not None else ():
        if thread.holds_gil and thread.frames:
            name = f" ({thread.name})" if thread.name else ""
            return Cause(
                Why.THREAD,
                f"waits for another thread{name}, which holds the interpreter's lock at {thread.frames[0].text}",
            )
    return Cause(Why.THREAD, "waits for a lock, or for another of its threads")


def stays_in_one_line(samples: Sequence[Sample]) -> bool:
    """Whether a rank has been in one line for some samples, with the interpreter's lock in hand."""
    return _lines_with_lock(samples) == 1


def _lines_with_lock(samples: Sequence[Sample]) -> int:
    """At how many places a rank has been for some samples, with the interpreter's lock in hand; 0 if without, or too few."""
    stacks = [sample.stack for sample in samples if sample.stack is not None and sample.stack.threads]
    with_lock = sum(stack.threads[0].holds_gil for stack in stacks)
    return len({stack.main for stack in stacks}) if len(stacks) >= ENOUGH and with_lock >= MOST * len(stacks) else 0


def _loop(samples: Sequence[Sample]) -> Cause | None:
    """A function that does not come back, or a loop without an end."""
    places = _lines_with_lock(samples)
    if not 0 < places <= MOST_LINES_OF_A_LOOP:
        return None
    native = next((sample.native for sample in reversed(samples) if sample.native.strip("?")), "")
    if native and places == 1:
        return Cause(Why.NATIVE, f"stays in native code ({native}) and holds the interpreter's lock")
    return Cause(Why.LOOP, f"stays in {'one line' if places == 1 else 'two lines'} and holds the interpreter's lock")


def kept_from_running(before: HeldBack, now: HeldBack, seconds: float) -> Cause | None:
    """What kept a rank from running between two looks, if it took much of the time."""
    seconds = max(seconds, 1e-3)
    throttled = min((now.throttled_s - before.throttled_s) / seconds, 1.0)
    if now.quota and throttled >= MUCH:
        return Cause(
            Why.THROTTLED,
            f"is held back by its control group, {throttled:.0%} of the time: it may use {now.quota:g} cores (cpu.max)",
        )
    memory = min((now.memory_s - before.memory_s) / seconds, 1.0)
    faults = (now.major_faults - before.major_faults) / seconds
    if faults >= PAGES_PER_S and memory >= MUCH / 2:
        return Cause(Why.MEMORY, f"waits for memory, {memory:.0%} of the time: it fetches {faults:.0f} pages a second")
    stolen = min((now.stolen_s - before.stolen_s) / seconds, 1.0)
    if stolen >= MUCH:
        return Cause(
            Why.STOLEN, f"is held back by the host of this virtual machine, which takes {stolen:.0%} of its cores"
        )
    delayed = min((now.run_delay_s - before.run_delay_s) / seconds, 1.0)
    if delayed >= MUCH:
        return Cause(Why.CROWDED, f"has no core {delayed:.0%} of the time: other processes have them")
    return None
