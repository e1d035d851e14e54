"""Which parts of the file system a private view covers: a pure function of the mounts.

A layer covers everything that a script could write: the script reads what is there, and what it writes stays in the
layer. What belongs to the kernel stays real, and so does /dev with its shared memory, where ranks meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

REAL_TREES = ("/dev", "/proc", "/sys")
"""What is below them stays as it is."""
KERNEL_TYPES = frozenset(
    (
        *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs"),
        *("fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "selinuxfs"),
        *("sysfs", "tracefs"),
    )
)
MAX_LAYERS = 500
"""A folder whose parts would need more layers than this stays real."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    point: str
    kind: str
    writable: bool

    @property
    def stays(self) -> bool:
        """Whether it needs no layer: it is the kernel's own, or read-only."""
        return self.kind in KERNEL_TYPES or not self.writable or is_below(self.point, REAL_TREES)


def parse_mounts(text: str) -> list[Mount]:
    """Parse /proc/self/mountinfo; of several mounts at one place keep the last, which is the one that is visible."""
    found: dict[str, Mount] = {}
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        point, options = fields.split()[4:6]
        kind, _, more = rest.split(maxsplit=2)
        name = _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), point)
        writable = "rw" in options.split(",") and "ro" not in more.split(",")
        found.pop(name, None)
        found[name] = Mount(name, kind, writable)
    return sorted(found.values(), key=lambda mount: mount.point)


def is_below(point: str, trees: Iterable[str]) -> bool:
    """Whether `point` is one of `trees`, or in one of them."""
    return any(point == tree or point.startswith(f"{tree.rstrip('/')}/") for tree in trees)


@dataclass(frozen=True)
class Piece:
    """A place of the view, in the order in which it is laid."""

    point: str
    layered: bool
    """Whether it gets its own layer; otherwise it is the real one, put back over the layer around it."""


@dataclass(frozen=True)
class Cover:
    """The whole view."""

    pieces: tuple[Piece, ...]
    open_folders: tuple[str, ...] = ()
    """Folders without a layer, although what is below them has one: new files directly in them are real."""


def whole_cover(mounts: Sequence[Mount]) -> Cover:
    """The view where a layer may cover a place with other mounts in it: over everything, from the root on.

    Invariant: each mount that is not below another one that stays has exactly one piece, after those around it.
    """
    pieces: list[Piece] = []
    for mount in sorted(mounts, key=lambda mount: mount.point):
        if not is_below(mount.point, [piece.point for piece in pieces if not piece.layered]):
            pieces.append(Piece(mount.point, layered=not mount.stays))
    return Cover(tuple(pieces))


def divided_cover(
    mounts: Sequence[Mount], folders_in: Callable[[str], Sequence[str]], alone: Sequence[str] = ()
) -> Cover:
    """The view in a user namespace: each folder without mounts gets its own layer.

    There the kernel lays no layer over a place with other mounts in it.

    Args:
        mounts: all of them.
        folders_in: the names of the folders in a folder, without links.
        alone: folders inside a layer that get their own in any case: in a folder of another owner, files can be made
            only where a layer begins.

    Invariant: no mount is inside a piece, unless everything in it stays.
    """
    places = {mount.point: mount for mount in mounts}
    pieces: list[Piece] = []
    open_folders: list[str] = []

    def divide(point: str, stays: bool) -> None:
        below = [other for other in places if other != point and is_below(other, [point])]
        if not below:
            if not stays:
                pieces.append(Piece(point, layered=True))
            return
        if not stays:
            open_folders.append(point)
        for name in folders_in(point):
            if len(pieces) >= MAX_LAYERS:
                open_folders.append(point)
                return
            child = f"{point.rstrip('/')}/{name}"
            mount = places.get(child)
            if not is_below(child, REAL_TREES) and (mount is None or mount.kind not in KERNEL_TYPES):
                divide(child, stays if mount is None else mount.stays)

    divide("/", places["/"].stays if "/" in places else False)
    laid = [piece.point for piece in pieces]
    pieces += [Piece(point, layered=True) for point in alone if is_below(point, laid) and point not in laid]
    return Cover(tuple(pieces), tuple(dict.fromkeys(open_folders)))
