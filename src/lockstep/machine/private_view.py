"""A private view of the file system: a process sees everything as it is, and what it writes stays apart.

A mount namespace in which overlayfs covers all that can be written (`mounts` decides what that is). Root makes it
directly, others inside a user namespace. It lives as long as a process has it open or is in it; nothing of it has a
name except the folder with what was written, which its owner removes. See docs/design/0018.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.machine.mounts import divided_cover, is_below, parse_mounts, whole_cover

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
_CAPABILITY_VERSION_3 = 0x20080522
MOUNTS = Path("/proc/self/mountinfo")
SHARED_BY_ALL = ("/tmp", "/var/tmp")  # noqa: S108 - what everybody may write to, and only root owns


@dataclass(frozen=True)
class ViewReport:
    """How making a view went."""

    problem: str = ""
    """Why there is no view; empty when there is one."""
    real: tuple[str, ...] = ()
    """What could not be covered although this user can write there: `/mnt/usb (Invalid argument)`."""


class PrivateView:
    """A view that is held open. `join` enters it, in another process."""

    def __init__(self, descriptors: tuple[int, ...]) -> None:
        self._descriptors = descriptors

    def join(self) -> None:
        """Enter it; the process must have one thread, and has no more rights inside than its user has."""
        for descriptor in self._descriptors:
            enter(descriptor)
        self.close()
        if len(self._descriptors) > 1:
            drop_capabilities()

    def close(self) -> None:
        """Let go of it; it ends with the last process inside."""
        for descriptor in self._descriptors:
            os.close(descriptor)


def make_view(folder: Path) -> tuple[ViewReport, PrivateView | None]:
    """Make a view, in a process with one thread. What is written in it goes to `folder`.

    Args:
        folder: an empty folder; inside the view, it and its parent, with everything in it, are the real ones.
    """
    told, tell = os.pipe()
    release, hold = os.pipe()
    maker = os.fork()
    if maker == 0:
        os.close(hold)
        os.close(told)
        _be_maker(folder, tell, release)
    os.close(tell)
    os.close(release)
    try:
        with os.fdopen(told) as file:
            found = json.loads(file.read() or '{"problem": "the process that makes it died", "real": []}')
        report = ViewReport(found["problem"], tuple(found["real"]))
        held = _open_namespaces(maker) if not report.problem else ()
    finally:
        os.close(hold)
        os.waitpid(maker, 0)
    return report, PrivateView(held) if held else None


def _open_namespaces(maker: int) -> tuple[int, ...]:
    """The user namespace, if it is another one, then the mount namespace."""
    own = Path("/proc/self/ns/user").stat().st_ino
    names = ["user"] if Path(f"/proc/{maker}/ns/user").stat().st_ino != own else []
    return tuple(os.open(f"/proc/{maker}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in (*names, "mnt"))


def _be_maker(folder: Path, tell: int, release: int) -> None:
    """In the forked child: make the view, tell about it, wait until the parent has it open. Never returns."""
    try:
        report = _lay_view(folder)
    except OSError as error:
        report = ViewReport(f"{error.filename or 'mount'}: {error.strerror}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        report = ViewReport(f"{type(error).__name__}: {error}")
    with suppress(OSError):
        with os.fdopen(tell, "w") as file:
            json.dump(asdict(report), file)
        os.read(release, 1)
    os._exit(0)


def _lay_view(folder: Path) -> ViewReport:
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWNS)
    except PermissionError:
        if foreign := _foreign(Path.cwd(), user, group):
            return ViewReport(f"{foreign} belongs to another user or group, for whom only root can keep files apart")
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        map_own_user(user, group)
    attach("", "/", flags=MS_REC | MS_PRIVATE)
    mounts = parse_mounts(MOUNTS.read_text(errors="surrogateescape"))
    if is_initial_user_namespace():
        return ViewReport(real=tuple(_Laying(folder, "redirect_dir=on").whole(whole_cover(mounts))))
    layers, around = divided_cover(mounts, _folders_in)
    # in a folder of another owner, files can be made only where a layer begins
    layers += [one for one in SHARED_BY_ALL if is_below(one, layers) and one not in layers]
    real = _Laying(folder, "userxattr").divided(layers)
    return ViewReport(real=(*real, *(f"files directly in {point}" for point in around if os.access(point, os.W_OK))))


def _foreign(folder: Path, user: int, group: int) -> str:
    """The first of the working directory and its folders that is writable but not this user's; empty when none is.

    A user namespace knows one user and one group, and layers keep the owners of what they cover.
    """
    for path in (folder, *(folder / name for name in _folders_in(str(folder)))):
        with suppress(OSError):
            found = path.stat()
            if (found.st_uid, found.st_gid) != (user, group) and os.access(path, os.W_OK):
                return str(path)
    return ""


def _folders_in(point: str) -> list[str]:
    try:
        with os.scandir(point) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


class _Laying:
    """Lays the pieces of a view, one after the other."""

    def __init__(self, folder: Path, options: str) -> None:
        self._base, self._options = folder.parent, options
        self._real_base = _held(self._base)
        self._upper = _held(folder)
        self._count = 0
        self._real: list[str] = []
        self._try(folder)

    def _try(self, folder: Path) -> None:
        """Try a layer over an empty folder; if the disk of `folder` can carry none (it may be one), use memory."""
        (self._upper / "empty").mkdir()
        try:
            self._layer(self._upper / "empty", self._upper / "empty")
        except OSError:
            attach("tmpfs", str(folder), "tmpfs", options="mode=0700")
            self._upper = _held(folder)
            (self._upper / "empty").mkdir()
            self._layer(self._upper / "empty", self._upper / "empty")

    def whole(self, places: Mapping[str, bool]) -> list[str]:
        """Lay everything beside the current root, then make that the root; what could not be covered."""
        root = self._upper / "root"
        root.mkdir()
        for point, source in _sources(places).items():
            if not places[point] or not self._lay(point, source, f"{root}{point}"):
                attach(str(source), f"{root}{point}", flags=MS_BIND | (0 if places[point] else MS_REC))
        attach(str(self._real_base), f"{root}{self._base}", flags=MS_BIND)
        os.chdir(root)
        attach(".", "/", flags=MS_MOVE)
        os.chroot(".")
        return self._real

    def divided(self, places: Sequence[str]) -> list[str]:
        """Lay a layer over each place; which could not be covered."""
        for point, source in _sources(places).items():
            self._lay(point, source, point)
        attach(str(self._real_base), str(self._base), flags=MS_BIND)
        return self._real

    def _lay(self, point: str, source: Path, target: str) -> bool:
        """Lay a layer; what cannot be covered stays real, and is reported."""
        try:
            self._layer(source, target)
        except OSError as error:
            if point == "/":
                raise
            if os.access(source, os.W_OK):
                self._real.append(f"{point} ({error.strerror})")
            return False
        return True

    def _layer(self, source: Path, target: str | Path) -> None:
        self._count += 1
        place = self._upper / str(self._count)
        for path in (place, place / "upper", place / "work"):
            path.mkdir()
        options = f"lowerdir={source},upperdir={place}/upper,workdir={place}/work,{self._options}"
        attach("overlay", str(target), "overlay", options=options)


def _sources(places: Iterable[str]) -> dict[str, Path]:
    """What each place is before anything is laid; a folder may be gone by now, or a mount be under another one."""
    found: dict[str, Path] = {}
    for place in places:
        with suppress(OSError):
            found[place] = _held(place)
    return found


def _held(path: str | Path) -> Path:
    """The place that `path` is now, whatever will cover it later, by a name without colons and commas."""
    return Path(f"/proc/self/fd/{os.open(path, os.O_PATH)}")


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it; the kernel makes layer folders that not even their owner may read."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(place) / name
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


# System calls that Python 3.11 has no name for


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def unshare(flags: int) -> None:
    """Give this process its own namespaces."""
    _call("unshare", ctypes.c_int(flags))


def enter(descriptor: int) -> None:
    """Enter the namespace of an open file of /proc/PID/ns; only in a process with one thread."""
    _call("setns", ctypes.c_int(descriptor), ctypes.c_int(0))


def attach(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Attach a file system, or move one, as mount(2) does; empty words are null pointers."""
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def map_own_user(user: int, group: int) -> None:
    """Keep this user's and group's own numbers in a new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - one write, as the kernel demands
            file.write(text)


def is_initial_user_namespace() -> bool:
    """Whether root here is root of the machine: every user has its own number."""
    with open("/proc/self/uid_map") as file:  # noqa: PTH123
        return file.read().split() == ["0", "0", str(2**32 - 1)]


def drop_capabilities() -> None:
    """Drop the rights that the user does not have: entering a user namespace gave all that count inside it."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
