"""How many ranks, on which devices, with how many threads: a pure decision with its reason.

`auto` ranks: one per GPU; without a GPU one per core, at most four (more CPU ranks than that exchange more than they
compute). torchrun's default is one rank; here the machine is used unless the user says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.errors import UsageError
from lockstep.launch.request import Device
from lockstep.machine.cores import Cores, threads_per_rank

MAX_AUTO_CPU_RANKS = 4
MOST_RANKS = 1024
"""On one node. Nobody has this many devices; more is a typo that would fill the disk with logs."""
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


@dataclass(frozen=True)
class Size:
    """The decided size of a run."""

    ranks: int
    device: Device
    threads: int
    why: str
    crowded: str = ""
    """What to say where far more threads than cores would compute at once; else empty."""


def size(wish: Wish, machine: Machine) -> Size:
    """Decide the size of a run.

    Raises:
        UsageError: for impossible numbers, more ranks than GPUs, or more ranks than lanes.
    """
    _check_at_least_one("--lanes", wish.lanes)
    _check_at_least_one("--threads", wish.threads)
    device = _device(wish, machine)
    ranks, why_ranks = _ranks(wish, machine, device)
    if device == "cuda" and ranks > machine.gpus:
        raise UsageError(
            f"{ranks} ranks need {ranks} GPUs, but {_gpus(machine.gpus)} here.",
            f"Start with -n {machine.gpus}, or with --device cpu.",
        )
    if wish.lanes is not None and wish.lanes < ranks and not wish.replicas_of_one_rank:
        raise UsageError(
            f"`lanes` must be at least the number of ranks, but is {wish.lanes} with {ranks} ranks.",
            f"Start with -n {wish.lanes}, or set lanes={ranks}.",
        )
    _check_room(ranks, machine)
    threads, why_threads = _threads(wish, machine, ranks)
    why = "; ".join(reason for reason in (why_threads, why_ranks) if reason)
    return Size(ranks, device, threads, why, _crowded(ranks, threads, machine) if device == "cpu" else "")


def _crowded(ranks: int, threads: int, machine: Machine) -> str:
    cores = machine.cores.count
    if ranks * threads <= CROWDED * cores:
        return ""
    many = f"{ranks} rank{'s' if ranks != 1 else ''} x {threads} thread{'s' if threads != 1 else ''}"
    better = f"-n {max(1, cores // threads)}" if threads <= cores else f"--threads {max(1, cores // ranks)}"
    return f"{many} on {cores} core{'s' if cores != 1 else ''} wait for each other at every step; {better} is probably faster"


def _check_room(ranks: int, machine: Machine) -> None:
    if ranks > MOST_RANKS:
        raise UsageError(f"{ranks} ranks are too many: one node takes at most {MOST_RANKS}.", "Start with -n auto.")
    files = OWN_FILES + ranks * FILES_PER_RANK
    if 0 <= machine.open_files < files:
        raise UsageError(
            f"{f'{ranks} ranks need' if ranks > 1 else 'A rank needs'} {files} open files, but a process may have "
            f"{machine.open_files} here.",
            f"Raise the limit with `ulimit -n {max(files, 1024)}`.",
        )


def _check_at_least_one(option: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UsageError(f"{option} must be at least 1, but is {value}.", "Leave it out to let lockstep choose.")


def _device(wish: Wish, machine: Machine) -> Device:
    if wish.device == "auto" and wish.ranks in ("cpu", "gpu"):
        return "cpu" if wish.ranks == "cpu" else _cuda(machine)
    if wish.device == "auto":
        return "cuda" if machine.gpus else "cpu"
    return "cpu" if wish.device == "cpu" else _cuda(machine)


def _cuda(machine: Machine) -> Device:
    if not machine.gpus:
        raise UsageError("No GPU that the installed torch can use was found here.", "Start with --device cpu.")
    return "cuda"


def _ranks(wish: Wish, machine: Machine, device: Device) -> tuple[int, str]:
    if wish.ranks not in ("auto", "cpu", "gpu"):
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
    try:
        ranks = int(text)
    except ValueError:
        raise UsageError(f"-n must be a number of ranks or `auto`, but is {text!r}.", "Start with -n 2.") from None
    if ranks < 1:
        raise UsageError(f"-n must be at least 1, but is {ranks}.", "Start with -n 1, or -n auto.")
    return ranks


def _threads(wish: Wish, machine: Machine, ranks: int) -> tuple[int, str]:
    count = machine.cores.count
    cores = f"{count} core{'s' if count != 1 else ''} by {machine.cores.why}"
    if wish.threads is not None:
        return wish.threads, f"{cores}, threads by --threads"
    if machine.omp_threads is not None and machine.omp_threads.isdigit() and int(machine.omp_threads) > 0:
        return int(machine.omp_threads), f"{cores}, threads by OMP_NUM_THREADS"
    return threads_per_rank(count, ranks), cores


def _gpus(count: int) -> str:
    return "there is 1" if count == 1 else f"there are {count}"
