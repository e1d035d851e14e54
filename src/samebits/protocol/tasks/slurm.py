"""What SLURM says to the tasks of a step (of one `srun`).

Only variables of the step count: a batch script and an interactive shell have the job's too, but are one process. Never
SLURM_LAUNCH_NODE_IPADDR: that is where srun runs, often a login node.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from samebits.protocol.tasks.task import Task

_RANGE = "[0-9]{1,9}(?:-[0-9]{1,9})?"
_NAME = re.compile(rf"(?:[^,\[\]]|\[{_RANGE}(?:,{_RANGE})*\])+")
"""One element of a list: text, and numbers in brackets, in any order."""
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")
MOST_HOSTS = 100_000
"""More are a mistake, or an attack on the memory."""


def hosts(text: str) -> tuple[str, ...]:
    """The names of a host list, in its order; a last number in brackets counts fastest.

    Raises:
        ValueError: for what is no host list.
    """
    names = _NAME.findall(text)
    if not text or ",".join(names) != text:
        raise ValueError(text)
    found = tuple(itertools.islice((host for name in names for host in _spread(name)), MOST_HOSTS + 1))
    if len(found) > MOST_HOSTS:
        raise ValueError(text)
    return found


def _spread(name: str) -> Iterator[str]:
    """All hosts of one element: `n[1-2]` is n1 and n2."""
    before, bracket, rest = name.partition("[")
    if not bracket:
        yield name
        return
    inside, _, after = rest.partition("]")
    for number in inside.split(","):
        first, is_range, last = number.partition("-")
        for value in range(int(first), int(last if is_range else first) + 1):
            for end in _spread(after) if after else ("",):
                yield f"{before}{value:0{len(first)}d}{end}"


def counts(text: str) -> tuple[int, ...]:
    """Numbers for each host: `2(x3),1` is 2, 2, 2, 1.

    Raises:
        ValueError: for anything else.
    """
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None or (times := int(match[2] or 1)) > MOST_HOSTS:
            raise ValueError(text)
        found += [int(match[1])] * times
    return tuple(found)


def find(variables: Mapping[str, str]) -> Task | None:
    """The task of a step that this process is; None outside of a step, in its shell, and where variables are missing."""
    # [Note: why srun --pty is no task]
    # Of `srun --pty bash` only the first task has a terminal. The others, if any, are gone.
    if "SLURM_PTY_PORT" in variables:
        return None
    try:
        size, rank = int(variables["SLURM_STEP_NUM_TASKS"]), int(variables["SLURM_PROCID"])
        names = hosts(variables["SLURM_STEP_NODELIST"])
        tasks = counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        node, local_rank = int(variables["SLURM_NODEID"]), int(variables["SLURM_LOCALID"])
    except (KeyError, ValueError):
        return None
    if not (0 <= rank < size == sum(tasks) and len(names) == len(tasks) and 0 <= node < len(names)):
        return None
    if not 0 <= local_rank < tasks[node]:
        return None
    job = f"{variables.get('SLURM_JOB_ID', '')}.{variables.get('SLURM_STEP_ID', '')}"
    return Task("SLURM", "srun", rank, size, local_rank, tasks[node], len(names), node, names, job)
