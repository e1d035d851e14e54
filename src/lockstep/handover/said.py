"""What of a rank's output is new when it prints something again. Pure: bytes in, bytes out."""

from __future__ import annotations

MOST = 1 << 16
"""How many of the last bytes of a stream are kept for it."""


def unsaid(said: bytes, again: bytes) -> bytes:
    """What is new in `again`: the rest of it, after what `said` ends with.

    Args:
        said: the last bytes that a dead rank printed to a stream. It died in, before or after a line.
        again: what its replacement printed, from a place that the dead rank had passed.

    Only equal bytes count as said already. What differs a second time, a time of day, is printed again.
    """
    start = 0
    while start < len(said):
        if again.startswith(said[start:]):
            return again[len(said) - start :]
        start = said.find(b"\n", start) + 1 or len(said)
    return again
