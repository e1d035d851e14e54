"""Names, dtypes and shapes of a safetensors file, from its header alone: no tensor is read, and no library is needed."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import OLDER
from lockstep.errors import UsageError
from lockstep.regular_file import open_regular

_LENGTH = struct.Struct("<Q")
MOST_HEADER_BYTES = 100_000_000
"""What the safetensors library accepts."""
_METADATA = "__metadata__"


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

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class TensorTable:
    """All tensors of a file, and how many bytes follow its header."""

    rows: tuple[TensorRow, ...]
    num_bytes: int

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
        return TensorTable(tuple(_rows(json.loads(text))), size - _LENGTH.size - length)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, struct.error):
        raise UsageError(f"{path} has no header of a safetensors file.", OLDER) from None


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
            if end < begin or not isinstance(told["dtype"], str):
                raise ValueError(name)
            yield TensorRow(name, told["dtype"], tuple(map(_whole, told["shape"])), begin, end)


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise TypeError(number)
    return number
