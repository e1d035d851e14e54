"""What a link is told when it starts, by a launcher that imports neither TLS nor an event loop for it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LinkOrder:
    """What a link is to do."""

    is_host: bool
    """Whether the run's store is here."""
    address: str
    """That of the run's first node."""
    port: int
    source: str
    """This node's address, if it matters from which one it connects."""
    key: str = field(repr=False)
    """Empty: asked for at the first node, which has sealed it for this job."""
    job: str
    """SLURM's, if the key is sealed for it; else empty."""
    node: str
    """A word that names this node, unlike any other."""
    host: str
    """This node's name, for people."""
    patience_s: float
    """How long to try to reach the first node."""
    launcher: int
    """The number of the launcher's process."""
    log: str
    """A file for what torch says about connections; empty: nobody wants to know."""
