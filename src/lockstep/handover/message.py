"""A message between two processes of a run: JSON, and bytes after it that JSON would only lengthen. Pure."""

from __future__ import annotations

import json
from typing import Any

_LENGTH_BYTES = 4


def packed(told: dict[str, Any], blob: bytes = b"") -> bytes:
    """The message as bytes."""
    text = json.dumps(told, separators=(",", ":")).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text + blob


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The inverse. Raises ValueError for anything else."""
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "big")
    if len(content) < _LENGTH_BYTES or end > len(content):
        raise ValueError("a message that is cut off")
    try:
        told = json.loads(content[_LENGTH_BYTES:end])
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(told, dict):
        raise ValueError("a message without a JSON object")  # noqa: TRY004 - of the other side
    return told, content[end:]
