"""The manifest of a state folder: which files it holds, how large they are, their SHA-256, their tensors' names.

It is written last, so a folder without one is not complete. It carries a checksum of itself. Format version 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.machine.regular_file import open_regular


def loads(text: str | bytes) -> Any:
    """Decode `text`.

    Raises:
        ValueError: when it is no JSON, or an object has a key twice.
        RecursionError: when it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


NAME = "manifest.json"
FORMAT = "samebits-state"
VERSION = 2
"""1 for a state between epochs, 2 for one inside an epoch, which older versions would take for the other."""
GRADIENTS = "gradients.safetensors"
"""In every state from inside an epoch, and no other."""
DOCUMENTS = "state.json"
OTHER_TENSORS = "state.safetensors"
NOT_FINITE = "not_finite"
"""The fact that names the first tensor of a state that is not finite (`finite`); missing where all are, and in old states."""
MODEL_FILE = re.compile(r"model\d*\.safetensors")
"""What the files of models are called."""
OLDER = "Use an older state."
UNHASHED = "in memory"
"""In place of a SHA-256, of a file that its writer's own machine keeps in memory: 0.5 GB/s would hold up a restart."""
CHANGED = "Use a state that has not been changed since run.save_state wrote it."
MOST_BYTES = 1 << 28
"""A manifest of a million tensors takes a third of that."""
_CHECKSUM = "sha256_of_the_rest"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class NewerState(UsageError):  # noqa: N818 - what it is, as people say it
    """A state of a format that a later samebits writes; it may be whole."""


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

    @property
    def not_finite(self) -> str:
        """A tensor that is not finite; empty where all are that should be."""
        name = self.facts.get(NOT_FINITE, "")
        return name if isinstance(name, str) else ""

    def encode(self) -> bytes:
        """The text of manifest.json."""
        files = {
            name: {"size": f.size, "sha256": f.sha256, "tensors": list(f.tensors)} for name, f in self.files.items()
        }
        body = {"format": FORMAT, "version": VERSION if GRADIENTS in self.files else 1, **self.facts, "files": files}
        return json.dumps({**body, _CHECKSUM: _checksum(body)}, indent=1).encode()

    @classmethod
    def decode(cls, text: bytes, folder: Path) -> Manifest:
        """The inverse of `encode`.

        Raises:
            UsageError: when the text is damaged or of another format.
            NewerState: when it is of a newer version.
        """
        damaged = UsageError(f"{folder / NAME} is damaged; the state in this folder cannot be trusted.", OLDER)
        try:
            body = loads(text)
            checksum = body.pop(_CHECKSUM)
            if body.pop("format") != FORMAT or checksum != _checksum({"format": FORMAT, **body}):
                raise damaged
            version = _whole(body.pop("version"))
            if version > VERSION:
                raise NewerState(
                    f"{folder} was written by a newer samebits ({body.get('samebits')}, format {version}; this one "
                    f"reads format {VERSION}).",
                    "Install that version.",
                )
            files = {name: _saved_file(one) for name, one in body.pop("files").items()}
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raise damaged from None
        if strange := [name for name in files if not _PLAIN_NAME.fullmatch(name)]:
            raise UsageError(
                f"{folder / NAME} names the file {strange[0]!r}, which samebits does not write.",
                CHANGED,
            )
        return cls(files, body)


def is_manifest(text: bytes) -> bool:
    """Whether this is one of ours, perhaps damaged, and not another program's file of the same name."""
    return FORMAT.encode() in text or _CHECKSUM.encode() in text


def _saved_file(record: Any) -> SavedFile:
    sha256, tensors = record["sha256"], record["tensors"]
    if not isinstance(sha256, str) or not isinstance(tensors, list) or not all(type(name) is str for name in tensors):
        raise TypeError("another type")
    return SavedFile(_whole(record["size"]), sha256, tuple(tensors))


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError("another type")
    return number


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def damage(folder: Path, manifest: Manifest) -> UsageError | None:
    """The first file that is missing, or of a different size or content; None if there is none."""
    return next(filter(None, (damage_of(folder / name, file) for name, file in manifest.files.items())), None)


def damage_of(path: Path, expected: SavedFile, *, reads: bool = True) -> UsageError | None:
    """The same for one file; reads every byte of it, or else, and where there is no SHA-256, looks at its size alone."""
    try:
        with open_regular(path, follow=False) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                return UsageError(f"{path} is damaged: it has {size} bytes instead of {expected.size}.", OLDER)
            if (
                reads
                and expected.sha256 != UNHASHED
                and hashlib.file_digest(file, "sha256").hexdigest() != expected.sha256
            ):
                return UsageError(f"{path} is damaged: its content is not what was written (SHA-256).", OLDER)
    except OSError as error:
        return UsageError(f"{path} cannot be read ({error.strerror}).", OLDER)
    return None


def problem_of(error: SamebitsError) -> str:
    """What is wrong, without the fix."""
    return error.problem if isinstance(error, UsageError) else str(error)
