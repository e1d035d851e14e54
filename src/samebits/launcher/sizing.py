"""How many ranks, on which devices, with how many threads: a pure decision with its reason.

`auto` ranks: one per GPU; without a GPU one per core, at most four (more CPU ranks than that exchange more than they
compute). torchrun's default is one rank; here the machine is used unless the user says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from samebits.errors import UsageError
from samebits.launcher.request import Device
from samebits.machine.cores import Cores, threads_per_rank
from samebits.machine.no_gpu import NO_GPU, NoGpu
from samebits.protocol.late_settings import how_to_share
from samebits.protocol.layout.mesh import MOST_LANES

MAX_AUTO_CPU_RANKS = 4
MOST_RANKS, MOST_RANKS_PER_CORE = 1024, 64
"""On one node. More is a typo that would fill its memory, and the disk with logs."""
MOST_THREADS = 1024
"""Per rank. More is a typo too: the system refuses them only when the script computes."""
OWN_FILES, FILES_PER_RANK = 16, 4
"""Files that the command has open, and that it has open for each rank while starting it."""


@dataclass(frozen=True)
class Machine:
    """What this node has."""

    cores: Cores
    gpus: int
    """CUDA devices that the installed torch can use."""
    omp_threads: str | None = None
    """OMP_NUM_THREADS as the user set it."""
    open_files: int = -1
    """How many files a process may have open; negative: any number."""
    no_gpu: NoGpu = NO_GPU
    """Why there is none, and what to do."""
    ranks_per_gpu: int = 1
    """How many ranks may share one."""


@dataclass(frozen=True)
class Wish:
    """What the command line asks for; None or "auto" leaves it to `size`."""

    ranks: str = "auto"
    """A number, "auto", "cpu" or "gpu"."""
    device: str = "auto"
    """"auto", "cpu" or "cuda"."""
    lanes: int | None = None
    threads: int | None = None
    replicas_of_one_rank: bool = False
    """Under the strategy `dp` the number counts replicas inside one rank, which may be more than lanes."""


CROWDED = 2
"""This many threads for each core still finish one after the other; more get a warning."""


CHOSEN_HERE = ("auto", "cpu", "gpu")
"""Instead of a number of ranks."""


@dataclass(frozen=True)
class Size:
    """The decided size of a run."""

    ranks: int
    device: Device
    threads: int
    why: str
    crowded: str = ""
    """What to say where far more threads than cores would compute at once; else empty."""
    shared_gpus: int = 0
    """How many GPUs the ranks share; 0 where each has its own, or none."""
    cores: int = 0
    """Of this node, where nobody named the threads: ranks of `samebits.init` take what their lanes leave. 0: somebody did."""
    device_given: bool = False
    """Whether somebody named the device; otherwise the script may choose another one."""


def size(wish: Wish, machine: Machine) -> Size:
    """Decide the size of a run.

    Raises:
        UsageError: for impossible numbers, more ranks than GPUs, or more ranks than lanes.
    """
    check_numbers(wish.lanes, wish.threads)
    device = _device(wish, machine)
    ranks, why_ranks = _ranks(wish, machine, device)
    shares = device == "cuda" and ranks > machine.gpus
    if shares and ranks > machine.gpus * machine.ranks_per_gpu:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs, but {_gpus(machine.gpus)} here.",
            f"Use at most {machine.gpus} rank{'s' if machine.gpus > 1 else ''}, or --device cpu. "
            f"{how_to_share(ranks, machine.gpus)}.",
        )
    if wish.lanes is not None and wish.lanes < ranks and not wish.replicas_of_one_rank:
        raise UsageError(
            f"`lanes` must be at least the number of ranks, but is {wish.lanes} with {ranks} ranks.",
            f"Start with -n {wish.lanes}, or set lanes={ranks}.",
        )
    _check_room(ranks, machine)
    threads, why_threads = _threads(wish, machine, ranks)
    why = "; ".join(reason for reason in (why_threads, why_ranks) if reason)
    crowded = _crowded(ranks, threads, machine) if device == "cpu" else ""
    cores = 0 if wish.threads is not None or machine.omp_threads else machine.cores.count
    given = wish.device != "auto" or wish.ranks in ("cpu", "gpu")
    return Size(ranks, device, threads, why, crowded, machine.gpus if shares else 0, cores, given)


def _crowded(ranks: int, threads: int, machine: Machine) -> str:
    cores = machine.cores.count
    if ranks * threads <= CROWDED * cores:
        return ""
    many = f"{ranks} rank{'s' if ranks != 1 else ''} x {threads} thread{'s' if threads != 1 else ''}"
    better = f"-n {max(1, cores // threads)}" if threads <= cores else f"--threads {max(1, cores // ranks)}"
    return f"{many} on {cores} core{'s' if cores != 1 else ''} wait for each other at every step; {better} is probably faster"


def _check_room(ranks: int, machine: Machine) -> None:
    cores = machine.cores.count
    most = MOST_RANKS if machine.gpus else min(MOST_RANKS, MOST_RANKS_PER_CORE * cores)
    if ranks > most:
        where = f"{cores} core{'s take' if cores != 1 else ' takes'}" if most < MOST_RANKS else "one node takes"
        raise UsageError(f"{ranks} ranks are too many: {where} at most {most}.", "Start with -n auto.")
    files = OWN_FILES + ranks * FILES_PER_RANK
    if 0 <= machine.open_files < files:
        raise UsageError(
            f"{f'{ranks} ranks need' if ranks > 1 else 'A rank needs'} {files} open files, but a process may have "
            f"{machine.open_files} here.",
            f"Raise the limit with `ulimit -n {max(files, 1024)}`.",
        )


def check_numbers(lanes: int | None, threads: int | None, ranks: str = "auto") -> None:
    """Raise `UsageError` for lanes, threads or ranks that no machine could give."""
    _check_at_least_one("`lanes`", lanes)
    _check_at_most("`lanes`", lanes, MOST_LANES)
    _check_at_least_one("--threads", threads)
    _check_at_most("--threads", threads, MOST_THREADS)
    if ranks not in CHOSEN_HERE:
        _number(ranks)


def _check_at_least_one(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UsageError(f"{option} must be at least 1, but is {value}.", "Leave it out to let samebits choose.")


def _check_at_most(option: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise UsageError(f"{option} must be at most {most}, but is {value}.", "Leave it out to let samebits choose.")


def _device(wish: Wish, machine: Machine) -> Device:
    if wish.device == "auto" and wish.ranks in ("cpu", "gpu"):
        return "cpu" if wish.ranks == "cpu" else _cuda(machine)
    if wish.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return "cpu" if wish.device == "cpu" else _cuda(machine)


def _cuda(machine: Machine) -> Device:
    if not machine.gpus:
        raise UsageError(machine.no_gpu.problem, machine.no_gpu.fix)
    return "cuda"


def _ranks(wish: Wish, machine: Machine, device: Device) -> tuple[int, str]:
    if wish.ranks not in CHOSEN_HERE:
        return _number(wish.ranks), ""
    if wish.ranks == "gpu" or (wish.ranks == "auto" and device == "cuda"):
        return machine.gpus, "auto: one rank per GPU"
    if wish.ranks == "cpu":
        return machine.cores.count, "one rank per core"
    lanes = None if wish.replicas_of_one_rank else wish.lanes
    ranks = min(machine.cores.count, MAX_AUTO_CPU_RANKS, lanes or MAX_AUTO_CPU_RANKS)
    bound = "as many as lanes" if ranks == lanes else f"at most {MAX_AUTO_CPU_RANKS}"
    return ranks, f"-n auto: one rank per core, {bound}"


def _number(text: str) -> int:
    if re.fullmatch("-?[0-9]{1,30}", text) is None:
        raise UsageError(f"-n must be a number of ranks or `auto`, but is {text!r}.", "Start with -n 2.")
    ranks = int(text)
    if ranks < 1:
        raise UsageError(f"-n must be at least 1, but is {ranks}.", "Start with -n 1, or -n auto.")
    return ranks


def _threads(wish: Wish, machine: Machine, ranks: int) -> tuple[int, str]:
    count = machine.cores.count
    cores = f"{count} core{'s' if count != 1 else ''} by {machine.cores.why}"
    if wish.threads is not None:
        return wish.threads, f"{cores}, threads by --threads"
    if machine.omp_threads:
        return _omp_threads(machine.omp_threads), f"{cores}, threads by OMP_NUM_THREADS"
    return threads_per_rank(count, ranks), cores


def _omp_threads(text: str) -> int:
    """The first number of OMP_NUM_THREADS, which may have one for each level of nesting."""
    first = text.partition(",")[0].strip()
    if re.fullmatch("[0-9]{1,30}", first) is None or not int(first):
        raise UsageError(
            f"OMP_NUM_THREADS must be a number of threads, but is {text!r}.", "Unset it, or give --threads."
        )
    _check_at_most("OMP_NUM_THREADS", int(first), MOST_THREADS)
    return int(first)


def _gpus(count: int) -> str:
    return "there is 1" if count == 1 else f"there are {count}"
