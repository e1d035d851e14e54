"""Which Pythons this machine has: on the PATH, and where pyenv and uv keep theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shipping.refusal import Refusal

OLDEST = (3, 11)

_QUESTION = """
import json, os, sys, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
usable = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps([list(sys.version_info[:2]), headers, usable]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A CPython that runs here."""

    path: Path
    version: tuple[int, int]
    has_headers: bool
    """Whether something can be compiled for it."""

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def interpreters(named: Sequence[str] = ()) -> list[Interpreter]:
    """One per version, in order: those named, or else all that are found; of two with one version, one with headers.

    Raises:
        Refusal: one that is named does not run.
    """
    best: dict[tuple[int, int], Interpreter] = {}
    for path in [Path(name) for name in named] or _candidates():
        found = _asked(path)
        if found is None:
            if named:
                raise Refusal(
                    f"{path} is no CPython {_dotted(OLDEST)} or newer that runs here: name another in PYTHONS."
                )
            continue
        known = best.get(found.version)
        if known is None or (found.has_headers and not known.has_headers):
            best[found.version] = found
    return [best[version] for version in sorted(best)]


def _candidates() -> Iterator[Path]:
    home = Path.home()
    kept = [Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions", home / ".local/share/uv/python"]
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += [folder for place in kept for folder in sorted(place.glob("*/bin"))]
    for folder in folders:
        if folder.is_dir():
            yield from sorted(path for path in folder.iterdir() if re.fullmatch(r"python3\.\d+", path.name))


def _asked(path: Path) -> Interpreter | None:
    try:
        done = subprocess.run(
            [path, "-I", "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        (major, minor), has_headers, usable = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    version = (major, minor)
    return Interpreter(path, version, has_headers) if usable and version >= OLDEST else None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
