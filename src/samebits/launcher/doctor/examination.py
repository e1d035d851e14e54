"""Look at what a run needs here: torch, the compiled part, GPUs, cores, shared memory, limits, and what earlier runs left."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from samebits.errors import UsageError
from samebits.launcher.doctor.report import Report, Row, note, ok, problem
from samebits.launcher.doctor.torch_facts import TorchFacts, ask_torch
from samebits.launcher.sizing import Machine, Wish, size
from samebits.launcher.terminal.report import device_names
from samebits.machine import torch_versions
from samebits.machine.cores import usable_cores
from samebits.machine.leftovers import SHARED_MEMORY, left_folders, orphaned_processes, orphaned_shared_memory
from samebits.machine.no_gpu import NO_GPU, NoGpu, first_sentence, why_none
from samebits.machine.processes import address_limit
from samebits.machine.stacks import refusal
from samebits.protocol.installation import is_for_want_of_addresses, to_install
from samebits.protocol.run_folder import runs_folder


def examine(variables: Mapping[str, str], version: str) -> Report:
    """Look at everything; takes about as long as importing torch.

    Args:
        variables: the environment.
        version: samebits's.
    """
    facts = ask_torch(variables)
    machine = Machine(usable_cores(), len(facts.devices), variables.get("OMP_NUM_THREADS"))
    no_gpu = why_none(variables, ask=lambda _: first_sentence(facts.cuda_error))
    rows = [
        ok("Python", ".".join(map(str, sys.version_info[:3]))),
        package_row(version, strangers(), foreign_command(variables.get("PATH"))),
        torch_row(facts, address_limit()),
        backend_row(facts),
        compiled_row(facts),
        device_row(facts, no_gpu),
        *core_rows(machine, len(os.sched_getaffinity(0))),
        shared_memory_row(*read_space(SHARED_MEMORY)),
        open_files_row(*resource.getrlimit(resource.RLIMIT_NOFILE)),
        folder_row(runs_folder(variables)),
        stacks_row(refusal()),
        leftover_row(orphaned_processes(), orphaned_shared_memory(), left_folders()),
    ]
    return Report(tuple(rows), facts)


# samebits


def strangers() -> list[str]:
    """Names and versions of other installed packages with files in this package's folder, where the last one installed wins."""
    package = Path(__file__).resolve().parents[2]
    found = []
    for one in importlib.metadata.distributions():
        files = [file for file in one.files or () if file.parts[0] == package.name]
        if one.name != package.name and any(
            Path(str(one.locate_file(file))).resolve().is_relative_to(package) for file in files
        ):
            found.append(f"{one.name} {one.version}")
    return sorted(found)


def foreign_command(path: str | None) -> str:
    """The first `samebits` on PATH if it is not this package's command; else empty."""
    command = shutil.which("samebits", path=path)
    if command is None:
        return ""
    with suppress(OSError), Path(command).open("rb") as file:
        return "" if b"samebits.cli.main" in file.read(4096) else command
    return command


def package_row(version: str, others: Sequence[str], command: str) -> Row:
    """Whether what is imported and called is this package, and nobody else's.

    Args:
        version: this package's.
        others: see `strangers`.
        command: see `foreign_command`.
    """
    text = f"{version} in {Path(__file__).parents[2]}"
    if others:
        names = " ".join(one.split()[0] for one in others)
        fix = f"pip uninstall {names}, then {to_install(options='--force-reinstall --no-deps')}."
        return problem("samebits", f"{text}, into which {', '.join(others)} has put files", fix)
    if command:
        fix = f"Write {sys.executable} -m samebits, or put {sysconfig.get_path('scripts')} first in PATH."
        return note("samebits", f"{text}; but the command samebits is {command}, another program", fix)
    return ok("samebits", text)


# torch


TESTED_ONE = f"pip install torch=={torch_versions.TESTED[-1]}"


def torch_row(facts: TorchFacts, most_addresses: int) -> Row:
    """Whether torch can be imported, and whether samebits was tested with it.

    Args:
        facts: torch's.
        most_addresses: how many bytes of addresses a process may have; negative: any number.
    """
    if facts.error:
        is_short = most_addresses >= 0 and (facts.is_crashed or is_for_want_of_addresses(facts.error, most_addresses))
        fix = "ulimit -v unlimited" if is_short else "pip install torch, into this Python."
        return problem("torch", f"cannot be imported: {facts.error}", fix)
    kind = facts.built_for or "a CPU build"
    text = f"{facts.version}, {kind}" + (f", kernels for {facts.cpu}" if facts.cpu else "")
    text += f", NumPy {facts.numpy or 'missing'}"
    if torch_versions.is_too_old(facts.version):
        return problem("torch", text, f"samebits needs {torch_versions.tested_range().split()[0]} or newer.")
    if torch_versions.is_untested(facts.version):
        text += f"; newer than any tested with samebits ({torch_versions.tested_range()})"
    if facts.missing:
        text += f"; missing: {', '.join(facts.missing)}"
    if torch_versions.is_untested(facts.version) or facts.missing:
        return note("torch", text, f"A tested one: {TESTED_ONE}. The rows below show what was tried here.")
    if facts.tasks > 1:
        return note(
            "torch",
            f"{text}; importing it starts {facts.tasks - 1} threads",
            "Ranks start as new interpreters (--start-method spawn), which takes seconds; find the import that starts threads.",
        )
    return ok("torch", text)


KNOWN = ("gloo", "nccl", "mpi", "ucc")


def backend_row(facts: TorchFacts) -> Row:
    """Which backends torch has and lacks, and which are used."""
    if facts.error:
        return problem("backends", "unknown without torch", "See torch.")
    if "gloo" not in facts.backends:
        return problem(
            "backends",
            "this torch has no gloo, so CPU ranks cannot meet",
            "Install a torch built with torch.distributed, such as the wheels of pytorch.org.",
        )
    has = [f"nccl {facts.nccl}" if name == "nccl" and facts.nccl else name for name in KNOWN if name in facts.backends]
    lacks = [name for name in KNOWN if name not in facts.backends]
    text = f"{', '.join(has)}; not {', '.join(lacks)}" if lacks else ", ".join(has)
    if facts.devices and "nccl" not in facts.backends:
        return note("backends", f"{text}; GPU ranks need nccl", "Install the CUDA wheel of torch.")
    between = "gloo" if facts.not_compiled or facts.misfit else "shared memory"
    used = f"nccl between GPU ranks, {between} between CPU ranks" if facts.devices else f"{between} is used"
    if facts.misfit:
        return note("backends", f"{text}. Here {used}. {facts.misfit}", TESTED_ONE)
    return ok("backends", f"{text}. Here {used}")


def compiled_row(facts: TorchFacts) -> Row:
    """Whether CPU ranks of one node share memory."""
    if facts.error:
        return problem("compiled part", "unknown without torch", "See torch.")
    if facts.not_compiled:
        what, _, fix = facts.not_compiled.partition("; ")
        return note("compiled part", f"{what}: CPU ranks use gloo, which is slower", fix or "Use Linux.")
    return ok("compiled part", f"loads, {facts.instructions}: CPU ranks of one node share memory")


# Devices and cores


def device_row(facts: TorchFacts, no_gpu: NoGpu) -> Row:
    """The GPUs that torch can use, or why there are none, in the words of `samebits run`."""
    if facts.devices:
        return ok("devices", device_names(len(facts.devices), facts.devices))
    if no_gpu.is_news:
        return note("devices", f"cpu. {no_gpu.problem}", no_gpu.fix)
    return ok("devices", "cpu" if no_gpu == NO_GPU else f"cpu. {no_gpu.problem}")


def core_rows(machine: Machine, affinity: int) -> list[Row]:
    """The cores, and the default ranks and threads.

    Args:
        machine: as `samebits run` sees it.
        affinity: cores that this process may be scheduled on, before quotas.
    """
    count = machine.cores.count
    text = f"{count} by {machine.cores.why}" + (f", of {affinity} by affinity" if count < affinity else "")
    return [ok("cores", text), _default(machine)]


def _default(machine: Machine) -> Row:
    try:
        sized = size(Wish(), machine)
    except UsageError as error:
        return problem("ranks", error.problem, error.fix)
    ranks = f"{sized.ranks} rank{'s' if sized.ranks != 1 else ''} on {sized.device}"
    threads = f"{sized.threads} thread{'s' if sized.threads != 1 else ''} each"
    text = f"`samebits run` would start {ranks}, {threads}"
    if machine.omp_threads is not None and sized.threads * sized.ranks > machine.cores.count:
        text += f", by OMP_NUM_THREADS={machine.omp_threads}: more threads than cores"
        return note("ranks", text, "Unset OMP_NUM_THREADS, or give --threads.")
    return ok("ranks", text)


# Limits


COMFORTABLE, LEAST = 4096, 256
"""Open files."""


def open_files_row(soft: int, hard: int) -> Row:
    """Whether enough files may be open: each tensor that a loader worker hands over is one while it is in use.

    Args:
        soft: the limit in force; negative: none.
        hard: how far a person may raise it; negative: any.
    """
    if soft < 0 or soft >= COMFORTABLE:
        return ok("open files", "no limit" if soft < 0 else str(soft))
    wanted = COMFORTABLE if hard < 0 else min(hard, COMFORTABLE)
    fix = f"ulimit -n {wanted}" if wanted > soft else "Ask an administrator to raise the hard limit."
    if soft < LEAST:
        return problem("open files", f"{soft} per process: too few for ranks and loader workers", fix)
    return note("open files", f"{soft} per process: many loader workers need more", fix)


SMALL_BYTES = 1 << 30
"""Below this, loader workers with large batches fail with "bus error"; Docker gives 64 MiB."""
LEAST_BYTES = 32 << 20


def shared_memory_row(total: int, free: int, writable: bool) -> Row:
    """Whether shared memory is large enough for loader workers. Ranks that see each other's /proc need none.

    Args:
        total: bytes; 0 when there is none.
        free: bytes.
        writable: whether this process may make files there.
    """
    fix = "In a container: docker run --shm-size=8g, or --ipc=host. Or num_workers=0."
    only = "DataLoader workers cannot hand over batches; a run without them works"
    if not total or not writable:
        return note(
            "shared memory", f"{SHARED_MEMORY} {'cannot be written to' if total else 'is missing'}: {only}", fix
        )
    text = f"{SHARED_MEMORY} {size_text(total)}, {size_text(free)} free"
    if free < LEAST_BYTES:
        is_tiny = total < LEAST_BYTES
        return note(
            "shared memory",
            f"{text}: {'tiny' if is_tiny else 'full'}, and {only}",
            fix if is_tiny else f"Remove what is in it. {fix}",
        )
    return (
        note("shared memory", f"{text}: small for loader workers", fix)
        if total < SMALL_BYTES
        else ok("shared memory", text)
    )


def folder_row(folder: Path) -> Row:
    """Whether run folders can be made in the folder of all runs."""
    total, free, writable = read_space(folder)
    if not total or not writable:
        return problem(
            "run folders", f"{folder} cannot be written to", "Set SAMEBITS_RUNS or --log-dir to a writable folder."
        )
    text = f"{folder}, {size_text(free)} free"
    if free < SMALL_BYTES:
        return note("run folders", text, "Logs and weights need room: free disk space, or use another --log-dir.")
    return ok("run folders", text)


def read_space(folder: Path) -> tuple[int, int, bool]:
    """Total and free bytes where a folder is, or would be made, and whether it is writable; zeros if that is gone."""
    with suppress(OSError):
        place = folder.absolute()
        while not place.exists() and folder != SHARED_MEMORY:
            place = place.parent
        found = os.statvfs(place)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, os.access(place, os.W_OK)
    return 0, 0, False


def size_text(size: int) -> str:
    """`64 KiB`, `64 MiB`, `7.8 GiB`."""
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


# Other processes


def stacks_row(refused: str) -> Row:
    """How the launcher learns where a rank is that others wait for.

    Args:
        refused: why stacks cannot be read; empty when they can.
    """
    if not refused:
        return ok("rank stacks", "py-spy reads them, whatever a rank does")
    fix = (
        "pip install py-spy"
        if "not installed" in refused
        else "In a container: docker run --cap-add=SYS_PTRACE. Elsewhere: sysctl kernel.yama.ptrace_scope=1, or less."
    )
    text = f"{refused}: a rank that others wait for is asked by a signal, and a stopped one cannot answer"
    return note("rank stacks", text, fix)


MAX_NAMED = 8


def leftover_row(processes: Sequence[int], files: Sequence[str], folders: Sequence[Path] = ()) -> Row:
    """Whether earlier runs left anything, and how to get rid of it.

    Nobody is told to end a process that may belong to a container, whose numbers mean nothing here, before looking.
    """
    torch_files = [name for name in files if name.startswith("torch_")]
    kinds = (
        (len(processes), "process", "processes", f"of runs whose launcher is gone ({_named(processes)})"),
        (len(files) - len(torch_files), "memory", "memories", "of groups that have ended"),
        (len(torch_files), "file", "files", f"of torch in /dev/shm whose maker is gone ({_named(torch_files)})"),
        (len(folders), "folder", "folders", "of runs that were killed"),
    )
    found = [f"{count} {one if count == 1 else more} {what}" for count, one, more, what in kinds if count]
    ways = ["samebits clean"] * bool(folders or len(files) > len(torch_files))
    numbers = ",".join(map(str, processes))
    ways += [f"ps -o pid,user,cgroup,args -p {numbers}, and kill what is yours and no container's"] * bool(processes)
    ways += [f"rm {' '.join(str(SHARED_MEMORY / name) for name in torch_files)}, if no container has them"] * bool(
        torch_files
    )
    return note("leftovers", "; ".join(found), "; ".join(ways)) if found else ok("leftovers", "none")


def _named(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:MAX_NAMED])) + (", ..." if len(things) > MAX_NAMED else "")
