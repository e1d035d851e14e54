"""Names, dtypes and shapes of a safetensors file, from its header alone: no tensor is read, and no library is needed.

What the safetensors library would refuse is refused: tensors that overlap, leave holes, or have another size than their shape.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import OLDER
from lockstep.checkpoint.unique_json import loads
from lockstep.errors import UsageError
from lockstep.regular_file import open_regular

_LENGTH = struct.Struct("<Q")
MOST_HEADER_BYTES = 100_000_000
"""What the safetensors library accepts."""
MOST_ELEMENTS = 2**63
"""The numbers of a header may say anything; what is larger is no shape."""
_METADATA = "__metadata__"
WIDTHS = {
    **dict.fromkeys(("F64", "C64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"), 1),
}
"""Bytes of an element, by what safetensors calls the dtypes that torch has."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor as the header describes it."""

    name: str
    dtype: str
    """As safetensors calls it: F32, BF16, I64."""
    shape: tuple[int, ...]
    begin: int
    end: int
    """Where its bytes are, from the end of the header."""
    num_elements: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class TensorTable:
    """All tensors of a file, and how many bytes follow its header."""

    rows: tuple[TensorRow, ...]
    num_bytes: int

    @property
    def is_filled(self) -> bool:
        """Whether the file ends where its last tensor does."""
        return max((row.end for row in self.rows), default=0) == self.num_bytes

    def cut_off(self) -> list[str]:
        """Names of tensors that are not whole in the file, because it ends before they do."""
        return [row.name for row in self.rows if row.end > self.num_bytes]


def read_table(path: Path) -> TensorTable:
    """Read the header of a file that may be damaged.

    Raises:
        UsageError: when it cannot be read, or is not the header of a safetensors file.
    """
    try:
        with open_regular(path, follow=False) as file:
            length, text = _header(file)
            size = os.fstat(file.fileno()).st_size
        rows = tuple(_rows(loads(text)))
        _require_neighbours(rows)
        return TensorTable(rows, size - _LENGTH.size - length)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
        raise UsageError(f"{path} has no sound header of a safetensors file.", OLDER) from None


def _header(file: BufferedReader) -> tuple[int, bytes]:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if length > MOST_HEADER_BYTES:
        raise ValueError(length)
    text = file.read(length)
    if len(text) < length:
        raise ValueError(length)
    return length, text


def _rows(header: dict[str, Any]) -> Iterator[TensorRow]:
    for name, told in header.items():
        if name != _METADATA:
            begin, end = map(_whole, told["data_offsets"])
            dtype, shape = told["dtype"], tuple(map(_whole, told["shape"]))
            if end < begin or not isinstance(dtype, str):
                raise ValueError(name)
            row = TensorRow(name, dtype, shape, begin, end, _num_elements(shape))
            if dtype in WIDTHS and row.size_bytes != row.num_elements * WIDTHS[dtype]:
                raise ValueError(name)
            yield row


def _num_elements(shape: tuple[int, ...]) -> int:
    """The product; a long one is not computed."""
    elements = 1
    for size in shape:
        elements *= size
        if elements > MOST_ELEMENTS:
            raise ValueError(shape)
    return elements


def _require_neighbours(rows: tuple[TensorRow, ...]) -> None:
    end = 0
    for row in sorted(rows, key=lambda one: (one.begin, one.end)):
        if row.begin != end:
            raise ValueError(row.name)
        end = row.end


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError(number)
    return number
