"""What a node says about itself when it asks to take part."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class NodeRecord:
    """One node. Everything is JSON."""

    node: str
    """A word that names it, unlike any other."""
    host: str
    """Its name, for people."""
    number: int | None
    """The number that it was given; None: any."""
    is_host: bool
    """Whether the run's store is there; it is number 0."""
    least: int
    most: int
    """How many nodes it was told that the run has."""
    ranks: int
    threads: int
    """Per rank."""
    launcher: int = 0
    """The launcher's process; 0: unknown."""
    same: dict[str, str] = field(default_factory=dict)
    """What must be the same on all nodes, by what people call it."""
    alike: dict[str, str] = field(default_factory=dict)
    """What the bits may depend on."""

    def encode(self) -> dict[str, Any]:
        """For an entry of the log."""
        return asdict(self)

    @classmethod
    def decode(cls, told: dict[str, Any]) -> NodeRecord:
        """The inverse of `encode`."""
        return cls(**told)
