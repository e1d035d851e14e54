"""Run tasks beside each other, in their order, within a time for all of them: for the first quarter of an hour.

A task that is timed runs alone, when nothing is being compiled either. One that would not end in the time that is left is not
begun.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu_day.building import Building
from benchmarks.gpu_day.carrying_out import outcome_of, run
from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.outcome import Outcome, State
from benchmarks.gpu_day.tasks import COMPILED, Task

CORES_EACH = 4
LOOK_S = 0.2
ENDING_S = 10.0
"""Kept back for ending what does not end by itself, and the record."""


def width_of(cores: int) -> int:
    """How many tasks run beside each other."""
    return max(1, min(4, cores // CORES_EACH))


def may_begin(task: Task, running: Sequence[Task], width: int, *, is_building: bool) -> bool:
    """Whether a task may begin beside those that run."""
    if is_building and (task.is_alone or COMPILED in task.needs):
        return False
    if task.is_alone:
        return not running
    return len(running) < width and not any(one.is_alone for one in running)


@dataclass
class Together:
    """What the tasks have in common."""

    hardware: Hardware
    variables: Mapping[str, str]
    building: Building
    ends_at: float
    """Of the monotonic clock."""
    width: int
    tell: Callable[[Sequence[str]], None]
    """Is told again and again what is under way."""


def carry_out_together(todo: Sequence[tuple[str, Task]], together: Together) -> Iterator[Outcome]:
    """Each task's outcome as it ends."""
    waiting, running = deque(todo), dict[str, Task]()
    ended, stop = queue.SimpleQueue[tuple[str, Outcome]](), threading.Event()
    threads: list[threading.Thread] = []
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as folder:
        try:
            while waiting or running:
                is_building = together.building.is_under_way
                _put_off(waiting, is_building)
                while waiting and (outcome := _not_begun(*waiting[0], together, is_building)):
                    waiting.popleft()
                    yield outcome
                if waiting and may_begin(waiting[0][1], [*running.values()], together.width, is_building=is_building):
                    block, task = waiting.popleft()
                    place = Path(folder) / str(len(threads))
                    running[f"{block}: {task.name}"] = task
                    threads.append(_begin(block, task, place, together, ended, stop))
                    continue
                together.tell([*running])
                try:
                    name, outcome = ended.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                del running[name]
                yield outcome
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def _put_off(waiting: deque[tuple[str, Task]], is_building: bool) -> None:
    """What needs the compiled part lets the others go first while it is not there."""
    if is_building:
        late = [one for one in waiting if COMPILED in one[1].needs]
        rest = [one for one in waiting if COMPILED not in one[1].needs]
        waiting.clear()
        waiting.extend([*rest, *late])


def _not_begun(block: str, task: Task, together: Together, is_building: bool) -> Outcome | None:
    """The outcome of a task that is not even begun, with the reason; None for one that is to be begun, perhaps later."""
    if missing := task.missing(together.hardware):
        return Outcome(block, task.name, State.NOT_HERE, missing, 0.0)
    left_s = together.ends_at - time.monotonic()
    if left_s < task.takes_s:
        why = f"{max(left_s, 0.0):.0f} s were left, and it takes about {task.takes_s:.0f}"
        return Outcome(block, task.name, State.NO_TIME, why, 0.0)
    if COMPILED in task.needs and not is_building and not together.building.is_there:
        return Outcome(block, task.name, State.NOT_HERE, f"there is no {COMPILED}", 0.0)
    return None


def _begin(
    block: str, task: Task, place: Path, together: Together, ended: queue.SimpleQueue[tuple[str, Outcome]], stop: threading.Event
) -> threading.Thread:  # fmt: skip
    variables, is_compiled = together.building.variables(together.variables), together.building.is_there
    limit_s = min(task.limit_s, together.ends_at - time.monotonic())

    def body() -> None:
        began = time.monotonic()
        done = run(task, limit_s, variables, place, lambda _: None, stop)
        outcome = outcome_of(block, task, done, time.monotonic() - began, together.hardware)
        if outcome.state is State.CUT_OFF and limit_s < task.limit_s:  # not its own limit: it may be well
            outcome = replace(outcome, state=State.NO_TIME, says=f"{outcome.says}, when the time was over")
        ended.put((f"{block}: {task.name}", replace(outcome, is_compiled=is_compiled)))

    thread = threading.Thread(target=body, name=task.name)
    thread.start()
    return thread


def usable_cores() -> int:
    """Those of this process."""
    return len(os.sched_getaffinity(0))
