"""The manifest of a state folder: which files it holds, how large they are, their SHA-256, their tensors' names.

It is written last, so a folder without one is not complete. It carries a checksum of itself. Format version 1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError

NAME = "manifest.json"
FORMAT = "lockstep-state"
VERSION = 1
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


@dataclass(frozen=True)
class SavedFile:
    """One file of the folder."""

    size: int
    """In bytes."""
    sha256: str
    tensors: tuple[str, ...] = ()
    """Names of the tensors in it."""

    @classmethod
    def of(cls, text: bytes) -> SavedFile:
        """A file with that content."""
        return cls(len(text), hashlib.sha256(text).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What a state folder holds."""

    files: Mapping[str, SavedFile]
    facts: Mapping[str, Any]
    """Plain JSON about the run: step, lanes, threads, seed, versions."""

    def encode(self) -> bytes:
        """The text of manifest.json."""
        files = {
            name: {"size": f.size, "sha256": f.sha256, "tensors": list(f.tensors)} for name, f in self.files.items()
        }
        body = {"format": FORMAT, "version": VERSION, **self.facts, "files": files}
        return json.dumps({**body, "sha256_of_the_rest": _checksum(body)}, indent=1).encode()

    @classmethod
    def decode(cls, text: bytes, folder: Path) -> Manifest:
        """The inverse of `encode`.

        Raises:
            UsageError: when the text is damaged, of another format, or of a newer version.
        """
        damaged = f"{folder / NAME} is damaged; the state in this folder cannot be trusted. Use an older one."
        try:
            body = json.loads(text)
            checksum = body.pop("sha256_of_the_rest")
            if body.pop("format") != FORMAT or checksum != _checksum({"format": FORMAT, **body}):
                raise UsageError(damaged)
            version = body.pop("version")
            if version > VERSION:
                raise UsageError(
                    f"{folder} was written by a newer lockstep ({body.get('lockstep')}, format {version}; this one reads "
                    f"format {VERSION}). Install that version."
                )
            files = {
                name: SavedFile(int(one["size"]), str(one["sha256"]), tuple(map(str, one["tensors"])))
                for name, one in body.pop("files").items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UsageError(damaged) from None
        if strange := [name for name in files if not _PLAIN_NAME.fullmatch(name)]:
            raise UsageError(f"{folder / NAME} names the file {strange[0]!r}, which lockstep does not write.")
        return cls(files, body)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def damage(folder: Path, manifest: Manifest) -> str:
    """A sentence that names the first file that is missing, of another size or of other content; empty when none is."""
    for name, expected in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != expected.size:
                return f"{path} is damaged: it has {size} bytes instead of {expected.size}. Use an older state."
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256:
                    return f"{path} is damaged: its content is not what was written (SHA-256). Use an older state."
        except OSError as error:
            return f"{path} cannot be read ({error.strerror}). Use an older state."
    return ""
