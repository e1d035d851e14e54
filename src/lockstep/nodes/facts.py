"""What one source (the command line, a launcher) says about this node. None or empty: it does not say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Each fact may be missing; `choice` puts the sources over each other."""

    launcher: str = ""
    nodes: tuple[int, int] | None = None
    """The least and the most."""
    number: int | None = None
    endpoint: str = ""
    job: str = ""
