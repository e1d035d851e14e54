"""How pip builds samebits: scikit-build-core, with an editable install of our own.

scikit-build-core's editable install puts an import hook into every Python process. The hook costs start time, and it
finds this checkout even where PYTHONPATH names another. Ours is a line in a `.pth` file: the folder `src/`, with the
compiled module beside the Python files.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
import zipfile
from pathlib import Path

from scikit_build_core.build import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

Settings = dict[str, list[str] | str]

_SOURCE = Path(__file__).resolve().parents[1] / "src"
_COMPILED = ("samebits/_native", "samebits/_portable")


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    """Build a whole wheel, keep its compiled module in `src/`, and hand pip its metadata and a path. Returns its name.

    Where nothing could be compiled, a module of an earlier build is removed: it might not belong to these sources.
    """
    del metadata_directory  # made anew, from the wheel
    for stem in _COMPILED:
        for stale in _SOURCE.glob(f"{stem}*.so"):
            stale.unlink()
    with tempfile.TemporaryDirectory() as folder:
        name = build_wheel(folder, config_settings)
        with zipfile.ZipFile(Path(folder, name)) as wheel:
            members = wheel.namelist()
            for member in members:
                if member.startswith(_COMPILED) and member.endswith(".so"):
                    wheel.extract(member, _SOURCE)
            kept = [member for member in members if ".dist-info/" in member and not member.endswith("/RECORD")]
            files = {member: wheel.read(member) for member in kept}
    files["_samebits.pth"] = f"{_SOURCE}\n".encode()
    record = next(member for member in members if member.endswith(".dist-info/RECORD"))
    files[record] = _record(files, record)
    with zipfile.ZipFile(Path(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in files.items():
            wheel.writestr(member, content)
    return name


def _record(files: dict[str, bytes], own_name: str) -> bytes:
    """Write a wheel's table of contents: name, hash, size of each file, and a bare line for the table itself."""
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    return "\n".join([*lines, f"{own_name},,", ""]).encode()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
