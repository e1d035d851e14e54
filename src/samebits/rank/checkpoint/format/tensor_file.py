"""One safetensors file: written tensor by tensor with its SHA-256 on the way, read lazily once its header is checked.

Writing one tensor at a time keeps the extra memory at one tensor, wherever the tensors come from. Reading is left to
the safetensors library: it checks that the header fits the file before anything is allocated.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.state_files.manifest import UNHASHED
from samebits.rank.checkpoint.format.finite import is_finite

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_ALIGNMENT = 8
METADATA, FORMAT = "__metadata__", "format"


@dataclass(frozen=True)
class Described:
    """A tensor without its values."""

    code: str
    """The dtype as safetensors calls it."""
    shape: tuple[int, ...]
    also: tuple[str, ...] = field(default=(), compare=False)
    """Its other names, where weights are tied: metadata of the file, as safetensors' own `save_model` writes it."""

    @classmethod
    def of(cls, tensor: Tensor, name: str) -> Described:
        """Describe a tensor. Raises `UsageError`, with `name`, for what safetensors cannot hold."""
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype not in CODES:
            what = "quantised" if tensor.is_quantized else f"{tensor.layout}, {tensor.dtype}".replace("torch.", "")
            raise UsageError(f"{name} is a tensor that safetensors cannot hold ({what}).", "Save a dense one.")
        if name == METADATA or name.encode(errors="ignore").decode() != name:
            raise UsageError(f"{name!a} cannot be the name of a tensor in a safetensors file.", "Choose another one.")
        return cls(CODES[tensor.dtype], tuple(tensor.shape))

    @property
    def dtype(self) -> torch.dtype:
        return _DTYPES[self.code]

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def order_of(described: Mapping[str, Described]) -> list[str]:
    """The order of the tensors in a file: wide dtypes first, so that each starts at a multiple of its width."""
    return sorted(described, key=lambda name: (-described[name].dtype.itemsize, name))


def header(described: Mapping[str, Described]) -> bytes:
    """How a file begins; the tensors follow in `order_of` it, each right behind the other."""
    tied = {other: name for name in order_of(described) for other in described[name].also if other not in described}
    record: dict[str, Any] = {METADATA: {**tied, FORMAT: "pt"}}
    end = 0
    for name in order_of(described):
        one = described[name]
        start, end = end, end + one.size_bytes
        record[name] = {"dtype": one.code, "shape": list(one.shape), "data_offsets": [start, end]}
    text = json.dumps(record, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


class TensorFileWriter:
    """A file being written, which must not exist yet. `write` all of `described` in `order_of` it, then `finish`.

    May raise OSError anywhere.
    """

    def __init__(
        self, path: Path, described: Mapping[str, Described], judged: Container[str] = (), *, hashes: bool = True
    ) -> None:
        self._described, self._judged, self._not_finite = described, judged, ""
        self._left = order_of(described)
        self._digest = hashlib.sha256() if hashes else None
        self._size = 0
        self._file = path.open("xb")
        self._write(header(described))

    def write(self, tensor: Tensor) -> None:
        """Write the next tensor; on any device, with any strides."""
        expected = self._described[name := self._left.pop(0)]
        if Described.of(tensor, name) != expected:
            raise UsageError(
                f"{name} changed its shape or dtype while it was saved.",
                "Let nothing write to it until run.save_state or run.save_weights has returned.",
            )
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            data = flat.view(torch.uint8).numpy().data
            self._write(data)
            if not self._not_finite and name in self._judged and not is_finite(expected.code, data):
                self._not_finite = name

    def finish(self) -> dict[str, Any]:
        """Flush to the disk; the file's `size` in bytes, its `sha256`, and the first tensor that is `not_finite` or ""."""
        assert not self._left
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sha256 = UNHASHED if self._digest is None else self._digest.hexdigest()
        return {"size": self._size, "sha256": sha256, "not_finite": self._not_finite}

    def close(self) -> None:
        """Give up; does nothing after `finish`."""
        self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        if self._digest is not None:
            self._digest.update(data)
        self._size += len(data)


class TensorFile:
    """An existing file. The tensors are views of the mapped file: copy them, do not write to them.

    A tensor of several names is there under each.

    Raises:
        UsageError: when it is not a complete safetensors file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._file: Any = safe_open(path, framework="pt", device="cpu").__enter__()  # type: ignore[no-untyped-call]
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118 - not a mapping
            self.described = {name: Described(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
            record = (self._file.metadata() or {}).items()
            self.tied = {name: at for name, at in record if at in slices and name not in slices and name != FORMAT}
            """By a further name of a tensor the one under which it lies."""
            self.described |= {name: self.described[at] for name, at in self.tied.items()}
        except (SafetensorError, OSError, ValueError) as error:
            raise UsageError(
                f"{os.fspath(path)} is not a readable safetensors file ({error}).",
                "Copy it again, or name another file.",
            ) from None
        unknown = {one.code for one in self.described.values()} - set(_DTYPES)
        if unknown:
            raise UsageError(
                f"{os.fspath(path)} holds tensors of types that torch does not have: {sorted(unknown)}.",
                "Convert them with the library that wrote the file.",
            )

    def get(self, name: str) -> Tensor:
        """The tensor of that name, on the CPU. Raises KeyError."""
        if name not in self.described:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(self.tied.get(name, name))
        return tensor
