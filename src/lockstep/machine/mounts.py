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


def whole_cover(mounts: Sequence[Mount]) -> dict[str, bool]:
    """The view where a layer may cover a place with other mounts in it: the places in the order in which they are laid, and
    whether each gets its own layer. Else it is the real one, put back over the layer around it.

    Invariant: each mount that is not below another one that stays is there exactly once, after those around it.
    """
    found: dict[str, bool] = {}
    for mount in sorted(mounts, key=lambda mount: mount.point):
        if not is_below(mount.point, [point for point, layered in found.items() if not layered]):
            found[mount.point] = not mount.stays
    return found


def divided_cover(mounts: Sequence[Mount], folders_in: Callable[[str], Sequence[str]]) -> tuple[list[str], list[str]]:
    """The view in a user namespace, where the kernel lays no layer over a place with other mounts in it.

    Args:
        mounts: all of them.
        folders_in: the names of the folders in a folder, without links.

    Returns:
        The folders without mounts, of which each gets its own layer; and those around them, in which new files are real.
    """
    places = {mount.point: mount for mount in mounts}
    layers: list[str] = []
    real: list[str] = []

    def divide(point: str, stays: bool) -> None:
        if not any(other != point and is_below(other, [point]) for other in places):
            layers.extend([] if stays else [point])
            return
        real.extend([] if stays else [point])
        for name in folders_in(point):
            if len(layers) >= MAX_LAYERS:
                real.append(point)
                return
            child = f"{point.rstrip('/')}/{name}"
            mount = places.get(child)
            if not is_below(child, REAL_TREES) and (mount is None or mount.kind not in KERNEL_TYPES):
                divide(child, stays if mount is None else mount.stays)

    divide("/", "/" in places and places["/"].stays)
    return layers, list(dict.fromkeys(real))
