"""Run tasks one after the other, each for as long as it may, so that none outlives or stops another."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.gpu_day.blocks import BLOCKS, Day
from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.outcome import BAD, Ended, Outcome, State, Verdict
from benchmarks.gpu_day.tasks import BLOCK_S, Task

MERCY_S = 8.0
"""Between SIGTERM and SIGKILL: `samebits run` ends its ranks."""
TAIL = 4000
LOOK_S = 0.2


def rows(day: Day, chosen: Sequence[str]) -> list[tuple[str, Task]]:
    """What will be tried: each task with its block; not the blocks that need more GPUs."""
    return [(name, task) for name in chosen if BLOCKS[name].least_gpus <= day.gpus for task in BLOCKS[name].tasks(day)]


def carry_out(
    day: Day, todo: list[tuple[str, Task]], variables: Mapping[str, str], tell: Callable[[str, Task, float], None]
) -> Iterator[Outcome]:
    """Each task's outcome as it ends.

    Args:
        day: the machine.
        todo: see `rows`.
        variables: the environment of all tasks.
        tell: is told again and again which task of which block has been running for how many seconds.
    """
    spent: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as folder:
        for number, (block, task) in enumerate(todo):
            left_s = BLOCK_S - spent.get(block, 0.0)
            if missing := task.missing(day.hardware):
                yield Outcome(block, task.name, State.NOT_HERE, missing, 0.0)
            elif left_s < 1.0:
                yield Outcome(block, task.name, State.CUT_OFF, "the block's ten minutes were over", 0.0)
            else:
                began = time.monotonic()
                place = Path(folder) / str(number)
                ended = run(task, min(task.limit_s, left_s), variables, place, partial(tell, block, task))
                took_s = time.monotonic() - began
                spent[block] = spent.get(block, 0.0) + took_s
                yield outcome_of(block, task, ended, took_s, day.hardware)


def outcome_of(block: str, task: Task, ended: Ended, took_s: float, hardware: Hardware) -> Outcome:
    """What a process that has ended means; speed means nothing on pretended GPUs."""
    late = Verdict(State.CUT_OFF, f"did not end within {took_s:.0f} s")
    verdict = late if ended.is_cut_off else _judged(task, ended)
    state = State.OK if verdict.state is State.MISSED and hardware.is_pretended else verdict.state
    output = f"{ended.out[-TAIL:]}\n{ended.err[-TAIL:]}" if state in BAD else ""
    return Outcome(block, task.name, state, verdict.says, took_s, verdict.figures, output)


def _judged(task: Task, ended: Ended) -> Verdict:
    """A judge that fails over something new must not stop what comes after."""
    try:
        return task.judge(ended)
    except Exception as error:  # noqa: BLE001
        return Verdict(State.FAILED, f"what it printed could not be judged: {type(error).__name__}: {error}"[:300])


def run(
    task: Task, limit_s: float, variables: Mapping[str, str], folder: Path, tell: Callable[[float], None],
    stop: threading.Event | None = None,
) -> Ended:  # fmt: skip
    """Run a task's process to its end, to its limit, or until `stop`; nothing that it started or wrote into `folder` outlives it."""
    folder.mkdir()
    out, err = folder / "out.txt", folder / "err.txt"
    try:
        with out.open("wb") as to_out, err.open("wb") as to_err:
            process = subprocess.Popen(
                list(task.words), cwd=task.place or folder, env={**variables, **task.variables, "SAMEBITS_RUNS": f"{folder}/runs"},
                stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err, start_new_session=True,
            )  # fmt: skip
        is_cut_off = not _ends(process, limit_s, tell, stop or threading.Event())
        return Ended(process.returncode, _text(out), _text(err), is_cut_off)
    except OSError as error:
        return Ended(127, "", f"{task.words[0]} cannot be started: {error.strerror}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ends(
    process: subprocess.Popen[bytes], limit_s: float, tell: Callable[[float], None], stop: threading.Event
) -> bool:
    began = time.monotonic()
    try:
        while (passed := time.monotonic() - began) < limit_s and not stop.is_set():
            tell(passed)
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                continue
            return True
        return False
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group, which it leads."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(MERCY_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _text(file: Path) -> str:
    return file.read_text(errors="replace")
