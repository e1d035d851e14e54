"""The Python stack of a process, as another process sees it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.protocol.script_files import ScriptFiles

COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py")
LOADER, FETCH = "torch/utils/data/dataloader.py", "torch/utils/data/_utils/fetch.py"
BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int

    @property
    def text(self) -> str:
        """`dataset.py:41 in __getitem__`."""
        place = f"{Path(self.file).name}:{self.line}"
        return place if self.function == "<module>" else f"{place} in {self.function}"


@dataclass(frozen=True)
class Thread:
    number: int
    """The system's number; of the first thread that of the process."""
    name: str
    holds_gil: bool
    frames: tuple[Frame, ...]
    """The innermost first."""


@dataclass(frozen=True)
class Stack:
    """Of all threads of a process, the first one first."""

    process: int
    threads: tuple[Thread, ...]

    @property
    def main(self) -> tuple[Frame, ...]:
        """The first thread's, the innermost frame first; empty when it could not be read."""
        return self.threads[0].frames if self.threads else ()

    @property
    def is_importing(self) -> bool:
        """Whether the first thread is in an import."""
        return any(frame.file.startswith("<frozen importlib") for frame in self.main)

    def in_script(self, script: str) -> Frame | None:
        """The innermost call in the user's files, else in anything that is no library's."""
        users = ScriptFiles.beside(script) if script else ScriptFiles(())
        place = users.innermost([frame.file for frame in self.main])
        return None if place is None else self.main[place]


def collective(frames: Sequence[Frame]) -> str:
    """The function of torch.distributed that a stack is in, the outermost; empty if it is in none."""
    inside = [frame.function for frame in frames if frame.file.endswith(COLLECTIVES)]
    # torch decorates collectives; the innermost-first frames end with the wrapper of the one that the script called.
    return next((name for name in reversed(inside) if not name.endswith("wrapper")), "")


def is_in_backward(frames: Sequence[Frame]) -> bool:
    """Whether it is in the backward pass, where DDP exchanges without a Python frame."""
    file, function = BACKWARD
    return bool(frames) and frames[0].file.endswith(file) and frames[0].function == function


def waits_for_samples(frames: Sequence[Frame]) -> bool:
    """Whether a rank waits for its loader workers."""
    return any(frame.file.endswith(LOADER) and frame.function.endswith("_get_data") for frame in frames)


def is_fetching(worker: Stack) -> bool:
    """Whether a loader worker is fetching samples, rather than waiting for work."""
    return any(frame.file.endswith(FETCH) for frame in worker.main)


def line_in_worker(workers: Sequence[Stack], script: str) -> Frame | None:
    """Where a loader worker is that fetches; None when all wait for work, or none has a line of the script."""
    for worker in workers:
        if is_fetching(worker) and (line := worker.in_script(script)) is not None:
            return replace(line, function=f"{line.function}, in loader worker {worker.process}")
    return None


def read_dump(text: str, process: int) -> Stack:
    """The stack in py-spy's JSON.

    Raises:
        ValueError: for anything else.
    """
    try:
        told: list[dict[str, Any]] = list(json.loads(text))
        threads = [
            Thread(
                int(one.get("os_thread_id") or 0),
                str(one.get("thread_name") or ""),
                bool(one.get("owns_gil")),
                tuple(Frame(str(each["name"]), str(each["filename"]), int(each["line"])) for each in one["frames"]),
            )
            for one in told
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no stacks: {error}") from None
    return Stack(process, tuple(sorted(threads, key=lambda thread: (thread.number != process, thread.number))))
