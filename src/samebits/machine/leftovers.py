"""What a run may leave behind, and how to find and remove it.

That is processes, found by their ancestry or their marker, and the shared memory that loader workers of a killed rank had
no time to remove.

Only this run's own are touched: descendants of its nursery, processes that carry its marker, and files whose name holds the
number of such a process; and memory of groups and folders that nobody holds any more.
"""

from __future__ import annotations

import fcntl
import getpass
import importlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from samebits.machine.held_folder import UNFINISHED, hold_together, is_left, remove_left

MARKER = "SAMEBITS_NURSERY"
"""Every process of a run carries it in /proc/PID/environ, so that leftovers can be found when the nursery is gone."""
PROC = Path("/proc")
_FLAGS, _IS_ENDING = 6, 0x4
"""Which field of /proc/PID/stat, counted from the state, has the kernel's flags of a process; PF_EXITING."""
_THREADS = 15
"""Which field, counted behind the parent, has the number of its threads."""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked through, never written
CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Descendants that remove shared memory themselves once all others are gone: killed last."""
_SOCKET_FOLDER = re.compile(r"sbmp-\w+|\.sbmp-\w+\.\d+")
_TORCH_FILE = re.compile(r"torch_(\d+)_\d+_\d+$")
_KEPT_FOLDER = re.compile(r"samebits-kept-\d+-[0-9a-f]+|\.samebits-kept-\d+-[0-9a-f]+\.\d+")
"""Snapshots of a run (`samebits.protocol.saving`); behind a dot, a folder whose making was not finished."""
_GROUP_FILE = re.compile(r"samebits-[0-9a-f]{32}$")
"""Memory of a group across PID namespaces, which has a name while the group is made (native/src/memory.hpp)."""


def descendants(ancestor: int, proc: Path = PROC) -> list[int]:
    """All processes below `ancestor`, without zombies."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - a quarter of pathlib's time, while many ranks want the cores too
        if name.isdigit():
            with suppress(OSError, ValueError):
                gone, parent = _end_and_parent(_stat(f"{proc}/{name}/stat"))
                if not gone:
                    children.setdefault(parent, []).append(int(name))
    found, queue = [], [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _stat(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1024)
    finally:
        os.close(descriptor)


def _end_and_parent(stat: bytes) -> tuple[bool, int]:
    """Parse the text of /proc/PID/stat: whether the process has nothing open any more, and its parent.

    The name in brackets may itself hold spaces and brackets. A zombie with other threads has ended only in part.
    """
    # The last bracket: the name, in front of it, may hold brackets itself.
    state, parent, *others = stat.rpartition(b")")[2].split()
    has_threads = len(others) > _THREADS and int(others[_THREADS]) > 1
    return state in {b"Z", b"X"} and not has_threads, int(parent)


def marked(variable: str, value: str, proc: Path = PROC) -> list[int]:
    """All other processes that were started with `variable=value`."""
    wanted = f"{variable}={value}".encode()
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def have_ended(processes: Iterable[int], proc: Path = PROC) -> bool:
    """Whether none of these has anything open any more: each is a zombie, or not there."""
    for process in processes:
        with suppress(OSError, ValueError):
            if not _end_and_parent(_stat(f"{proc}/{process}/stat"))[0]:
                return False
    return True


def ending(proc: Path = PROC) -> set[int]:
    """All processes that are just ending: they show no environment any more, but may still have files and sockets open."""
    found = set()
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                if int(_stat(f"{folder}/stat").rpartition(b")")[2].split()[_FLAGS]) & _IS_ENDING:
                    found.add(int(folder.name))
    return found


def orphaned_processes(proc: Path = PROC) -> list[int]:
    """Processes of runs whose launcher is gone; the marker in their environment begins with the launcher's number."""
    wanted, found = f"{MARKER}=".encode(), []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):
                marks = [word for word in (folder / "environ").read_bytes().split(b"\0") if word.startswith(wanted)]
                if marks and not (proc / str(int(marks[0][len(wanted) :].split(b"-")[0]))).exists():
                    found.append(int(folder.name))
    return sorted(found)


def orphaned_shared_memory(folder: Path = SHARED_MEMORY, proc: Path = PROC) -> list[str]:
    """Names of shared-memory files of torch and groups whose maker is gone; other processes may have torch's open."""
    if not folder.is_dir():
        return []
    names = [file.name for file in folder.iterdir()]
    made = [(name, match.group(1)) for name in names if (match := _TORCH_FILE.fullmatch(name))]
    gone = [name for name, process in made if not (proc / process).exists()]
    return sorted([*gone, *unmarked_group_files(folder)])


def unmarked_group_files(folder: Path = SHARED_MEMORY) -> list[str]:
    """Names of this user's group memories that no living process has marked with a record lock.

    A rank must not ask: the kernel takes away a process's own marks when it closes such a file.
    """
    return [file.name for file in folder.iterdir() if _GROUP_FILE.fullmatch(file.name) and _is_unmarked(file)]


def _is_unmarked(file: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
        finally:
            os.close(descriptor)
    return False


def kill(processes: Iterable[int]) -> None:
    """Send SIGKILL to each that still lives."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def cleans_up(process: int, proc: Path = PROC) -> bool:
    """Whether this process removes shared memory itself when the others are gone."""
    with suppress(OSError):
        command = (proc / str(process) / "cmdline").read_bytes()
        return any(cleaner in command for cleaner in CLEANERS)
    return False


def remove_shared_memory(processes: Iterable[int], folder: Path = SHARED_MEMORY) -> None:
    """Remove torch's shared-memory files that one of the ended `processes` made."""
    ended = set(processes)
    if not ended or not folder.is_dir():
        return
    for file in folder.iterdir():
        match = _TORCH_FILE.fullmatch(file.name)
        if match and int(match.group(1)) in ended:
            with suppress(OSError):
                file.unlink()


def remove_unmarked_group_files(folder: Path = SHARED_MEMORY) -> None:
    """Remove what a killed rank of this or an earlier run had no time to remove. No rank may call this."""
    with suppress(OSError):
        for name in unmarked_group_files(folder):
            (folder / name).unlink(missing_ok=True)


def left_folders(temporary: Path | None = None, shared: Path = SHARED_MEMORY) -> list[Path]:
    """Folders of ranks' sockets and of snapshots that nobody holds (`held_folder`): launcher, nursery and ranks are gone.

    Other programs' folders of multiprocessing are theirs.

    Args:
        temporary: the folder of temporary files; None: this process's.
        shared: that of shared memory.
    """
    found: list[Path] = []
    for folder, names in ((temporary or Path(tempfile.gettempdir()), _SOCKET_FOLDER), (shared, _KEPT_FOLDER)):
        with suppress(OSError):
            found += [path for path in folder.iterdir() if names.fullmatch(path.name) and is_left(path)]
    return sorted(found)


def remove_left_folders(temporary: Path | None = None, shared: Path = SHARED_MEMORY) -> None:
    """Remove what runs left that were killed as a whole."""
    for path in left_folders(temporary, shared):
        remove_left(path)


# The folder in which the processes of a run keep the sockets through which they send each other tensors

# [Note: why processes share a socket folder]
# multiprocessing makes a folder for each process that sends tensors, and only that process removes it. One that is killed, as
# the loader workers of a killed rank are, leaves it behind. So all below one nursery share a folder, which is removed with them.

SOCKET, LONGEST = "/listener-12345678", 107
"""What multiprocessing adds for a socket; how long the path of one may be (unix(7))."""
SHORT = Path("/tmp")  # noqa: S108 - the folder in it has mode 0700 and a random name

_HELD: list[int] = []
"""Descriptors of folders that nobody may take for left behind."""


def share_socket_folder() -> None:
    """Let this process and those that it starts keep their sockets in the folder of their nursery, if they have one."""
    if marker := os.environ.get(MARKER):
        folder = _socket_folder(marker)
        # Without it multiprocessing makes folders of its own. It is held until the last process ends that has inherited it.
        with suppress(OSError):
            _HELD.append(hold_together(folder))
            importlib.import_module("multiprocessing").current_process()._config["tempdir"] = str(folder)  # noqa: SLF001


def remove_socket_folder(marker: str) -> None:
    """Remove the folder of a nursery whose other processes have ended, if one was made, and what they did not finish making."""
    folder = _socket_folder(marker)
    for path in (folder, *folder.parent.glob(f"{UNFINISHED}{folder.name}.*")):
        shutil.rmtree(path, ignore_errors=True)


def _socket_folder(marker: str) -> Path:
    """Among temporary files; in /tmp where a socket's path would be too long there, on which multiprocessing would wait forever."""
    name = f"sbmp-{marker[-8:]}"
    folder = Path(tempfile.gettempdir()) / name
    return folder if len(str(folder)) + len(SOCKET) <= LONGEST else SHORT / name


# Libraries of torch's compiler (Inductor) that a killed compilation left half written in its cache

# [Note: why a library that is not executable is removed]
# Inductor takes what is there for whole: to load half a library ends the process with SIGBUS, in every later run. The linker
# makes a library executable when it closes it, and the process of torch's that runs the linker holds the lock of the same name.
# The locks are the kernel's, so no dead process holds one. All else in the cache is renamed into place, or read by the compiler
# only when whole (headers).

_EXECUTABLE = 0o100
_ODD = re.compile(r'[\\/:*?"<>|]')


def compiler_cache() -> Path:
    """Where Inductor keeps what it compiled, by the rule that it has itself."""
    if named := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(named)
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / ("torchinductor_" + _ODD.sub("_", user))


def remove_half_written(cache: Path) -> list[Path]:
    """Remove the libraries that nobody is writing and that are not whole; return them. 2 us for each that is."""
    removed = []
    for library in cache.glob("*/*.so"):
        # Somebody else may have removed it, or own it.
        with suppress(OSError):
            if not library.lstat().st_mode & _EXECUTABLE and _remove_unless_locked(library):
                removed.append(library)
    return removed


def _remove_unless_locked(library: Path) -> bool:
    lock = library.parents[1] / "locks" / f"{library.name.partition('.')[0]}.lock"
    # Opening a FIFO would wait for a writer.
    if lock.exists() and not lock.is_file():
        return False
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        library.unlink()
        return True
