"""A weight file that somebody made, of whatever format: what it is, by its content, and its tensors if that is safe.

safetensors and `torch.save` (new and old) are read; a pickle only by torch's `weights_only` reader, which builds tensors
and plain containers and calls nothing else. The archive's own sizes are checked first, so that no more is allocated
than the file has bytes. Everything else is named with the nearest thing that works.
"""

from __future__ import annotations

import os
import pickle
import re
import stat
import warnings
import zipfile
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from samebits.errors import UsageError
from samebits.protocol.state_files.own_folder import of_torch
from samebits.rank.checkpoint.format.tensor_file import TensorFile

HEAD_BYTES = 512


class Kind(Enum):
    """What a file is, and what to do when it cannot be read."""

    SAFETENSORS = "a safetensors file", ""
    ZIP = "a zip archive", ""
    PICKLE = "a pickle", ""
    EMPTY = "empty", "Copy it again."
    HTML = (
        "a web page, not a weight file: the download returned an error or a login page",
        "Download it again.",
    )
    LFS = "the pointer of a Git LFS file, not the file itself", "Fetch it with `git lfs pull`."
    GZIP = "compressed with gzip", "Unpack it first: gunzip, or tar -xzf."
    TAR = "a tar archive", "Unpack it with tar -xf and load the file inside."
    HDF5 = "an HDF5 (Keras) file", "Convert its weights to safetensors first."
    GGUF = "a GGUF file (llama.cpp)", "Load the safetensors that it was made from."
    NUMPY = "a NumPy file", "Convert it: save_file({name: torch.from_numpy(array)}, path) of safetensors.torch."
    JSON = "a JSON file; for a sharded model it lists the files", "Load the weight files that it names."
    UNKNOWN = "not a weight file that samebits knows", "Use a file written by safetensors or torch.save."


_MAGIC = (
    (rb"PK(\x03\x04|\x05\x06)", Kind.ZIP),
    (rb"\x1f\x8b", Kind.GZIP),
    (rb"\x89HDF", Kind.HDF5),
    (rb"GGUF", Kind.GGUF),
    (rb"\x93NUMPY", Kind.NUMPY),
    (rb"version https://git-lfs", Kind.LFS),
    (rb"(?s).{8}\{", Kind.SAFETENSORS),
    (rb"(?s).{257}ustar", Kind.TAR),
    (rb"\x80[\x02-\x05]", Kind.PICKLE),
    (rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype|html|\?xml|head|error)", Kind.HTML),
    (rb"(\xef\xbb\xbf)?\s*[{\[]", Kind.JSON),
    (rb"\Z", Kind.EMPTY),
)
"""The first that matches decides the kind."""


def kind_of(head: bytes) -> Kind:
    """The kind of a file that begins with `head` (its first `HEAD_BYTES` bytes, or all)."""
    return next((kind for magic, kind in _MAGIC if re.match(magic, head)), Kind.UNKNOWN)


def read_weight_file(path: Path) -> Any:
    """Read the file, tensors on the CPU: for safetensors a mapping by name, else what was given to `torch.save`.

    Raises:
        UsageError: when it is missing, damaged, not known, or would run code.
    """
    match kind_of(_head_of(path)):
        case Kind.SAFETENSORS:
            file_ = TensorFile(path)
            return {name: file_.get(name) for name in file_.described}
        case Kind.ZIP:
            _check_archive(path)
            return _read_pickle(path, mmap=True)
        case Kind.PICKLE:
            return _read_pickle(path, mmap=False)
        case Kind.UNKNOWN if path.suffix == ".safetensors":
            raise UsageError(
                f"{path} is not a readable safetensors file.",
                "Copy it again: it is corrupt, or not a safetensors file at all.",
            )
        case kind:
            what, fix = kind.value
            raise UsageError(f"{path} is {what}.", fix)


def _head_of(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise of_torch(path, str(path)) or UsageError(f"{path} is a folder.", "Name the weight file inside it.")
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} is not a regular file.", "Copy its contents into one first.")
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error}).", "Check its permissions.") from None


def _check_archive(path: Path) -> None:
    """Refuse what torch.save did not write: it stores records uncompressed, so they are never larger than the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise UsageError(f"{path} is damaged or incomplete ({error}).", "Copy it again.") from None
    names = [record.filename.partition("/")[2] for record in records]
    if "data.pkl" not in names:
        raise UsageError(
            f"{path} is a zip archive that torch.save did not write.", "Unpack it and load the file inside."
        )
    if "constants.pkl" in names:
        raise UsageError(
            f"{path} is a TorchScript program, which runs code.",
            "Where you trust it, save its weights: torch.save(torch.jit.load(path).state_dict(), other).",
        )
    too_large = sum(record.file_size for record in records) > path.stat().st_size
    if too_large or any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise UsageError(
            f"{path} is a compressed archive, which torch.save does not write and which may unpack to any size. "
            "Nothing was read.",
            "Where you trust it, unpack it and zip it again with `zip -0`.",
        )


def _read_pickle(path: Path, *, mmap: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise _refused(path, str(error)) from None
    except MemoryError:
        raise UsageError(f"{path} is damaged: it asks for more memory than there is.", "Copy it again.") from None
    except Exception as error:  # noqa: BLE001 - what a damaged file raises inside torch has many types
        said = str(error).strip().partition("\n")[0][:120]
        raise UsageError(f"{path} is damaged or incomplete ({said}).", "Copy it again.") from None


def _refused(path: Path, said: str) -> UsageError:
    """The error for a pickle that holds more than tensors in plain containers."""
    found = re.search(r"GLOBAL ([\w.]+)", said)
    if found is None:
        problem = f"{path} is a pickle that torch.save did not write, or a damaged one."
        return UsageError(problem, "Save its tensors with safetensors.")
    return UsageError(
        f"{path} holds more than tensors (`{found.group(1)}`): reading that could run code of the file's author, so "
        "nothing was read.",
        "Where you trust it, take the tensors out once: torch.load(path, weights_only=False), then "
        "safetensors.torch.save_file(state_dict, other).",
    )
