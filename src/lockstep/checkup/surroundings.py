"""What surrounds a run: shared memory, the folder of runs, the loopback device, leftovers, private views of files."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from lockstep.checkup.report import Row, note, ok, problem
from lockstep.machine.leftovers import SHARED_MEMORY
from lockstep.machine.private_view import ViewReport, make_view
from lockstep.machine.temporary_folder import TemporaryFolder

FOLDER = SHARED_MEMORY
SMALL_BYTES = 1 << 30
"""Below this, loader workers with large batches fail with "bus error"; Docker gives 64 MiB."""
LEAST_BYTES = 32 << 20
ONLY_WORKERS = "DataLoader workers cannot hand over batches; a run without them works"
FIX = "In a container: docker run --shm-size=8g, or --ipc=host. Or num_workers=0."


def shared_memory_row(total: int, free: int, writable: bool) -> Row:
    """Whether shared memory is large enough for loader workers. Ranks that see each other's /proc need none.

    Args:
        total: bytes; 0 when there is none.
        free: bytes.
        writable: whether this process may make files there.
    """
    if not total or not writable:
        state = "is missing" if not total else "cannot be written to"
        return note("shared memory", f"{FOLDER} {state}: {ONLY_WORKERS}", FIX)
    text = f"{FOLDER} {size_text(total)}, {size_text(free)} free"
    if total < LEAST_BYTES:
        return note("shared memory", f"{text}: tiny, and {ONLY_WORKERS}", FIX)
    if free < LEAST_BYTES:
        return note("shared memory", f"{text}: full, and {ONLY_WORKERS}", f"Remove what is in it. {FIX}")
    if total < SMALL_BYTES:
        return note("shared memory", f"{text}: small for loader workers", FIX)
    return ok("shared memory", text)


def read_shared_memory(folder: Path = FOLDER) -> tuple[int, int, bool]:
    """Total and free bytes, and whether it is writable."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0, False
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, os.access(folder, os.W_OK)


def size_text(size: int) -> str:
    """`64 KiB`, `64 MiB`, `7.8 GiB`."""
    if size < 2**20:
        return f"{size / 2**10:.0f} KiB"
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


LITTLE_BYTES = 1 << 30


def folder_row(folder: Path, writable: bool, free: int) -> Row:
    """Whether run folders can be made.

    Args:
        folder: of all runs.
        writable: whether it, or the nearest folder above that exists, can be written to.
        free: bytes on its disk.
    """
    if not writable:
        return problem(
            "run folders", f"{folder} cannot be written to", "Set LOCKSTEP_RUNS or --log-dir to a writable folder."
        )
    text = f"{folder}, {size_text(free)} free"
    if free < LITTLE_BYTES:
        return note("run folders", text, "Logs and weights need room: free disk space, or use another --log-dir.")
    return ok("run folders", text)


def read_folder(folder: Path) -> tuple[bool, int]:
    """Whether it is writable, and free bytes; False and 0 also if the working directory is gone."""
    try:
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        found = os.statvfs(place)
    except OSError:
        return False, 0
    return place.is_dir() and os.access(place, os.W_OK), found.f_bavail * found.f_frsize


def loopback_row(error: str) -> Row:
    """Whether ranks of this machine can connect to each other; `error` is empty when they can."""
    if error:
        return problem("loopback", f"cannot connect to 127.0.0.1: {error}", "ip link set lo up")
    return ok("loopback", "127.0.0.1 answers")


def try_loopback() -> str:
    """Connect to a socket of our own; what went wrong, or empty."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=2.0),
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)


MAX_NAMED = 8


def leftover_row(processes: Sequence[int], files: Sequence[str], folders: Sequence[Path] = ()) -> Row:
    """Whether earlier runs left anything, and how to get rid of it."""
    found = []
    if processes:
        found.append(f"{len(processes)} process{'es' if len(processes) > 1 else ''} of runs that have ended")
    if files:
        found.append(f"{len(files)} file{'s' if len(files) > 1 else ''} in /dev/shm of processes that have ended")
    if folders:
        found.append(
            f"{len(folders)} folder{'s' * (len(folders) > 1)} of runs that were killed: the next run removes them"
        )
    if not found:
        return ok("leftovers", "none")
    ways = []
    if processes:
        more = " ..." if len(processes) > MAX_NAMED else ""
        ways.append(f"kill -9 {' '.join(map(str, processes[:MAX_NAMED]))}{more}")
    if files:
        more = " ..." if len(files) > 2 else ""
        ways.append(f"rm {' '.join(str(SHARED_MEMORY / name) for name in files[:2])}{more}")
    return note("leftovers", "; ".join(found), "; ".join(ways))


def try_view() -> ViewReport:
    """Make a private view of the file system and let go of it. Call in a process with one thread."""
    with TemporaryFolder("lockstep-doctor-") as base:
        (base / "layers").mkdir()
        report, view = make_view(base / "layers")
        if view is not None:
            view.close()
        return report


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


def private_files_row(report: ViewReport) -> Row:
    """Whether private views work; if not, why, and what happens then."""
    if report.problem:
        return note(
            "private files",
            f"verify and bench cannot give their runs a private view of files: {report.problem}",
            "they run in copies of the folder; as root, or with user namespaces allowed, they keep all files apart",
        )
    if report.real:
        return note("private files", f"kept apart by verify and bench, but not {', '.join(report.real[:4])}", "")
    return ok("private files", "verify and bench keep apart what their runs write")
