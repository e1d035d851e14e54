"""The weights of a state as one file for other programs: safetensors, or a `state_dict` written by `torch.save`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.regular_file import open_regular, other_kind
from samebits.protocol.state_files.flushed import sync
from samebits.protocol.state_files.folder import is_state
from samebits.protocol.state_files.manifest import CHANGED, MODEL_FILE, OTHER_TENSORS, Manifest
from samebits.protocol.state_files.whole_state import UNLIKE, documents_of, whole_state
from samebits.rank.checkpoint.format.tensor_file import TensorFile, header, order_of
from samebits.rank.position.exact_json import decode

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin")


def export(state: Path, target: Path, model: str | None, *, force: bool) -> dict[str, Any]:
    """Write the weights of one model. Atomic: after a crash there is what was there before, or the whole new file.

    Only the files that are needed are checked by their SHA-256.

    Args:
        state: the state's folder.
        target: the new file; its suffix says which format.
        model: `model2`, where the state has several.
        force: whether a file that is there is replaced.

    Returns:
        The `file` and its `size_bytes`, which `model`, how many `tensors`, and what is in its `state_dict` that safetensors
        cannot hold (`left_out`).

    Raises:
        UsageError: when the state is damaged or has no such model, or `target` cannot be the file.
        EnvironmentFailure: when it cannot be written.
    """
    check_target(target, force=force)
    place, manifest = whole_state(state, lambda manifest: [_file_of(state, manifest, model), OTHER_TENSORS])
    name = _file_of(state, manifest, model)
    label, tensors, is_plain = name.removesuffix(SAFETENSORS), TensorFile(place / name), target.suffix == SAFETENSORS
    others = _others(place, manifest, label)
    try:
        with _new_file(target, force=force) as file:
            if not is_plain:
                torch.save({**_cloned(tensors), **others}, file)
            elif tensors.tied:
                _write_each_name(tensors, file)
            else:
                with open_regular(place / name, follow=False) as source:
                    shutil.copyfileobj(source, file, 1 << 20)
    except OSError as error:
        raise EnvironmentFailure(f"{target} could not be written: {error.strerror or error}.") from None
    record = {"file": str(target), "model": label, "tensors": len(tensors.described)}
    return {**record, "size_bytes": target.stat().st_size, "left_out": list(others) if is_plain else []}


def _cloned(tensors: TensorFile) -> dict[str, Tensor]:
    """All tensors by name; what was tied is one tensor."""
    cloned = {name: tensors.get(name).clone() for name in tensors.described if name not in tensors.tied}
    return {name: cloned[tensors.tied.get(name, name)] for name in tensors.described}


def _write_each_name(tensors: TensorFile, file: BinaryIO) -> None:
    """Tied weights under each of their names, so that a strict `load_state_dict` works anywhere."""
    file.write(header(tensors.described))
    file.writelines(
        tensors.get(name).reshape(-1).view(torch.uint8).numpy().data for name in order_of(tensors.described)
    )


def check_target(target: Path, *, force: bool) -> None:
    """Raise `UsageError` for what cannot become the file."""
    if target.suffix not in (SAFETENSORS, *PICKLED):
        endings = ", ".join((SAFETENSORS, *PICKLED))
        raise UsageError(f"{target} has an ending that is not supported.", f"Let it end in one of {endings}.")
    try:
        if target.is_symlink() or (kind := other_kind(target)):
            raise UsageError(f"{target} is {'a link' if target.is_symlink() else kind}.", "Name a file.")
        if is_state(target.parent):
            problem = f"{target} would be inside a state, which samebits would take for damaged."
            raise UsageError(problem, "Write it somewhere else.")
        if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
            raise UsageError(f"{target} cannot be written.", "Choose a file in a folder that exists and is writable.")
        if target.exists() and not force:
            raise _exists(target)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error.strerror}).", "Choose another file.") from None


def _exists(target: Path) -> UsageError:
    return UsageError(f"{target} already exists.", "Choose another file, or add --force to replace it.")


def _file_of(state: Path, manifest: Manifest, model: str | None) -> str:
    labels = sorted(name.removesuffix(SAFETENSORS) for name in manifest.files if MODEL_FILE.fullmatch(name))
    if not labels:
        raise UsageError(f"{state} has no model.", "Choose another state.")
    if model is None and len(labels) > 1:
        raise UsageError(f"{state} holds {len(labels)} models.", f"Add --model {' or --model '.join(labels)}.")
    if model is not None and model not in labels:
        raise UsageError(f"{state} has no model called {model!r}.", f"Choose one of: {', '.join(labels)}.")
    return f"{model or labels[0]}{SAFETENSORS}"


def _others(place: Path, manifest: Manifest, label: str) -> dict[str, Any]:
    """What is in the model's `state_dict` besides tensors (`get_extra_state`)."""
    documents, _ = documents_of(place, manifest)
    try:
        encoded = dict(documents[label])
    except UNLIKE:
        raise UsageError(f"{place} is not what samebits writes.", CHANGED) from None
    others: dict[str, Any] = decode(encoded, lambda name: TensorFile(place / OTHER_TENSORS).get(name).clone())
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
        if not force and target.exists():
            raise _exists(target)
        temporary.replace(target)
        sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
