"""The files that a nursery has loaded, and whether any has changed since."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

Stamp = tuple[int, int, int, int, int] | None
"""Size, inode, device, and the times of the last changes of content and of the entry; None: there is no such file."""
ALWAYS = ("/etc/localtime", "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ld.so.conf")


def stamp(path: str) -> Stamp:
    """What changes when the file does."""
    try:
        found = os.stat(path)  # noqa: PTH116 - for thousands of files
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_ino, found.st_dev, found.st_mtime_ns, found.st_ctime_ns


def stamps_of(paths: Iterable[str]) -> dict[str, Stamp]:
    """By path."""
    return {path: stamp(path) for path in paths}


def first_changed(stamps: Mapping[str, Stamp]) -> str:
    """The first file that is no longer as it was; empty: all are."""
    return next((path for path, before in stamps.items() if stamp(path) != before), "")


def loaded_files() -> set[str]:
    """Every file that this process has loaded, and every folder from which it would import.

    That is modules, libraries, the interpreter, what names folders for imports, and the folders on `sys.path` themselves:
    their stamp changes when a package is installed, updated or removed.
    """
    modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = {file for file in modules if isinstance(file, str)}
    found |= {sys.executable, str(Path(sys.prefix) / "pyvenv.cfg"), *ALWAYS, *sys.path}
    for folder in sys.path:
        with suppress(OSError):
            found |= {str(Path(folder) / name) for name in os.listdir(folder) if name.endswith(".pth")}  # noqa: PTH208
    return found | _mapped()


def _mapped() -> set[str]:
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    found = {line.split(maxsplit=5)[5] for line in lines if line.count(" /")}
    return {
        path for path in found if path.startswith("/") and not path.startswith(("/dev/", "/memfd:", "/proc/", "/SYSV"))
    }


def changed_since(stamps: Mapping[str, Stamp], began_ns: int) -> str:
    """The first file whose content was changed after a moment (`time.time_ns`); empty: none."""
    return next(
        (
            path
            for path, found in stamps.items()
            if found is not None and _newest(found) > began_ns and not Path(path).is_dir()
        ),
        "",
    )


def _newest(found: tuple[int, int, int, int, int]) -> int:
    return found[3]
