"""What waiting costs on this machine: measured once in some 15 ms, and kept in a file (docs/design/0032).

The costs decide how long a rank looks before it sleeps. They change no result, so a file that cannot be read, or that
somebody has written who means no good, costs a little speed at most: its numbers are brought within limits.
"""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from lockstep.machine.processor import model_and_instructions
from lockstep.machine.siblings import siblings
from lockstep.node.kept_numbers import KeptNumbers
from lockstep.node.native import compiled

AT_MOST_S = 0.06
"""How long measuring may take on a machine that is busy with something else."""
FORMAT = 1
"""Of the file: changes with what is measured."""


@dataclass(frozen=True)
class WaitCosts:
    """The measured numbers. The defaults are used where nothing could be measured."""

    wake_us: float = 20.0
    """From a rank's call to wake another one until that one runs."""
    slowed_by_spinning: float = 1.0
    """How many times as long work takes beside a CPU that spins as beside one that sleeps."""

    def within_limits(self) -> WaitCosts:
        """The same, with what no machine has replaced by the nearest that one may have."""
        return WaitCosts(
            _clamped(self.wake_us, 1.0, 1000.0, WaitCosts.wake_us),
            _clamped(self.slowed_by_spinning, 1.0, 10.0, WaitCosts.slowed_by_spinning),
        )


@dataclass(frozen=True)
class Finding:
    """The costs, where they come from, and what keeps them from being kept."""

    costs: WaitCosts
    source: str
    """"measured", "kept" or "usual"."""
    file: str = ""
    """Where they are kept; empty when nowhere."""
    trouble: str = ""
    """Why they are not kept, without a full stop."""
    in_the_way: str = ""
    """What must be removed before they can be kept."""


@lru_cache(maxsize=8)
def find_costs(cpus: frozenset[int], folder: Path | None) -> Finding:
    """The costs on these CPUs, of which this process may use all.

    Args:
        cpus: those of this process.
        folder: where the file is kept; None when there is no place for it.
    """
    if len(cpus) < 2:
        return Finding(WaitCosts(), "usual", trouble="there is only one CPU")
    of_first = siblings(min(cpus)) & cpus
    kept = KeptNumbers(folder, "waiting", key(len(cpus), len(of_first))) if folder is not None else None
    if kept is not None and (numbers := kept.read(tuple(asdict(WaitCosts())))):
        return Finding(WaitCosts(**numbers).within_limits(), "kept", str(kept.file))
    measured = compiled.measure_wait_costs(*pair_of(cpus, of_first), AT_MOST_S)
    if measured is None:
        return Finding(WaitCosts(), "usual", trouble="the machine was too busy to measure")
    costs = WaitCosts(*measured).within_limits()
    trouble = "there is no home folder" if kept is None else kept.write(asdict(costs))
    if kept is None or trouble:
        return Finding(costs, "measured", "", trouble, str((kept and kept.in_the_way()) or ""))
    return Finding(costs, "measured", str(kept.file))


def pair_of(cpus: frozenset[int], of_first: frozenset[int]) -> tuple[int, int]:
    """The two CPUs to measure on: threads of one core where the kernel says so, else neighbours by number, which they
    often are where it does not.

    Args:
        cpus: two or more.
        of_first: those of them that are threads of the first one's core; empty where that is not known.
    """
    first = min(cpus)
    return first, min(of_first - {first} or cpus - {first})


def key(num_cpus: int, num_of_first: int) -> dict[str, str]:
    """What the costs depend on. Not the numbers of the CPUs: a job scheduler gives each job others."""
    return {
        "format": str(FORMAT),
        "processor": model_and_instructions()[0],
        "cpus": str(num_cpus),
        "threads of the first core": str(num_of_first),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }


def own_cpus() -> frozenset[int]:
    """The CPUs on which this process may run."""
    return frozenset(os.sched_getaffinity(0))


def _clamped(value: float, least: float, most: float, usual: float) -> float:
    return min(max(value, least), most) if math.isfinite(value) else usual
