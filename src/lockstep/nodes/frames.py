"""Frames between two launchers: a length, a content, and a tag under a key of this connection and direction. Pure.

The tag covers the frame's running number, which both sides count, so a frame that was changed, repeated, left out, or sent
back to its sender has no tag that fits. A length says what is to come; memory grows with what has come.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

LENGTH_BYTES, TAG_BYTES = 4, 16
MOST_BYTES = 16 << 20
"""Of a frame's content: twice what torch's store takes as one value."""


class BrokenFrame(ValueError):  # noqa: N818 - a state of the connection
    """What came is no next frame of the other side."""


class Sealer:
    """Makes the frames of one direction.

    Args:
        key: of this connection and direction.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, content: bytes) -> bytes:
        """The next frame. Raises ValueError for more than `MOST_BYTES`."""
        if len(content) > MOST_BYTES:
            raise ValueError(f"a message of {len(content)} bytes, and {MOST_BYTES} are the most")
        length = len(content).to_bytes(LENGTH_BYTES, "big")
        frame = b"".join((length, content, _tag(self._key, self._number, length, content)))
        self._number += 1
        return frame


class Opener:
    """Reads the frames of one direction, in pieces of any size.

    Args:
        key: of this connection and direction.
        most_bytes: of a frame's content.
    """

    def __init__(self, key: bytes, most_bytes: int = MOST_BYTES) -> None:
        self._key, self._most_bytes = key, most_bytes
        self._number = 0
        self._came = bytearray()

    def open(self, data: bytes) -> Iterator[bytes]:
        """The contents that are whole now. Raises BrokenFrame; nothing of that connection may be used afterwards."""
        self._came += data
        at = 0
        while len(self._came) - at >= LENGTH_BYTES:
            length = bytes(self._came[at : at + LENGTH_BYTES])
            size = int.from_bytes(length, "big")
            if size > self._most_bytes:
                raise BrokenFrame(f"a frame of {size} bytes, and {self._most_bytes} are the most")
            start, end = at + LENGTH_BYTES, at + LENGTH_BYTES + size
            if len(self._came) < end + TAG_BYTES:
                break
            content = bytes(self._came[start:end])
            if not hmac.compare_digest(
                self._came[end : end + TAG_BYTES], _tag(self._key, self._number, length, content)
            ):
                raise BrokenFrame("a frame whose tag does not fit")
            self._number += 1
            at = end + TAG_BYTES
            yield content
        del self._came[:at]


def _tag(key: bytes, number: int, length: bytes, content: bytes) -> bytes:
    return hmac.digest(key, b"".join((number.to_bytes(8, "big"), length, content)), "sha256")[:TAG_BYTES]
