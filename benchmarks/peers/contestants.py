"""Who takes part, how its ranks are started, and how to install who is missing. Nothing is started here.

Nobody's ranks are tied to cores, and every peer is set up as well as could be found out (2 cores of an EPYC):

- Open MPI: its own choice, UCX (`ob1` with `sm` took 3 to 4 times as long up to 4 KiB, 1.5 to 2 times up to 64 MiB).
- MPICH: `release_gather` within a node (64 MiB in 11 instead of 31 ms, 4 MiB in 0.6 instead of 1.6).
- Intel MPI: `I_MPI_FABRICS=shm`, with its reads of the peer's memory, which are quicker than without.
- oneCCL: over Intel MPI and without worker threads, which would need cores of their own (4 B in 5 µs instead of 4 ms).
- DeepSpeed: the operation of its inference, compiled for this machine.

Where there are more ranks than cores, those that can are told to give the core away while they wait. MPICH's yielding does not
help there (4 B on 4 ranks and 2 cores takes 8 ms), its short sleeps do (80 µs).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cases import BY_TORCH, GLOO, ORDINARY, WINDOWS

OURS = (WINDOWS, ORDINARY, BY_TORCH)
DEEPSPEED = "DeepSpeed"
INSTALL = "make peers"


@dataclass(frozen=True)
class Contestant:
    """One set of processes, which serves one or several sides."""

    name: str
    sides: tuple[str, ...]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    """Why it cannot take part, with what to do; empty when it can."""
    is_stopped: bool = False
    """Whether its processes are stopped (SIGSTOP) between turns, because they have threads that never sleep."""


@dataclass(frozen=True)
class Field:
    """Where things are, and for how many ranks."""

    installed: Path
    """The folder of `make peers`."""
    programs: Path
    """Where by_mpi, by_oneccl and DeepSpeed's operation have been compiled."""
    socket: Path
    num_ranks: int
    num_cores: int

    @property
    def is_crowded(self) -> bool:
        """Whether ranks must share cores."""
        return self.num_ranks > self.num_cores


def contestants(place: Field) -> list[Contestant]:
    """Everybody, ours first; who is missing says so."""
    return [_ours(place), _open_mpi(place), _mpich(place), _intel_mpi(place), _oneccl(place), _deepspeed(place)]


def _in_ranks(place: Field, name: str, *options: str) -> tuple[str, ...]:
    launch = ["-m", "lockstep", "run", "-q", "-n", str(place.num_ranks), "--threads", "1", "--device", "cpu"]
    own = ["-m", "benchmarks.in_rank.peers", "--socket", str(place.socket), "--name", name, *options]
    return (sys.executable, *launch, "--lanes", str(place.num_ranks), *own)


def _ours(place: Field) -> Contestant:
    return Contestant("lockstep", (*OURS, GLOO), _in_ranks(place, "lockstep"))


def _deepspeed(place: Field) -> Contestant:
    operation = place.programs / "deepspeed_shm_comm.so"
    told = _in_ranks(place, DEEPSPEED, "--deepspeed", str(operation))
    return Contestant(DEEPSPEED, (DEEPSPEED,), told, missing="" if operation.exists() else INSTALL)


def _by_mpi(place: Field, name: str, launch: tuple[str, ...], library: str, given: Mapping[str, str]) -> Contestant:
    program = (str(place.programs / "by_mpi"), library, str(place.socket), name)
    return Contestant(name, (name,), (*launch, "-n", str(place.num_ranks), *program), given)


def _found(prefix: Path, launcher: str, library: str, system: tuple[str, str]) -> tuple[str, str] | None:
    """The launcher and the library: those of `make peers`, else those of Debian's packages."""
    if (prefix / "bin" / launcher).exists():
        return str(prefix / "bin" / launcher), str(prefix / "lib" / library)
    there = shutil.which(system[0])
    return (there, system[1]) if there else None


def _open_mpi(place: Field) -> Contestant:
    found = _found(place.installed / "openmpi", "mpirun", "libmpi.so.40", ("mpirun.openmpi", "libmpi.so.40"))
    if found is None:
        return Contestant("Open MPI", ("Open MPI",), missing=f"{INSTALL}, or apt-get install openmpi-bin")
    given = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    given |= {"OMPI_MCA_mpi_yield_when_idle": "1"} if place.is_crowded else {}
    return _by_mpi(place, "Open MPI", (found[0], "--bind-to", "none", "--oversubscribe"), found[1], given)


def _mpich(place: Field) -> Contestant:
    found = _found(place.installed / "mpich", "mpiexec.hydra", "libmpi.so.12", ("mpiexec.mpich", "libmpich.so.12"))
    if found is None:
        return Contestant("MPICH", ("MPICH",), missing=f"{INSTALL}, or apt-get install mpich")
    throttled = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "true", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "100"}
    given = throttled if place.is_crowded else {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"}
    return _by_mpi(place, "MPICH", (found[0], "-bind-to", "none"), found[1], given)


def _intel(place: Field) -> dict[str, str]:
    given = {"I_MPI_ROOT": str(place.installed / "impi"), "I_MPI_PIN": "0", "I_MPI_FABRICS": "shm"}
    return given | ({"I_MPI_WAIT_MODE": "1"} if place.is_crowded else {})


def _intel_mpi(place: Field) -> Contestant:
    prefix = place.installed / "impi"
    launch, library = prefix / "bin" / "mpiexec.hydra", prefix / "lib" / "libmpi.so.12"
    if not launch.exists():
        return Contestant("Intel MPI", ("Intel MPI",), missing=INSTALL)
    return _by_mpi(place, "Intel MPI", (str(launch),), str(library), _intel(place))


def _oneccl(place: Field) -> Contestant:
    program, prefix = place.programs / "by_oneccl", place.installed / "impi"
    if not program.exists() or not (prefix / "bin").exists():
        return Contestant("oneCCL", ("oneCCL",), missing=INSTALL)
    launch = str(prefix / "bin" / "mpiexec.hydra"), "-n", str(place.num_ranks)
    told = str(program), str(place.socket), "oneCCL", str(place.socket.with_name("oneccl.keys"))
    given = {"CCL_ATL_TRANSPORT": "mpi", "CCL_WORKER_OFFLOAD": "0", "LD_LIBRARY_PATH": str(prefix / "lib")}
    given |= {"CCL_LOG_LEVEL": "error"} | _intel(place)
    return Contestant("oneCCL", ("oneCCL",), (*launch, *told), given, is_stopped=True)
