"""Why a node does not take part in a run, as it tells the others."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lockstep.nodes.roster import Refused

MOST_CHARACTERS = 1000
"""Of a text that travels: all must fit a line of a greeting."""


@dataclass(frozen=True)
class Withdrawal:
    """A node that could not start. Everything is JSON."""

    number: int | None
    """The node's; None: nobody gave it one."""
    host: str
    problem: str
    fix: str
    node: str = field(default_factory=lambda: secrets.token_hex(8))
    """A word that names it, unlike any other."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Withdrawal:
        """From what a node told."""
        number = told.get("number")
        texts = (str(told.get(name, ""))[:MOST_CHARACTERS] for name in ("host", "problem", "fix", "node"))
        return cls(number if isinstance(number, int) else None, *texts)

    def entry(self) -> dict[str, Any]:
        """For the log, and for a gate."""
        return {"kind": "withdrawal", **asdict(self)}

    def refused(self) -> Refused:
        """What the other nodes say."""
        who = f"Node {self.number} (host {self.host})" if self.number is not None else f"The node on host {self.host}"
        fix = (
            f"On {self.host}: {self.fix}" if self.fix else f"Look at what {self.host} says, and start all nodes again."
        )
        return Refused((self.node,), f"{who} cannot start: {self.problem}", fix)
