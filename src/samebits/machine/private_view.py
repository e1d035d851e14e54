"""A private view of the file system: a process sees everything as it is, and what it writes stays apart.

Runs in: the nursery; the view is made by a forked child of it.

A mount namespace in which overlayfs lies over every folder that can be written and has no mount in it. There is a view
only where a layer covers the working directory. It lives as long as a process has it open or is in it; nothing of it has
a name except the folder with what was written, which its owner removes. See docs/design/start-and-nodes.md.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_CAPABILITY_VERSION_3 = 0x20080522
MOUNTS = Path("/proc/self/mountinfo")
REAL_TREES = ("/dev", "/proc", "/sys")
"""What is below them stays as it is."""
KERNEL_TYPES = ("autofs", "cgroup", "cgroup2", "devtmpfs", "nsfs", "proc", "ramfs", "rpc_pipefs", "sysfs")
"""File systems of the kernel's own that are also found elsewhere."""
SHARED_BY_ALL = ("/tmp", "/var/tmp")  # noqa: S108 - what everybody may write to, and only root owns
MAX_LAYERS = 500
"""What would need more stays real, and is named."""
MOST_NAMED = 3
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class ViewReport:
    """How making a view went."""

    problem: str = ""
    """Why there is no view; empty when there is one."""
    real: tuple[str, ...] = ()
    """What could not be covered although this user can write there: `/mnt/usb (Invalid argument)`."""


class PrivateView:
    """A view that is held open. `join` enters it, in another process."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = descriptors

    def join(self) -> None:
        """Enter it; the process must have one thread, and has no more rights inside than its user has."""
        for descriptor in self._descriptors:
            _call("setns", ctypes.c_int(descriptor), ctypes.c_int(0))
        self.close()
        if len(self._descriptors) > 1:
            # Entering a user namespace gives all capabilities inside it, which would override file permissions.
            header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
            _call("capset", header, (ctypes.c_uint32 * 6)())

    def close(self) -> None:
        """Let go of it; it ends with the last process inside."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def make_view(folder: Path) -> tuple[ViewReport, PrivateView | None]:
    """Make a view, in a process with one thread. What is written in it goes to `folder`.

    Args:
        folder: an empty folder; inside the view, its parent, with everything in it, is the real one.
    """
    ours, theirs = socket.socketpair()
    maker = os.fork()
    if maker == 0:
        ours.close()
        _be_maker(folder, theirs)
    theirs.close()
    try:
        with ours, ours.makefile() as file:
            found = json.loads(file.read() or '{"problem": "the process that makes it died", "real": []}')
            report = ViewReport(found["problem"], tuple(found["real"]))
            view = None if report.problem else PrivateView(_open_namespaces(maker))
    finally:
        os.waitpid(maker, 0)
    return report, view


def _open_namespaces(maker: int) -> list[int]:
    """The user namespace, if it is another one, then the mount namespace."""
    own = Path("/proc/self/ns/user").stat().st_ino
    names = ["user"] if Path(f"/proc/{maker}/ns/user").stat().st_ino != own else []
    return [os.open(f"/proc/{maker}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in (*names, "mnt")]


def _be_maker(folder: Path, parent: socket.socket) -> NoReturn:
    """In the forked child: make the view, report, and keep its namespaces until the parent has them open."""
    try:
        report = _lay_view(folder)
    except OSError as error:
        report = ViewReport(f"{error.filename or 'mount'}: {error.strerror}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent reports it
        report = ViewReport(f"{type(error).__name__}: {error}")
    with suppress(OSError):
        parent.sendall(json.dumps(asdict(report)).encode())
        parent.shutdown(socket.SHUT_WR)
        parent.recv(1)
    os._exit(0)


def _lay_view(folder: Path) -> ViewReport:
    here, is_writable = str(Path.cwd()), os.access(".", os.W_OK)
    try:
        _call("unshare", ctypes.c_int(CLONE_NEWNS))
        # Folders that were there can be renamed. In a user namespace the kernel trusts no such redirection.
        options = "redirect_dir=on" if _is_initial_user_namespace() else "userxattr"
    except PermissionError:
        if foreign := _foreign(here):
            return ViewReport(f"{foreign} belongs to another user or group, for whom only root can keep files apart")
        _enter_user_namespace(os.geteuid(), os.getegid())
        options = "userxattr"
    _mount("", "/", flags=MS_REC | MS_PRIVATE)
    layers, around = cover(parse_mounts(MOUNTS.read_text(errors="surrogateescape")), _folders_in)
    refused = _lay(folder, layers, options)
    # [Note: why a view needs the working directory]
    # Scripts write there first. A view that leaves it real would break the promise where it matters most; a copy
    # keeps it.
    if is_writable and not is_below(here, [point for point in layers if point not in refused]):
        why = next((why for point, why in refused.items() if is_below(here, [point])), "it has mounts in it")
        return ViewReport(f"no layer can cover {here} ({why})")
    real = [f"{point} ({why})" for point, why in refused.items() if os.access(point, os.W_OK)]
    # Directly in /run are sockets of programs under way and what they note about themselves: nothing that a user keeps.
    if files := [point for point in around if os.access(point, os.W_OK) and not is_below(point, ["/run"])]:
        more = f" and {len(files) - MOST_NAMED} more folders" if len(files) > MOST_NAMED else ""
        real.append(f"files directly in {', '.join(files[:MOST_NAMED])}{more}")
    return ViewReport(real=tuple(real))


def _is_initial_user_namespace() -> bool:
    """Whether root here is root of the machine: every user has its own number."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]


def _enter_user_namespace(user: int, group: int) -> None:
    """Get one in which this user and this group keep their own numbers."""
    _call("unshare", ctypes.c_int(CLONE_NEWUSER | CLONE_NEWNS))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - one write, as the kernel demands
            file.write(text)


def _foreign(folder: str) -> str:
    """The first of the working directory and its folders that is writable but not this user's; empty when none is.

    A user namespace knows one user and one group, and layers keep the owners of what they cover.
    """
    for path in (folder, *(f"{folder}/{name}" for name in _folders_in(folder))):
        with suppress(OSError):
            found = os.stat(path)  # noqa: PTH116
            if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()) and os.access(path, os.W_OK):
                return path
    return ""


def _lay(folder: Path, layers: Sequence[str], options: str) -> dict[str, str]:
    """Lay a layer over each place, and put the parent of `folder` back; which places were refused, and why."""
    refused = dict.fromkeys(layers[MAX_LAYERS:], f"more than {MAX_LAYERS} layers")
    # A layer may hide the next place. Opened first, each keeps a name, without the colons and commas that options forbid.
    base, upper, sources = _held(folder.parent), Path(_held(folder)), dict[str, str]()
    for point in layers[:MAX_LAYERS]:
        try:
            sources[point] = _held(point)
        except OSError as error:
            refused[point] = error.strerror or str(error)
    for number, (point, source) in enumerate(sources.items()):
        place = upper / str(number)
        for path in (place, place / "upper", place / "work"):
            path.mkdir()
        try:
            parts = f"lowerdir={source},upperdir={place}/upper,workdir={place}/work,{options}"
            try:
                # Nothing is written to the disk for its own sake, since nothing outlives the run.
                _mount("overlay", point, "overlay", options=f"{parts},volatile")
            except OSError as error:
                if error.errno != errno.EINVAL:  # before Linux 5.10
                    raise
                _mount("overlay", point, "overlay", options=parts)
        except OSError as error:
            refused[point] = error.strerror or str(error)
    _mount(base, str(folder.parent), flags=MS_BIND)
    return refused


def _held(path: str | Path) -> str:
    """The place that `path` is now, whatever will cover it later."""
    return f"/proc/self/fd/{os.open(path, os.O_PATH)}"


def _folders_in(point: str) -> list[str]:
    try:
        with os.scandir(point) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


# Which places get a layer: pure functions of the mounts


def parse_mounts(text: str) -> dict[str, bool]:
    """Parse /proc/self/mountinfo: each mount's place, and whether a script could write there. The last one at a place is visible."""
    found: dict[str, bool] = {}
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        escaped, options = fields.split()[4:6]
        kind, _, more = rest.split(maxsplit=2)
        point = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), escaped)
        is_writable = "rw" in options.split(",") and "ro" not in more.split(",")
        found[point] = is_writable and kind not in KERNEL_TYPES and not is_below(point, REAL_TREES)
    return found


def is_below(point: str, trees: Iterable[str]) -> bool:
    """Whether `point` is one of `trees`, or in one of them."""
    return any(point == tree or point.startswith(f"{tree.rstrip('/')}/") for tree in trees)


def cover(mounts: Mapping[str, bool], folders_in: Callable[[str], Sequence[str]]) -> tuple[list[str], list[str]]:
    """The places that get a layer each, in the order in which they are laid, and the folders in which new files are real.

    In a user namespace the kernel lays no layer over a place with mounts in it: it would show what they hide. So such a
    folder is divided into its parts.

    Args:
        mounts: each place, and whether it can be written to.
        folders_in: the names of the folders in a folder, without links.
    """
    layers: list[str] = []
    around: list[str] = []

    def divide(point: str) -> None:
        if not any(other != point and is_below(other, [point]) for other in mounts):
            layers.append(point)
            return
        around.append(point)
        for name in folders_in(point):
            child = f"{point.rstrip('/')}/{name}"
            if child not in mounts and not is_below(child, REAL_TREES):
                divide(child)

    # Mounts within others first: homes get their layers before the root's many folders.
    for point in sorted(mounts, reverse=True):
        if mounts[point]:
            divide(point)
    # in a folder of another owner, files can be made only where a layer begins
    layers += [one for one in SHARED_BY_ALL if is_below(one, layers) and one not in layers]
    return layers, around


# System calls that Python 3.11 has no name for


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """As mount(2) does; empty words are null pointers."""
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)
