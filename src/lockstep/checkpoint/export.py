"""The weights of a state as one file for other programs: safetensors, or a `state_dict` written by `torch.save`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lockstep.checkpoint.exact_json import decode
from lockstep.checkpoint.flushed import sync
from lockstep.checkpoint.folder import is_state
from lockstep.checkpoint.manifest import DOCUMENTS, MODEL_FILE, OTHER_TENSORS, Manifest
from lockstep.checkpoint.tensor_file import TensorFile
from lockstep.checkpoint.unique_json import loads
from lockstep.checkpoint.whole_state import whole_state
from lockstep.errors import UsageError, WorldError
from lockstep.regular_file import open_regular, other_kind, read_regular

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin")


@dataclass(frozen=True)
class Exported:
    """What was written."""

    file: str
    model: str
    """Which of the state's models."""
    tensors: int
    size_bytes: int
    left_out: tuple[str, ...]
    """Names of the `state_dict` that are no tensors, which safetensors cannot hold."""

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def export(state: Path, target: Path, model: str | None, *, force: bool) -> Exported:
    """Write the weights of one model. Atomic: after a crash there is what was there before, or the whole new file.

    Only the files that are needed are checked by their SHA-256.

    Args:
        state: the state's folder.
        target: the new file; its suffix says which format.
        model: `model2`, where the state has several.
        force: whether a file that is there is replaced.

    Raises:
        UsageError: when the state is damaged or has no such model, or `target` cannot be the file.
        WorldError: when it cannot be written.
    """
    check_target(target, force=force)

    def needed(manifest: Manifest) -> list[str]:
        return [_file_of(state, manifest, model), DOCUMENTS, OTHER_TENSORS]

    place, manifest = whole_state(state, needed)
    name = _file_of(state, manifest, model)
    label = name.removesuffix(SAFETENSORS)
    tensors = TensorFile(place / name)
    others = _others(place, label)
    try:
        with _new_file(target, force=force) as file:
            if target.suffix == SAFETENSORS:
                with open_regular(place / name, follow=False) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                values: dict[str, Any] = {one: tensors.get(one).clone() for one in tensors.described}
                torch.save({**values, **others}, file)
    except OSError as error:
        raise WorldError(f"{target} could not be written: {error.strerror or error}.") from None
    left_out = tuple(others) if target.suffix == SAFETENSORS else ()
    return Exported(str(target), label, len(tensors.described), target.stat().st_size, left_out)


def check_target(target: Path, *, force: bool) -> None:
    """Raise `UsageError` for what cannot become the file."""
    if target.suffix not in (SAFETENSORS, *PICKLED):
        raise UsageError(
            f"{target} has an ending that is not supported.", f"Let it end in {SAFETENSORS} or {', '.join(PICKLED)}."
        )
    try:
        if target.is_symlink():
            raise UsageError(f"{target} is a link.", "Name the file that it points to, or another one.")
        if kind := other_kind(target):
            raise UsageError(f"{target} is {kind}.", "Name a file.")
        if is_state(target.parent):
            raise UsageError(
                f"{target} would be inside a state, which lockstep would take for damaged.", "Write it somewhere else."
            )
        if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
            raise UsageError(f"{target} cannot be written.", "Choose a file in a folder that exists and is writable.")
        if target.exists() and not force:
            raise _exists(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror}).", "Choose another file.") from None


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} already exists.", "Choose another file, or add --force to replace it.")


def _file_of(state: Path, manifest: Manifest, model: str | None) -> str:
    files = sorted(name for name in manifest.files if MODEL_FILE.fullmatch(name))
    labels = [name.removesuffix(SAFETENSORS) for name in files]
    if not files:
        raise UsageError(f"{state} has no model.", "Choose another state.")
    if model is None and len(files) > 1:
        raise UsageError(f"{state} holds {len(files)} models.", f"Add --model {' or --model '.join(labels)}.")
    if model is None:
        return files[0]
    if model not in labels:
        raise UsageError(f"{state} has no model called {model!r}.", f"Choose one of: {', '.join(labels)}.")
    return files[labels.index(model)]


def _others(place: Path, label: str) -> dict[str, Any]:
    """What is in the model's `state_dict` besides tensors (`get_extra_state`)."""

    def take(name: str) -> Tensor:
        return TensorFile(place / OTHER_TENSORS).get(name).clone()

    try:
        encoded = dict(loads(read_regular(place / DOCUMENTS, follow=False))["documents"][label])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise UsageError(f"{place / DOCUMENTS} is not what lockstep writes.", "Use another state.") from None
    others: dict[str, Any] = decode(encoded, take)
    return others


@contextlib.contextmanager
def _new_file(target: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that becomes `target` at the end of the block, or leaves nothing."""
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not force:
            try:
                os.link(temporary, target)  # fails where a file is by now
            except FileExistsError:
                raise _exists(target) from None
            except OSError:  # a file system without links
                temporary.replace(target)
        else:
            temporary.replace(target)
        sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
