"""When a nursery that waits ends by itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LEAST_BYTES = 1 << 30
"""With less memory left for everybody it gives back its own."""


@dataclass(frozen=True)
class Seen:
    """What it sees of itself from time to time."""

    idle_s: float
    """Since it was started, or the last run that used it ended."""
    has_socket: bool
    """Whether its socket is still where it was made: the user's runtime folder goes with the last login."""
    changed_file: str
    available_bytes: int
    """Memory that processes may still use; 0 where that is not known."""


def why_end(seen: Seen, for_s: float) -> str:
    """Why it should end now; empty: it waits on."""
    if not seen.has_socket:
        return "its socket was removed"
    if seen.idle_s >= for_s:
        return "nobody used it"
    if seen.changed_file:
        return f"{seen.changed_file} has changed"
    if 0 < seen.available_bytes < LEAST_BYTES:
        return "memory is short"
    return ""
