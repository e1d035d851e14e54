"""A message between two processes of a run: JSON, and bytes after it that JSON would only lengthen. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_LENGTH_BYTES = 4


def packed(record: dict[str, Any], blob: bytes = b"") -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text + blob


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The inverse. Raises ValueError for anything else."""
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    if len(content) < _LENGTH_BYTES or end > len(content):
        raise ValueError("a message that is cut off")
    try:
        record = json.loads(content[_LENGTH_BYTES:end])
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("a message without a JSON object")  # noqa: TRY004 - of the other side
    return record, content[end:]


def framed(content: bytes) -> bytes:
    """A content in a stream between two processes of one machine, which need no tag."""
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content


class Unframing:
    """The inverse, in pieces of any size.

    Args:
        most_bytes: of one content; None: any.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most_bytes = most_bytes
        self._came = bytearray()

    def open(self, data: bytes) -> Iterator[bytes]:
        """The contents that are whole now. Raises ValueError for one that is longer than allowed, before it has come."""
        self._came += data
        at = 0
        while (start := at + _LENGTH_BYTES) <= len(self._came):
            size = int.from_bytes(self._came[at:start], "big")
            if self._most_bytes is not None and size > self._most_bytes:
                raise ValueError(f"a frame of {size} bytes, and {self._most_bytes} are the most")
            end = start + size
            if end > len(self._came):
                break
            at = end
            yield bytes(self._came[start:end])
        del self._came[:at]
